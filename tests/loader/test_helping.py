"""Who waits for a batch helps to read it: the same batches, and helpers that are really there."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guideloom import (
    DocumentNumpyFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
)
from guideloom._kernels.desk import gather_helped
from guideloom._kernels.jit import Kernel
from guideloom._kernels.spin import hand_over
from guideloom._kernels.status import ACTIVE, BUSY, WATCHERS
from guideloom._loader import outbox
from guideloom._read import files
from guideloom.io import MmapIO, PosixPreadIO

LENGTH, BATCH, WINDOWS = 1024, 32, 1920
BACKENDS = [MmapIO, PosixPreadIO]


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called with somebody waiting, and by whom; as if waiting paid on any machine."""
    names: list[str] = []

    def spy_on(name: str) -> None:
        kernel = getattr(files, name)
        compiled = kernel.get()

        def call(*args: Any) -> int:
            here = threading.current_thread() is threading.main_thread()
            names.append(f"{name} of the {'caller' if here else 'batch thread'}")
            return int(compiled(*args))

        monkeypatch.setattr(kernel, "run", call)

    spy_on("gather_helped")
    monkeypatch.setattr(outbox, "WATCHES", True)
    return names


def stream(folder: Path, backend: type) -> StreamStorage:
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<u4")]), backend())
    if not folder.exists():
        with storage.sync_writer() as writer:
            for shard in range(3):
                writer.append(shard, {"token": np.arange(shard, WINDOWS * LENGTH, 3, dtype=np.uint32)})
    return storage


def unload(monkeypatch: pytest.MonkeyPatch, get: Callable[[Kernel[Any], Callable[[], Any]], None]) -> None:
    """Take out what only waiting takes, as in a process that has not used it; ``get`` is called in place of loading."""
    for kernel in (hand_over, gather_helped):
        monkeypatch.setattr(kernel, "get", partial(get, kernel, kernel.get))
        monkeypatch.setattr(kernel, "compiled", None)
    monkeypatch.setattr(outbox, "WATCHES", True)


def test_a_first_batch_does_not_wait_for_kernels_that_only_waiting_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = threading.Event()
    came_before: list[bool] = []

    def wait_and_load(kernel: Kernel[Any], load: Callable[[], Any]) -> None:
        came_before.append(came.wait(30))
        load()

    unload(monkeypatch, wait_and_load)
    dataset = StreamDataset(stream(tmp_path / "data", MmapIO), LENGTH)
    with StatefulDataLoader(dataset, None, local_batch_size=BATCH, prefetch=3, device=torch.device("cpu")) as loader:
        batches = iter(loader)
        first = next(batches)["token"]
        came.set()
        assert sum(len(batch["token"]) for batch in batches) + len(first) == WINDOWS
    assert came_before == [True, True]


def test_kernels_that_only_waiting_takes_are_not_compiled_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once the last batch is made, and not on after a close: who closes waits for the thread that compiles."""
    compiling, closed = threading.Event(), threading.Event()
    compiled: list[Kernel[Any]] = []

    def wait(kernel: Kernel[Any], load: Callable[[], Any]) -> None:
        compiled.append(kernel)
        compiling.set()
        closed.wait(30)

    unload(monkeypatch, wait)
    dataset = StreamDataset(stream(tmp_path / "data", MmapIO), LENGTH)
    cpu = torch.device("cpu")
    with StatefulDataLoader(dataset, None, local_batch_size=WINDOWS // 3, prefetch=3, device=cpu) as loader:
        assert len(list(loader)) == 3
    assert compiled == []
    with StatefulDataLoader(dataset, None, local_batch_size=BATCH, prefetch=3, device=cpu) as loader:
        batches = iter(loader)
        next(batches)
        assert compiling.wait(30)
        making = [thread for thread in threading.enumerate() if thread.name == "guideloom-batching"]
        batches._feed.stop()  # the first thing that its close does
        closed.set()
        for thread in making:
            thread.join(30)
    assert compiled == [hand_over]


@pytest.mark.parametrize(("backend", "dtype"), [(MmapIO, None), (PosixPreadIO, None), (PosixPreadIO, "int64")])
def test_batches_are_the_same_with_help(tmp_path: Path, laid_out: list[str], backend: type, dtype: str | None) -> None:
    dataset = StreamDataset(stream(tmp_path / "data", backend), LENGTH, dtype=dtype)
    options: dict[str, Any] = {"local_batch_size": BATCH, "shuffle": True, "device": torch.device("cpu")}
    with (
        StatefulDataLoader(dataset, None, **options) as alone,
        StatefulDataLoader(dataset, None, prefetch=4, num_workers=1, **options) as helped,
    ):
        for epoch in range(200):
            # Rows of every place of the buffer: what a helper read too little or too much shows there.
            for one, other in zip(alone, helped, strict=True):
                assert torch.equal(one["token"].long(), other["token"].long())
            if len(set(laid_out)) == 2 and epoch > 2:
                break
            # An idle caller, who waits for what comes next.
            assert len(list(helped)) == len(list(alone))
    # The batch thread's with the help of the caller, and, once the caller is idle and makes its batches, the other way.
    assert set(laid_out) == {"gather_helped of the caller", "gather_helped of the batch thread"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_is_the_same_with_help(tmp_path: Path, laid_out: list[str], backend: type) -> None:
    folder = tmp_path / "data"
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<u4")]), backend())
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(WINDOWS * LENGTH, dtype=np.uint32)})
    (path,) = folder.glob("*.elements*")
    dataset = StreamDataset(storage, LENGTH)
    messages = []
    for prefetch in (0, 4):
        with dataset.sync_reader() as reader:
            source = reader.batch_source()  # type: ignore[attr-defined]
            prepared = source.prepare(np.arange(WINDOWS))
            source.arrays(prepared, 0, 1, np.empty)
            reader_files = source._files
            reader_files.desk[WATCHERS] = prefetch
            if backend is PosixPreadIO:
                size = path.stat().st_size
                os.truncate(path, size - 4096 * 40)
            else:
                reader_files.table.sizes[:] -= 4096 * 40
            with pytest.raises(Exception, match=r"byte|outside") as found:
                source.arrays(prepared, 0, WINDOWS, np.empty)
            messages.append(str(found.value))
            if backend is PosixPreadIO:
                os.truncate(path, size)
            else:
                reader_files.table.sizes[:] += 4096 * 40
    assert messages[0] == messages[1]
    assert laid_out == ["gather_helped of the caller"]


def test_a_child_does_not_wait_for_helpers_of_its_parent(tmp_path: Path, laid_out: list[str]) -> None:
    """A fork may come while one works: in the child its count would never fall."""
    with StreamDataset(stream(tmp_path / "data", MmapIO), LENGTH).sync_reader() as reader:
        source = reader.batch_source()  # type: ignore[attr-defined]
        prepared = source.prepare(np.arange(BATCH))
        wanted = source.arrays(prepared, 0, BATCH, np.empty)["token"]
        desk = source.desk
        desk[[WATCHERS, ACTIVE, BUSY]] = [1, 1, 0]
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            status = 1
            try:
                # Where a signal's handler forks, a gather may be about to begin at the desk that it had before.
                if source.desk is not desk or desk.any():
                    os._exit(3)
                found = source.arrays(prepared, 0, BATCH, np.empty)["token"]
                status = 0 if (found == wanted).all() else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        source.desk[[WATCHERS, ACTIVE]] = 0


def test_documents_are_read_with_help(tmp_path: Path, laid_out: list[str]) -> None:
    storage = DocumentStorage(tmp_path, DocumentNumpyFormat({"values": "<i4"}), PosixPreadIO())
    with storage.sync_writer() as writer:
        for number in range(200):
            writer.append(number % 2, {"values": np.arange(number, number + 900, dtype=np.int32)})
    loader = StatefulDataLoader.from_storage(storage, None, local_batch_size=50, prefetch=4, device=torch.device("cpu"))
    with loader:
        for _ in range(300):
            firsts = sorted(int(batch["values"][at]) for batch in loader for at in batch["offsets"][:-1].tolist())
            assert firsts == list(range(200))
            if len(laid_out) > 5:
                break
    assert len(laid_out) > 5


def test_memory_of_batches_is_used_again_but_not_while_they_live(tmp_path: Path) -> None:
    dataset = StreamDataset(stream(tmp_path / "data", MmapIO), LENGTH)
    for collate in (None, lambda samples: [sample["token"] for sample in samples]):
        with StatefulDataLoader(dataset, collate, local_batch_size=BATCH, device=torch.device("cpu")) as loader:
            places: list[set[int]] = []
            for keeps in (False, True):
                kept, found = [], set()
                for batch in loader:
                    rows = batch["token"].numpy() if collate is None else batch[0]
                    found.add(rows.__array_interface__["data"][0])
                    assert any(shelf.loans for shelf in loader._opened.memory._shelves.values())  # type: ignore[union-attr]
                    if keeps:
                        kept.append((np.array(rows, copy=True), rows))
                    del batch, rows
                places.append(found)
                assert all(np.array_equal(copy, rows) for copy, rows in kept)
                del kept
                gc.collect()
            assert len(places[0]) <= 4
            assert len(places[1]) == WINDOWS // BATCH
