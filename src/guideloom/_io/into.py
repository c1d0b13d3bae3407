"""Readers that fill a buffer: ``read`` is ``read_into`` a new one."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import PurePath

from guideloom._base.protocols import IOSyncReaderAbstract
from guideloom._io.checks import check_range, short_read

CHECK_SIZE_FROM_BYTES = 1 << 20
"""From here on a read asks for the file's size before it allocates, so that a wild size is an error."""


class IntoReader(IOSyncReaderAbstract):
    """A reader of the file at ``path``; any number of threads may read at once."""

    concurrent_reads = True

    def __init__(self, path: PurePath) -> None:
        self._path = path

    def read(self, offset: int, size: int) -> bytearray:
        check_range(self._path, offset, size)
        if size >= CHECK_SIZE_FROM_BYTES and offset + size > self.filesize():
            raise short_read(self._path, offset, size, max(0, self.filesize() - offset))
        out = bytearray(size)
        self.read_into(offset, memoryview(out))
        return out

    @abstractmethod
    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` with the bytes from ``offset`` on, whole, or raise."""
