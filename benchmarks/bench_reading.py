"""Batches out of the page cache, from the bare copy to the whole loop.

Ceiling: ``test_ceiling_of_memcpy``, one core copying the same windows out of a map that is in memory, into one buffer
that is used again (rate = bytes / time). What is counted: gathers, reads, bytes and files a batch, allocations, and
that the interpreter lock is free while bytes are copied.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.conftest import SHARDS, document_storage, span_storage
from benchmarks.workloads import BATCH, LENGTH, copy_runs, loader, stack, stream_storage
from guideloom import DocumentDataset, StreamDataset
from guideloom._read.files import open_file_set
from guideloom._read.fileset import FileTable
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import CountingBackend

WINDOW_BYTES = LENGTH * 4
BACKENDS: dict[str, Callable[[], Any]] = {"seek": SeekIO, "pread": PosixPreadIO, "mmap": MmapIO}
SETTINGS = [(0, 0), (0, 4), (1, 4), (2, 4)]


def epoch(dataset: Any, collate: Any = None, workers: int = 0, prefetch: int = 0) -> int:
    """Read an epoch and return the number of batches."""
    with loader(dataset, collate, workers, prefetch) as batches:
        return sum(1 for _ in batches)


def read_arrays(source: Any, order: Any, batch: int) -> int:
    """Read all of ``order`` as arrays, planned as the loader does; returns the number of batches."""
    num = 0
    for first in range(0, order.size, 512):
        prepared = source.prepare(order[first : first + 512])
        for lo in range(0, 512, batch):
            source.arrays(prepared, lo, lo + batch, np.empty)
            num += 1
    return num


def steps(call: Callable[[], Any]) -> int:
    """Functions that a call enters, Python's and those in C: nothing is done for a sample where more make no more."""
    count = [0]

    def note(frame: Any, event: str, argument: Any) -> None:
        count[0] += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count[0]


def runs(num: int, files: int, file_bytes: int) -> tuple[Any, ...]:
    """``num`` windows at random places, and where they go in a buffer of one batch."""
    rng = np.random.default_rng(0)
    file = rng.integers(0, files, num)
    src = rng.integers(0, file_bytes // WINDOW_BYTES, num) * WINDOW_BYTES
    dst = np.arange(num) % BATCH * WINDOW_BYTES
    return file, src, dst, np.full(num, WINDOW_BYTES)


# --- the bare copy ----------------------------------------------------------------------------------


def test_ceiling_of_memcpy(benchmark: Any, stream: Path) -> None:
    """What a core of this machine copies, without GuideLoom."""
    path = next(stream.glob("*.elements.bin"))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = np.frombuffer(mapped, np.uint8)
    out = np.zeros(BATCH * WINDOW_BYTES, np.uint8)
    _, src, _, nbytes = runs(512, 1, whole.size)
    benchmark(copy_runs(), whole.ctypes.data, src, nbytes, out.ctypes.data, BATCH)
    assert out.any()


@pytest.mark.parametrize("name", BACKENDS)
def test_gather(benchmark: Any, stream: Path, name: str) -> None:
    """512 windows, 32 a call, into one buffer: the backend without plan, allocation and loader."""
    paths = sorted(stream.glob("*.elements.bin"))
    sizes = np.array([path.stat().st_size for path in paths])
    files = open_file_set(BACKENDS[name](), FileTable(list(paths), sizes, np.arange(len(paths))))
    out = np.zeros(BATCH * WINDOW_BYTES, np.uint8)
    file, src, dst, nbytes = runs(512, SHARDS, 1 << 22)

    def gather() -> None:
        for lo in range(0, 512, BATCH):
            files.gather(file, src, dst, nbytes, lo, lo + BATCH, out)

    benchmark(gather)
    last = np.fromfile(paths[file[511]], np.uint8)[src[511] :][:WINDOW_BYTES]
    assert np.array_equal(out[dst[511] :][:WINDOW_BYTES], last)
    files.close()


@pytest.mark.parametrize("name", ["pread", "mmap"])
def test_the_interpreter_is_free_while_bytes_are_copied(stream: Path, name: str) -> None:
    paths = sorted(stream.glob("*.elements.bin"))
    sizes = np.array([path.stat().st_size for path in paths])
    files = open_file_set(BACKENDS[name](), FileTable(list(paths), sizes, np.arange(len(paths))))
    num = 20_000
    out = np.zeros(BATCH * WINDOW_BYTES, np.uint8)
    file, src, dst, nbytes = runs(num, SHARDS, 1 << 22)
    files.gather(file, src, dst, nbytes, 0, 100, out)  # opens the files, compiles the kernel
    counted, stopped, running = [0], threading.Event(), threading.Event()

    def count() -> None:
        while not stopped.is_set():
            counted[0] += 1
            running.set()
            time.sleep(0)

    other = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    other.start()
    try:
        running.wait()
        # Nobody is made to give the lock up: the other thread runs only if the gather itself lets go of it.
        sys.setswitchinterval(100)
        before = counted[0]
        files.gather(file, src, dst, nbytes, 0, num, out)
        during = counted[0] - before
    finally:
        sys.setswitchinterval(interval)
        stopped.set()
        other.join()
        files.close()
    assert during > 0


# --- the whole loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "prefetch"), SETTINGS)
@pytest.mark.parametrize("name", BACKENDS)
def test_numeric_batches(
    benchmark: Any, stream: Path, gathers: list[str], name: str, workers: int, prefetch: int
) -> None:
    """``collate_fn=None``: order, plan, gather, tensors. One gather a batch, whatever the threads."""
    dataset = StreamDataset(stream_storage(stream, BACKENDS[name]()), LENGTH)
    epoch(dataset)
    gathers.clear()
    num = benchmark(epoch, dataset, None, workers, prefetch)
    assert num == 64
    assert set(gathers) == {"Gather"}
    assert len(gathers) % num == 0
    if benchmark.disabled:
        assert len(gathers) == num


@pytest.mark.parametrize(("workers", "prefetch"), SETTINGS)
def test_collate_that_stacks(benchmark: Any, stream: Path, workers: int, prefetch: int) -> None:
    """A user's collate: one more copy a batch, and Python for each sample. Ceiling: ``test_ceiling_of_stack``."""
    dataset = StreamDataset(stream_storage(stream, MmapIO()), LENGTH)
    assert benchmark(epoch, dataset, stack, workers, prefetch) == 64


def test_ceiling_of_stack(benchmark: Any) -> None:
    """The same collate on windows in memory, for 64 batches."""
    samples = [{"tokens": window} for window in np.zeros((BATCH, LENGTH), np.int32)]
    assert benchmark(lambda: [stack(samples)["tokens"].shape[0] for _ in range(64)]) == [BATCH] * 64


@pytest.mark.parametrize(("workers", "prefetch"), SETTINGS)
@pytest.mark.parametrize("collate", [None, len], ids=["ragged", "list"])
def test_documents(
    benchmark: Any, documents: Path, gathers: list[str], collate: Any, workers: int, prefetch: int
) -> None:
    """One gather a batch (payloads), two more for all offsets. Ceiling: ``test_ceiling_of_unpack`` for the list."""
    dataset = DocumentDataset(document_storage(documents, MmapIO()))
    epoch(dataset)
    gathers.clear()
    num = benchmark(epoch, dataset, collate, workers, prefetch)
    assert num == 64
    if benchmark.disabled and workers == 0:
        # The first batch's offsets, then those of the whole data set, which is small: they stay in memory.
        assert len(gathers) == num + 2


@pytest.mark.parametrize("batch", [32, 512])
@pytest.mark.parametrize("name", BACKENDS)
def test_ragged_documents(benchmark: Any, documents: Path, name: str, batch: int) -> None:
    """2,048 documents as values and offsets, without the loader. Ceiling: ``test_ceiling_of_ragged_memcpy``."""
    with DocumentDataset(document_storage(documents, BACKENDS[name]())).sync_reader() as reader:
        source = reader.batch_source()
        order = np.random.default_rng(1).permutation(2048)
        assert benchmark(read_arrays, source, order, batch) == 2048 // batch


@pytest.mark.parametrize("batch", [32, 512])
def test_ceiling_of_ragged_memcpy(benchmark: Any, documents: Path, batch: int) -> None:
    """The bytes of the same documents, copied by one core out of a map into one buffer that is used again."""
    nbytes = np.random.default_rng(0).integers(256, 1024, 2048) * 4
    whole = np.ones(nbytes.sum(), np.uint8)
    order = np.random.default_rng(1).permutation(2048)
    src = (np.cumsum(nbytes) - nbytes)[order]
    out = np.zeros(batch * 4096, np.uint8)
    benchmark(copy_runs(), whole.ctypes.data, src, nbytes[order], out.ctypes.data, batch)
    assert out.any()


def test_ceiling_of_unpack(benchmark: Any) -> None:
    """``unpack`` of 2,048 documents in memory."""
    fmt = document_storage(Path(), MmapIO()).storage_format
    payload = memoryview(bytearray(4 * 640))
    assert len(benchmark(lambda: [fmt.unpack(payload, 0) for _ in range(2048)])) == 2048


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 4)])
def test_spans(benchmark: Any, spans: Path, gathers: list[str], workers: int, prefetch: int) -> None:
    """Two gathers a batch (elements, payloads). Ceiling: the user's ``unpack``."""
    dataset = StreamDataset(span_storage(spans, MmapIO()), 256)
    num = epoch(dataset)
    gathers.clear()
    assert benchmark(epoch, dataset, None, workers, prefetch) == num
    if benchmark.disabled and workers == 0:
        # The first batches read rows of the tables, and a sample once for each shard. Then come the tables, which are
        # small: they stay in memory.
        pages = -(-16 * SHARDS * 1025 // 4096)
        assert 2 * num < len(gathers) <= 2 * num + SHARDS + -(-pages // BATCH) + 1


@pytest.mark.parametrize("name", BACKENDS)
def test_spans_as_arrays(benchmark: Any, spans: Path, name: str) -> None:
    """Windows of 256 elements with about 3.5 spans: values and offsets, without the loader and without ``unpack``."""
    with StreamDataset(span_storage(spans, BACKENDS[name]()), 256).sync_reader() as reader:
        source = reader.batch_source()
        order = np.random.default_rng(1).permutation(1536)
        assert benchmark(read_arrays, source, order, BATCH) == 1536 // BATCH


# --- counts only -----------------------------------------------------------------------------------------


def test_reads_bytes_and_files_of_an_epoch(stream: Path) -> None:
    """A window is one read, no byte is read twice, a file is opened once."""
    counting = CountingBackend()
    dataset = StreamDataset(stream_storage(stream, counting), LENGTH)
    with loader(dataset) as batches:
        counting.reset()
        assert sum(1 for _ in batches) == 64
        elements = counting.matching("*.elements.bin")
    assert (elements.reads, elements.bytes_read) == (64 * BATCH, 64 * BATCH * WINDOW_BYTES)
    assert elements.opens <= SHARDS
    assert counting.total.reads == elements.reads


def test_a_batch_is_one_array_and_nothing_of_its_size_besides(stream: Path) -> None:
    """The buffer that the bytes are gathered into *is* the batch."""
    made: list[int] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        made.append(array.nbytes)
        return array

    with StreamDataset(stream_storage(stream, MmapIO()), LENGTH).sync_reader() as reader:
        source = reader.batch_source()
        prepared = source.prepare(np.arange(64 * BATCH))
        source.arrays(prepared, 0, BATCH, np.empty)
        tracemalloc.start()
        try:
            batch = source.arrays(prepared, BATCH, 2 * BATCH, empty)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert made == [BATCH * WINDOW_BYTES]
    assert batch["tokens"].nbytes <= peak <= BATCH * WINDOW_BYTES + 16_384


@pytest.mark.parametrize("prefetch", [1, 4])
def test_memory_is_bounded_by_the_batches_ahead(stream: Path, prefetch: int) -> None:
    dataset = StreamDataset(stream_storage(stream, MmapIO()), LENGTH)
    epoch(dataset, None, 1, prefetch)
    tracemalloc.start()
    try:
        epoch(dataset, None, 1, prefetch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Those ahead, one being made, one that the caller holds; and plans.
    assert peak <= (prefetch + 3) * BATCH * WINDOW_BYTES + 512_000


@pytest.mark.parametrize("name", ["pread", "mmap"])
def test_no_step_of_python_for_a_document(documents: Path, name: str) -> None:
    with DocumentDataset(document_storage(documents, BACKENDS[name]())).sync_reader() as reader:
        source = reader.batch_source()
        prepared = source.prepare(np.arange(2048))
        for hi in (2048, 32):  # opens the files; reads all offsets; looks the plan's documents up
            source.arrays(prepared, 0, hi, np.empty)
        few = steps(lambda: source.arrays(prepared, 64, 80, np.empty))
        many = steps(lambda: source.arrays(prepared, 80, 2000, np.empty))
    assert 0 < few == many


@pytest.mark.parametrize("name", ["pread", "mmap"])
def test_no_step_of_python_for_a_window_or_a_span(spans: Path, name: str) -> None:
    with StreamDataset(span_storage(spans, BACKENDS[name]()), 256).sync_reader() as reader:
        source = reader.batch_source()
        prepared = source.prepare(np.arange(1536))
        for _ in range(2):  # opens the files; reads the tables
            source.arrays(prepared, 0, 1536, np.empty)
        few = steps(lambda: source.arrays(prepared, 64, 80, np.empty))
        many = steps(lambda: source.arrays(prepared, 80, 1500, np.empty))
    assert 0 < few == many
