"""More files than may be open, and threads that read side by side: none loses a file that it is reading."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from guideloom._read.files import BackendFileSet, MappedFileSet
from guideloom._read.fileset import FileTable
from guideloom._read.requests import Spread
from guideloom.errors import NotOpenError

SIZE = 8


class Files:
    """A file set over files of ``SIZE`` bytes, each its number.

    The first read of each of ``gated`` says that it has begun, and waits in the gate.
    """

    def __init__(self, capacity: int, num_files: int, gated: Iterable[int]) -> None:
        self.gated = set(gated)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.opened: list[int] = []
        self.most_open = 0
        table = FileTable(
            [PurePath(str(file)) for file in range(num_files)], np.full(num_files, SIZE), np.arange(num_files)
        )
        self.files: Any = BackendFileSet(table, capacity, lambda path: Reader(self, int(path.name)))

    def read(self, *files: int) -> list[int]:
        """Read the first byte of each of ``files`` in one gather."""
        n = len(files)
        out = np.full(n, 255, np.uint8)
        self.files.gather(np.array(files), np.zeros(n, np.int64), np.arange(n), np.ones(n, np.int64), 0, n, out)
        return out.tolist()


class Reader:
    """Reads one of the files."""

    concurrent_reads = True

    def __init__(self, of: Files, number: int) -> None:
        self.of, self.number = of, number

    def open(self) -> None:
        self.of.opened.append(self.number)
        self.of.most_open = max(self.of.most_open, len(self.of.opened))

    def close(self) -> None:
        self.of.opened.remove(self.number)

    def read(self, offset: int, size: int) -> bytes:
        if self.number in self.of.gated:
            self.of.gated.remove(self.number)
            self.of.entered.release()
            assert self.of.gate.wait(60)
        assert self.number in self.of.opened, "closed while it was read"
        return bytes([self.number]) * size


@pytest.mark.parametrize("capacity", [2, 3, 16])
def test_a_file_that_another_thread_reads_stays_open(capacity: int) -> None:
    """Though it is the one that was used least recently."""
    world = Files(capacity, num_files=capacity + 2, gated=[0])
    others = list(range(1, capacity + 2))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(world.read(0)))
    thread.start()
    try:
        assert world.entered.acquire(timeout=60)
        assert world.read(0) == [0], "another reader of it comes and goes"
        for _ in range(2):
            assert world.read(*others) == others
            assert 0 in world.opened, "it is being read"
            assert len(world.opened) == capacity
    finally:
        world.gate.set()
        thread.join()
    assert found == [[0]]
    # Who is done with it does not keep it open.
    assert world.read(*others) == others
    assert 0 not in world.opened and len(world.opened) == capacity
    world.files.close()
    assert world.opened == []


def test_who_finds_no_room_waits_until_another_thread_is_done() -> None:
    world = Files(capacity=1, num_files=2, gated=[0])
    waits = threading.Event()
    wait = world.files._room.wait

    def wait_and_say() -> None:
        waits.set()
        assert wait(60), "nobody said that there is room"

    world.files._room.wait = wait_and_say
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(world.read, 0)
        assert world.entered.acquire(timeout=60)
        second = threads.submit(world.read, 1)
        try:
            assert waits.wait(60)
            assert world.opened == [0]
        finally:
            world.gate.set()
        assert (first.result(), second.result()) == ([0], [1])
    assert world.opened == [1] and world.most_open == 1


def test_what_is_open_beyond_the_capacity_is_closed_again() -> None:
    """Who keeps a file open already cannot wait for room: two such threads would wait for each other."""
    world = Files(capacity=16, num_files=17, gated=range(15))
    with ThreadPoolExecutor(8) as threads:
        held = [*((file, file + 1) for file in range(0, 14, 2)), (14,)]
        reads = [threads.submit(world.read, *files) for files in held]
        try:
            for _ in held:
                assert world.entered.acquire(timeout=60)
            assert sorted(world.opened) == list(range(15))
            assert world.read(15, 16) == [15, 16]
            assert world.most_open == 17
            assert len(world.opened) == 16
            assert set(range(15)) < set(world.opened), "those are being read"
            assert world.read(16, 15) == [16, 15], "also what was closed"
        finally:
            world.gate.set()
        assert [read.result() for read in reads] == [list(files) for files in held]


@pytest.mark.parametrize("capacity", [1, 2])
def test_who_closes_leaves_a_file_to_the_read_that_uses_it(capacity: int) -> None:
    world = Files(capacity, num_files=2, gated=[0])
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(world.read, 0)
        try:
            assert world.entered.acquire(timeout=60)
            world.files.close()
            assert world.opened == [0]
            with pytest.raises(NotOpenError, match="this reader is closed"):
                world.read(1)
            assert world.opened == [0]
        finally:
            world.gate.set()
        assert reading.result() == [0]
    assert world.opened == []


@pytest.mark.parametrize("use", ["gather", "spread", "ahead"])
def test_files_closed_in_the_midst_of_a_use_are_closed_at_its_end(tmp_path: Path, use: str) -> None:
    """Maps must stay as long as a kernel copies out of them, and no longer."""
    paths = [tmp_path / "0", tmp_path / "1"]
    for path in paths:
        path.write_bytes(bytes(range(SIZE)))
    files = MappedFileSet(FileTable(paths, np.full(2, SIZE), np.arange(2)), 2, read_ahead_bytes=1 << 20)
    files.readahead.cold = use == "ahead"
    open_one, while_used = files._open_one, []

    def open_and_close(file: int) -> tuple[Any, int]:
        opened = open_one(file)
        files.close()
        while_used.append(file)
        return opened

    files._open_one = open_and_close  # type: ignore[method-assign]
    file, src, dst, nbytes = np.array([0, 1]), np.array([2, 4]), np.array([0, 4]), np.array([4, 4])
    if use == "gather":
        out = np.zeros(8, np.uint8)
        files.gather(file, src, dst, nbytes, 0, 2, out)
        assert out.tolist() == [2, 3, 4, 5, 4, 5, 6, 7]
    elif use == "spread":
        wide = np.dtype("<i8")
        column = np.zeros((2, 4), wide)
        files.spread(Spread(file, src, dst, nbytes, 0, 2, np.dtype("u1"), [wide], [column]))
        assert column.tolist() == [[2, 3, 4, 5], [4, 5, 6, 7]]
    else:
        files.ahead(file, src, nbytes, 0, 2)
    assert sorted(while_used) == [0, 1]
    assert files.num_open == 0
