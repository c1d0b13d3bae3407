"""Descriptors, maps and threads: few while reading, and none afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guideloom.testing import make_stream
from tests.resources.support import run

pytestmark = pytest.mark.slow

OPENS = """
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
from guideloom.testing import make_documents, make_spans, make_stream

others = len(os.listdir("/proc/self/task")) - threading.active_count()

def settled():
    # A thread that was joined may still be on its way out of the system's list.
    until = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > threading.active_count() + others and time.monotonic() < until:
        os.sched_yield()
    return held()

def read(storage, reader):
    return reader.read(2) if isinstance(storage, DocumentStorage) else reader.read(1, 5)

async def read_async(storage):
    # How many threads a larger pool starts is chance, and with each come maps and memory that the C library keeps.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with storage.async_reader() as reader:
        await read(storage, reader)

if __name__ == "__main__":
    storages = [
        make_stream(folder / "stream", [3, 0, 4]),
        make_documents(folder / "documents", [3, 0, 4]),
        make_spans(folder / "spans", [[1, 2], [], [4]]),
    ]
    found = {}
    for name in sys.argv[2:]:
        for storage in storages:
            storage.read_interface = backend(name)()
        found[name] = []
        for number in range(2001):
            storage = storages[number % 3]
            with storage.sync_reader() as reader:
                read(storage, reader)
            if number % 200 == 0:
                asyncio.run(read_async(storage))
            if number in (200, 2000):
                del reader
                found[name].append((anonymous_kib(), settled()))
    print(json.dumps(found))
"""


def test_2000_opens_and_closes(tmp_path: Path) -> None:
    """Of the three kinds in turn."""
    found = run(OPENS, tmp_path / "data", "SeekIO", "PosixPreadIO", "MmapIO", "MinimalBackend")
    for backend, ((early, few), (late, many)) in found.items():
        # The allocator may move a boundary of its own; a map for each open would be a thousand, 2 KiB of
        # memory for each 3,600.
        assert many == {**few, "maps": many["maps"]} and many["maps"] - few["maps"] < 8, backend
        assert late - early < 3000, (backend, early, late)


SHARDS = """
import multiprocessing
import resource

def held_of_the_data():
    # Libraries that are loaded meanwhile have maps of their own.
    return {**held(), "maps": Path("/proc/self/maps").read_text().count(str(folder))}

if __name__ == "__main__":
    gc.disable()  # what is closed must be closed by whoever is done with it
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    # From here on Python holds what it needs to start processes.
    first = multiprocessing.Process(target=int)
    first.start()
    first.join()
    first.close()
    found = []
    for name, way in (
        ("SeekIO", {}), ("PosixPreadIO", {}), ("MmapIO", {}), ("MinimalBackend", {}),
        ("PosixPreadIO", {"parallel_method": "process"}),
    ):
        storage = StreamStorage(folder, IdStreamFormat("<i4"), read_interface=backend(name)())
        before, seen = held_of_the_data(), []
        most = before
        with StatefulDataLoader(
            StreamDataset(storage, 2), None, local_batch_size=64, shuffle=True, shuffle_seed=1, device="cpu",
            drop_last=False, num_workers=2, prefetch=4, **way
        ) as loader:
            for batch in loader:
                seen += batch.reshape(-1).tolist()
                most = {name: max(most[name], number) for name, number in held_of_the_data().items()}
        assert sorted(seen) == list(range(6000))
        found.append((name, before, most, held_of_the_data()))
    print(json.dumps(found))
"""


EPOCHS = """
from guideloom.testing import make_stream

if __name__ == "__main__":
    gc.disable()
    dataset = StreamDataset(make_stream(folder, [20], "<i4", read_interface=backend("PosixPreadIO")()), 2)
    found = []
    for way in ({}, {"num_workers": 2, "prefetch": 4}, {"num_workers": 2, "prefetch": 4, "parallel_method": "process"}):
        for epochs in (1, 6):
            with StatefulDataLoader(dataset, None, device="cpu", **way) as loader:
                for epoch in range(epochs):
                    assert sum(1 for _ in loader) == 10
                next(iter(loader))
            found.append(held()["descriptors"])
    print(json.dumps([found, threading.active_count()]))
"""


def test_epochs_leave_no_descriptor_to_the_collector(tmp_path: Path) -> None:
    """The collector may not run for hours where batches are few and large."""
    found, threads = run(EPOCHS, tmp_path / "data")
    assert found[0::2] == found[1::2] and threads == 1


def test_3000_shards_with_256_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        make_stream(tmp_path / "data", [2] * 3000, "<i4")
    for backend, before, most, after in run(SHARDS, tmp_path / "data"):
        assert most["descriptors"] < 200 and most["maps"] < 200, (backend, most)
        assert (most["maps"] > 0) is (backend == "MmapIO")
        for name in ("descriptors", "maps", "threads"):
            assert after[name] == before[name], (backend, name)
