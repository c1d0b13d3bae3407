"""More files than may be open, and threads that read side by side: none loses a file that it is reading."""

from __future__ import annotations

import threading
from pathlib import PurePath
from typing import Any

import numpy as np
import pytest

from guideloom._read.files import BackendFileSet
from guideloom._read.fileset import FileTable

SIZE = 8


class Files:
    """A file set over ``num_files`` files of ``SIZE`` bytes, each its number; a read of file 0 waits in the gate."""

    def __init__(self, capacity: int, num_files: int) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.opened: list[int] = []
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

    def __init__(self, of: Files, number: int) -> None:
        self.of, self.number = of, number

    def open(self) -> None:
        self.of.opened.append(self.number)

    def close(self) -> None:
        self.of.opened.remove(self.number)

    def read(self, offset: int, size: int) -> bytes:
        if self.number == 0:
            self.of.entered.set()
            assert self.of.gate.wait(60)
        assert self.number in self.of.opened, "closed while it was read"
        return bytes([self.number]) * size


@pytest.mark.parametrize("capacity", [2, 3, 16])
def test_a_file_that_another_thread_reads_stays_open(capacity: int) -> None:
    """Though it is the one that was used least recently."""
    world = Files(capacity, num_files=capacity + 2)
    others = list(range(1, capacity + 2))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(world.read(0)))
    thread.start()
    try:
        assert world.entered.wait(60)
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
