"""What ``benchmarks.rates`` reads: each way to read, one core that copies, and the Python of it on bytes in memory."""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.workloads import (
    BACKENDS,
    BATCH,
    LENGTH,
    Documents,
    HeadAsArrayFormat,
    HeadFormat,
    Ints,
    Spans,
    WholeSpanFormat,
    copy_runs,
    loader,
    stack,
    stack_and_payloads,
    stream_storage,
    take_turns,
    token_arrays,
    tokens_of_shard,
)
from guideloom import DocumentDataset, DocumentStorage, StreamDataset, StreamWithMetaStorage
from guideloom._plan.order import make_order
from guideloom.io import SeekIO

NUM_SHARDS = 16
SETTINGS = ((0, 0), (1, 4), (2, 4), (8, 8))
COPY, PYTHON, TORCH = "memcpy", "memory", "torch"
TORCH_SETTINGS = ((0, 0), (2, 4))
"""torch's ``DataLoader`` prefetches two batches a worker, unless it is told otherwise."""
NUM_READY = 8
"""Batches in memory that Python is measured on. Few, since all that lives costs time in a pass of the collector."""
TIMES_LONGER = {"spans": 4.0}
"""Here a full pass of the collector comes every half second: in a shorter time there is one, or none, by chance."""
QUEUE_WARM = 10
"""Steps until the queue is full, and the memory of batches is used for the second time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much data there is.

    Parameters
    ----------
    windows : int
        Of 2,048 tokens; the same number in each of 16 shards, so a multiple of 16.
    documents : int
    spans : int
    """

    windows: int = 48_000
    documents: int = 100_000
    spans: int = 100_000


class Row(NamedTuple):
    """What is measured, by which backend (or ``memcpy``, ``memory``, or ``torch``), and with which setting."""

    what: str
    by: str
    workers: int = 0
    prefetch: int = 0


class Pass(NamedTuple):
    """What one measurement gave: units a second; full passes of Python's collector, and their part of the time."""

    rate: float
    full_collections: int = 0
    full_collections_share: float = 0.0


class Runs(NamedTuple):
    """Where the bytes of all samples stand in memory, in the order of the epoch: int64[R], so many a batch."""

    src: Ints
    nbytes: Ints
    batch: int


# --- the data --------------------------------------------------------------------------------------------------------


def folder_of(folder: Path, kind: str, sizes: Sizes) -> Path:
    """Where a data set stands. Its size is in the name: with other sizes another one is made."""
    count = {"stream": sizes.windows, "documents": sizes.documents, "spans": sizes.spans}[kind]
    return folder / f"{kind}-{count}"


def make_data(folder: Path, sizes: Sizes, kinds: Sequence[str]) -> None:
    """Make the data sets that are not there, and fill the page cache. One gets its name when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        path = folder_of(folder, kind, sizes)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                made = Path(unfinished) / kind
                _write(made, kind, sizes)
                made.rename(path)
        for file in path.iterdir():
            file.read_bytes()


def _write(folder: Path, kind: str, sizes: Sizes) -> None:
    if kind == "stream":
        with stream_storage(folder, SeekIO()).sync_writer() as writer:
            for shard in range(NUM_SHARDS):
                writer.append(shard, {"tokens": tokens_of_shard(sizes.windows // NUM_SHARDS, shard)})
    elif kind == "documents":
        with DocumentStorage(folder, HeadFormat()).sync_writer() as writer:
            for number, record in enumerate(Documents(sizes.documents).records()):
                writer.append(number * NUM_SHARDS // sizes.documents, record)
    else:
        records = Spans(sizes.spans).records()
        with StreamWithMetaStorage(folder, WholeSpanFormat()).sync_writer() as writer:
            for number, span_record in enumerate(records):
                writer.append(number * NUM_SHARDS // len(records), span_record)


# --- the ways to read ------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """One way to read.

    Parameters
    ----------
    kind : str
        Of the data set.
    dataset : callable
        From a folder and a backend.
    collate : callable or None
    units : int
        In a sample: tokens of a window, or one.
    """

    kind: str
    dataset: Callable[[Path, Any], Any]
    collate: Callable[[list[Any]], Any] | None
    units: int = 1


def _stream(folder: Path, backend: Any) -> StreamDataset:
    return StreamDataset(stream_storage(folder, backend), LENGTH)


def _documents(storage_format: Any, folder: Path, backend: Any) -> DocumentDataset:
    return DocumentDataset(DocumentStorage(folder, storage_format, backend))


def _spans(folder: Path, backend: Any) -> StreamDataset:
    return StreamDataset(StreamWithMetaStorage(folder, WholeSpanFormat(), backend), LENGTH)


READINGS: dict[str, Reading] = {
    "numeric": Reading("stream", _stream, None, LENGTH),
    "stack": Reading("stream", _stream, stack, LENGTH),
    "documents": Reading("documents", partial(_documents, HeadFormat()), token_arrays),
    "document-arrays": Reading("documents", partial(_documents, HeadAsArrayFormat()), None),
    "spans": Reading("spans", _spans, stack_and_payloads),
    "span-arrays": Reading("spans", _spans, None),
}


def runs_of(kind: str, sizes: Sizes) -> Runs:
    """The bytes of all samples of an epoch, as if each file stood in memory: windows, documents, or a window and its
    payloads. In the order in which the loader reads them."""
    if kind == "documents":
        nbytes = 8 + 4 * Documents(sizes.documents).sizes()
        order = _order(nbytes.size)
        return Runs((np.cumsum(nbytes) - nbytes)[order], nbytes[order], BATCH)
    if kind == "stream":
        order = _order(sizes.windows // NUM_SHARDS * NUM_SHARDS)
        return Runs(order * (4 * LENGTH), np.full(order.size, 4 * LENGTH), BATCH)
    begins, ends, num_tokens = window_spans(sizes)
    order = _order(begins.size)
    at = np.concatenate([[0], np.cumsum(4 * Spans(sizes.spans).payload_sizes())])
    src = np.stack([order * (4 * LENGTH), 4 * num_tokens + at[begins[order]]], axis=1).ravel()
    nbytes = np.stack([np.full(order.size, 4 * LENGTH), at[ends[order]] - at[begins[order]]], axis=1).ravel()
    return Runs(src, nbytes, 2 * BATCH)


def window_spans(sizes: Sizes) -> tuple[Ints, Ints, int]:
    """Return the half-open range of spans that each window touches, int64[windows] twice, and the number of tokens."""
    ends = np.cumsum(Spans(sizes.spans).lengths())
    first = np.arange(int(ends[-1]) // LENGTH) * LENGTH
    begins = np.searchsorted(ends, first, side="right")
    return begins, np.searchsorted(ends, first + LENGTH, side="left") + 1, int(ends[-1])


def _order(size: int) -> Ints:
    return make_order(size, True, 1, 0).positions_to_indexes(0, 1, size)


# --- measurements ----------------------------------------------------------------------------------------------------


class Collector:
    """Counts full passes of Python's collector, and their seconds, while it is entered: they are long, and rare."""

    def __init__(self) -> None:
        self.num_full = 0
        self.spent_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            self.num_full += phase == "start"
            self.spent_s += perf_counter() if phase == "stop" else -perf_counter()

    def __enter__(self) -> Collector:
        gc.callbacks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self)


def take(batches: Iterator[Any], collector: Collector, seconds: float) -> tuple[int, float]:
    """Take batches for ``seconds``, or all that are left; return how many there were, and the time."""
    num = 0
    with collector:
        begun = perf_counter()
        for _ in batches:
            num += 1
            if perf_counter() - begun >= seconds:
                break
        return num, perf_counter() - begun


def read(reading: Reading, folder: Path, backend: Any, workers: int, prefetch: int, seconds: float) -> Pass:
    """Take batches for ``seconds``, and at least one, in as many epochs as that makes.

    The clock stands still at the begin of each epoch, until all that was made ahead meanwhile is taken: what is timed
    is taken as fast as it is made.
    """
    dataset = reading.dataset(folder, backend)
    collector = Collector()
    num, spent = 0, 0.0
    with loader(dataset, reading.collate, workers, prefetch) as source:
        ahead = min(2 * prefetch + 2, len(source) - 1)
        while not num or spent < seconds:
            with closing(iter(source)) as batches:
                for _ in range(ahead):
                    next(batches)
                more, took_s = take(batches, collector, seconds - spent)
            num, spent = num + more, spent + took_s
    return Pass(num * BATCH * reading.units / spent, collector.num_full, collector.spent_s / spent)


class MemmapWindows(torch.utils.data.Dataset[torch.Tensor]):
    """The windows of a stream as one would write them without a library: an ``np.memmap`` for each file of elements."""

    def __init__(self, folder: Path) -> None:
        self._files = [np.memmap(path, "<i4", "r") for path in sorted(folder.glob("*.elements.bin"))]
        self._per_file = self._files[0].size // LENGTH

    def __len__(self) -> int:
        return len(self._files) * self._per_file

    def __getitem__(self, index: int) -> torch.Tensor:
        file, window = divmod(index, self._per_file)
        return torch.from_numpy(np.array(self._files[file][window * LENGTH : (window + 1) * LENGTH]))


def read_by_torch(folder: Path, workers: int, seconds: float) -> Pass:
    """Take the same windows from torch's own ``DataLoader`` for ``seconds``, shuffled; its start is not timed."""
    source = torch.utils.data.DataLoader(MemmapWindows(folder), BATCH, shuffle=True, num_workers=workers)
    collector = Collector()
    num, spent = 0, 0.0
    while not num or spent < seconds:
        batches = iter(source)
        for _ in range(min(2 * workers + 2, len(source) - 1)):
            next(batches)
        more, took_s = take(batches, collector, seconds - spent)
        num, spent = num + more, spent + took_s
        del batches  # which ends its processes
    return Pass(num * BATCH * LENGTH / spent, collector.num_full, collector.spent_s / spent)


def copy(base: Any, runs: Runs, units: float, seconds: float) -> Pass:
    """Copy the bytes of the same samples in the same order, one core and nothing else, for ``seconds``."""
    batches = np.add.reduceat(runs.nbytes, np.arange(0, runs.nbytes.size, runs.batch))
    out = np.ones(int(batches.max()), np.uint8)
    copy_all = copy_runs()
    num, begun = 0, perf_counter()
    while not num or perf_counter() - begun < seconds:
        copy_all(base.ctypes.data, runs.src, runs.nbytes, out.ctypes.data, runs.batch)
        num += 1
    return Pass(num * runs.src.size * units / (perf_counter() - begun))


def think(make_batch: Callable[[int], Any], units: int, seconds: float) -> Pass:
    """Do the Python of a batch on bytes in memory: what no reader can be faster than that runs it."""
    with Collector() as collector:
        num, begun = 0, perf_counter()
        while not num or perf_counter() - begun < seconds:
            make_batch(num % NUM_READY)
            num += 1
        spent = perf_counter() - begun
    return Pass(num * BATCH * units / spent, collector.num_full, collector.spent_s / spent)


def python_of(name: str, sizes: Sizes) -> Callable[[int], Any] | None:
    """Return what makes batch ``i`` of the first few out of bytes in memory; None where no Python runs for a sample."""
    collate = READINGS[name].collate
    if collate is None:
        return None
    tokens = tokens_of_shard(NUM_READY * BATCH)
    windows = tokens.reshape(NUM_READY, BATCH, LENGTH)
    if name == "stack":
        return lambda i: collate([{"tokens": window} for window in windows[i]])
    whole = tokens.data.cast("B")
    if name == "documents":
        nbytes = itertools.cycle((8 + 4 * Documents(sizes.documents).sizes()).tolist())
        encoded = [[whole[: next(nbytes)] for _ in range(BATCH)] for _ in range(NUM_READY)]
        documents = HeadFormat()
        return lambda i: collate([documents.unpack(document, 0) for document in encoded[i]])
    begins, ends, _ = window_spans(sizes)
    nbytes = itertools.cycle((4 * Spans(sizes.spans).payload_sizes()).tolist())
    counts = itertools.cycle((ends - begins).tolist())
    spans = WholeSpanFormat()
    ready = [
        [(window, None, None, [whole[: next(nbytes)] for _ in range(next(counts))]) for window in batch]
        for batch in windows
    ]
    return lambda i: collate([spans.unpack(*window) for window in ready[i]])


def reading_calls(folder: Path, sizes: Sizes, names: Sequence[str]) -> dict[Row, Callable[[float], Pass]]:
    """Return all measurements of reading; each takes the seconds that it may use."""
    kinds = {READINGS[name].kind: runs_of(READINGS[name].kind, sizes) for name in names}
    # One buffer stands for all files: nobody looks at the bytes.
    base = np.ones(max((int((runs.src + runs.nbytes).max()) for runs in kinds.values()), default=1), np.uint8)
    calls: dict[Row, Callable[[float], Pass]] = {}
    for name in names:
        reading = READINGS[name]
        runs = kinds[reading.kind]
        calls[Row(name, COPY)] = partial(copy, base, runs, reading.units * BATCH / runs.batch)
        make_batch = python_of(name, sizes)
        if make_batch is not None:
            calls[Row(name, PYTHON)] = partial(think, make_batch, reading.units)
        path = folder_of(folder, reading.kind, sizes)
        for by, backend in BACKENDS.items():
            for setting in SETTINGS:
                calls[Row(name, by, *setting)] = partial(read, reading, path, backend(), *setting)
        if name == "numeric":
            for setting in TORCH_SETTINGS:
                calls[Row(name, TORCH, *setting)] = partial(read_by_torch, path, setting[0])
    return calls


def reading_rows(folder: Path, sizes: Sizes, names: Sequence[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure reading for ``seconds`` in all; rates are units a second."""
    calls = reading_calls(folder, sizes, names)
    parts = {row: TIMES_LONGER.get(row.what, 1.0) for row in calls}
    unit_s = seconds / rounds / max(1.0, sum(parts.values()))
    found = take_turns({row: partial(call, parts[row] * unit_s) for row, call in calls.items()}, rounds, "reading")
    rows = []
    for row, passes in found.items():
        rates = [one.rate for one in passes]
        entry: dict[str, Any] = {**row._asdict(), "unit": "tokens" if READINGS[row.what].units > 1 else "samples"}
        entry |= {"rates": rates, "median": statistics.median(rates), "best": max(rates)}
        entry["full_collections"] = [one.full_collections for one in passes]
        entry["full_collections_share"] = [one.full_collections_share for one in passes]
        entry["of_ceiling"] = ratio(rates, [one.rate for one in found[Row(row.what, COPY)]])
        if row.by not in (COPY, PYTHON):
            entry["of_no_threads"] = ratio(rates, [one.rate for one in found[Row(row.what, row.by)]])
        rows.append(entry)
    return rows


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within a round."""
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


# --- a full queue ----------------------------------------------------------------------------------------------------


def wait(
    reading: Reading, folder: Path, backend: Any, workers: int, prefetch: int, steps: int, width: int
) -> list[tuple[float, float]]:
    """Return what batches cost a caller that multiplies matrices in between: seconds to take one, and to drop the last.

    There are fewer than ``steps`` where the epoch ends before.
    """
    left, product = torch.ones(width, width), torch.empty(width, width)
    found = []
    with (
        loader(reading.dataset(folder, backend), reading.collate, workers, prefetch) as source,
        closing(iter(source)) as batches,
    ):
        batch = following = next(batches)
        for _ in range(min(steps + QUEUE_WARM, len(source) - 1)):
            torch.mm(left, left, out=product)
            begun = perf_counter()
            following = next(batches)
            taken = perf_counter()
            batch = following
            found.append((taken - begun, perf_counter() - taken))
        del batch, following
    return found[QUEUE_WARM:]


def queue_rows(folder: Path, sizes: Sizes, rounds: int, steps: int, width: int) -> list[dict[str, Any]]:
    """Measure what a full queue costs the caller; without threads, that is the loading itself."""
    path = folder_of(folder, "stream", sizes)
    calls: dict[Row, Callable[[], list[tuple[float, float]]]] = {
        Row(name, by, *setting): partial(wait, READINGS[name], path, backend(), *setting, steps, width)
        for name in ("numeric", "stack")
        for by, backend in BACKENDS.items()
        for setting in SETTINGS
    }
    rows = []
    for row, found in take_turns(calls, rounds, "queue").items():
        taken, dropped = zip(*itertools.chain.from_iterable(found), strict=True)
        rows.append(
            {
                **row._asdict(),
                "num": len(taken),
                "take_median_s": statistics.median(taken),
                "take_p90_s": float(np.percentile(taken, 90)),
                "drop_median_s": statistics.median(dropped),
                "drop_p90_s": float(np.percentile(dropped, 90)),
            }
        )
    return rows
