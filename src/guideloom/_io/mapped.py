"""The mapping backend: a read-only map a file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import PurePath

from guideloom._base.interrupts import open_descriptor
from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract
from guideloom._io.checks import READ_AHEAD_BYTES, check_range, check_read_ahead, not_open, short_read
from guideloom._io.threaded import ThreadedAsyncReader


def map_file(path: str | os.PathLike[str]) -> tuple[mmap.mmap | None, int]:
    """Map a whole file read-only; returns the map (None for an empty file) and the size in bytes."""
    fd = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        return (mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else None), size
    finally:
        os.close(fd)


class MmapReader(IOSyncReaderAbstract):
    """One mapped file; a read is a read-only view of the map and stays valid after ``close``."""

    concurrent_reads = True

    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._view: memoryview | None = None

    def open(self) -> None:
        mapped, _ = map_file(self._path)
        self._view = memoryview(mapped if mapped is not None else b"")

    def close(self) -> None:
        # The map itself goes when the last view of it goes: closing it under a live view would be an error.
        self._view = None

    def filesize(self) -> int:
        if self._view is None:
            raise not_open(self._path)
        return len(self._view)

    def read(self, offset: int, size: int) -> memoryview:
        check_range(self._path, offset, size)
        view = self._view
        if view is None:
            raise not_open(self._path)
        if offset + size > len(view):
            raise short_read(self._path, offset, size, max(0, len(view) - offset))
        return view[offset : offset + size]


class MmapIO(IOReaderAbstract):
    """Maps each file read-only.

    The fastest on data in the page cache of a local disk. A file that another program *shrinks* while it is mapped
    kills the process with SIGBUS when the lost part is touched; :class:`PosixPreadIO` gives an error instead. Pages in
    the cache count in the process's resident memory: that is not a leak.

    Parameters
    ----------
    read_ahead_bytes : int, default 64 MiB
        Most bytes of the batches to come that the system is asked to fetch ahead, in at most 256 reads, while reads
        wait for storage; nothing is asked for while they find all in the page cache. 0: never ask.

    Raises
    ------
    ArgumentError
        When ``read_ahead_bytes`` is no integer of at least 0.
    """

    read_ahead_bytes: int = READ_AHEAD_BYTES  # of the class, for subclasses whose ``__init__`` does not call this one

    def __init__(self, *, read_ahead_bytes: int = READ_AHEAD_BYTES) -> None:
        self.read_ahead_bytes = check_read_ahead(read_ahead_bytes)

    @staticmethod
    def is_supported() -> bool:
        """Whether this backend works here."""
        return hasattr(mmap, "ACCESS_READ")

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return MmapReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return lambda path: ThreadedAsyncReader(MmapReader(path))

    def __repr__(self) -> str:
        return f"MmapIO(read_ahead_bytes={self.read_ahead_bytes})"
