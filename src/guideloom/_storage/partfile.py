"""A file that a writer is filling: buffered, checksummed block by block, with few open descriptors."""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO

import xxhash

from guideloom._storage import disk
from guideloom._storage.names import BLOCK_BYTES
from guideloom._storage.record import FileEntry

MAX_OPEN_FILES = 32
_KEPT_BUFFER_BYTES = 1 << 20
# The device writes while the next records are packed, in pieces of this size: smaller ones would leave files that are
# written in turn in many fragments on disk.
_START_BYTES = 4 << 20


class Descriptors:
    """Open descriptors of temporary files, the least recently used closed first.

    A writer may have thousands of shards; a process often has 256 descriptors.
    """

    def __init__(self, capacity: int = MAX_OPEN_FILES) -> None:
        self._capacity = capacity
        self._open: OrderedDict[str, int] = OrderedDict()
        self._failed: dict[str, OSError] = {}

    def get(self, path: str, exists: bool) -> int:
        """Descriptor to write to ``path``, which is created unless it exists."""
        self._check(path)
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        if len(self._open) >= self._capacity:
            oldest = next(iter(self._open))
            try:
                disk.close(self._open, oldest)
            except OSError as error:
                # It is the data of that file which may be lost, not those to be written now: its next use raises this.
                self._failed[oldest] = error
        descriptor = disk.reopen(path) if exists else disk.create(path)
        self._open[path] = descriptor
        return descriptor

    def release(self, path: str) -> None:
        """Close the descriptor of ``path``, if it is open.

        Raises
        ------
        OSError
            Now, or when it was closed to make room for another: what was written may be lost.
        """
        self._check(path)
        if path in self._open:
            disk.close(self._open, path)

    def forget(self, path: str) -> None:
        """Close the descriptor of a file that is given up."""
        self._failed.pop(path, None)
        if path in self._open:
            with contextlib.suppress(OSError):
                disk.close(self._open, path)

    def close(self) -> None:
        """Close all, of files that are given up or released."""
        for path in list(self._open):
            self.forget(path)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Of a writer that was dropped, or whose end was interrupted. When the interpreter ends, what this calls may be
        # gone, and the system closes them.
        if not finalizing():
            with contextlib.suppress(OSError, AttributeError):
                self.close()

    def _check(self, path: str) -> None:
        if path in self._failed:
            raise self._failed[path]


class PartFile:
    """One data file of an uncommitted part.

    ``buffer`` is written to by the caller, and its position says how much it holds; :meth:`flush` and :meth:`write`
    either take effect whole or leave the file's content as it was (a failed write's bytes lie beyond ``flushed``, and
    are overwritten or cut off).

    Parameters
    ----------
    path : str
        Temporary name; created at the first flush.
    descriptors : Descriptors
    """

    __slots__ = ("_descriptors", "_exists", "_fill", "_hash", "buffer", "flushed", "path", "sums")

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        # A BytesIO keeps its memory from flush to flush. A bytearray would grow anew, and copy its content as it grows.
        self.buffer = BytesIO()
        self.flushed = 0
        self.sums = array("Q")
        self._descriptors = descriptors
        self._exists = False
        self._fill = 0
        self._hash = xxhash.xxh3_64()

    @property
    def pending(self) -> int:
        """Bytes in the buffer."""
        return self.buffer.tell()

    @property
    def size(self) -> int:
        """Bytes in the file and in the buffer."""
        return self.flushed + self.pending

    def flush(self) -> None:
        """Write the buffer out."""
        pending = self.pending
        if pending or not self._exists:
            with self.buffer.getbuffer() as view, view[:pending] as data:
                self._put(data)
            if pending > _KEPT_BUFFER_BYTES:
                self.drop_buffer()
            self.buffer.seek(0)

    def drop_buffer(self) -> None:
        """Give the memory of a buffer back that was just written out."""
        self.buffer = BytesIO()

    def write(self, data: memoryview) -> None:
        """Write bytes behind the buffer, without a copy."""
        self.flush()
        self._put(data)

    def entry(self) -> FileEntry:
        """What a commit record says of the file, all of which must be flushed."""
        sums = self.sums[:]
        if self._fill:
            sums.append(self._hash.intdigest())
        if sys.byteorder == "big":
            sums.byteswap()
        return FileEntry(self.flushed, sums.tobytes())

    def finish(self) -> None:
        """Make the flushed file durable; may run in another thread than the writer's."""
        disk.finish_file(self.path, self.flushed)

    def release(self) -> None:
        """Close the file's descriptor."""
        self._descriptors.release(self.path)

    def rename(self, path: str) -> None:
        """Give the finished file its final name."""
        disk.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        """Remove the file."""
        self._descriptors.forget(self.path)
        if self._exists:
            disk.unlink(self.path)
            self._exists = False

    def _put(self, data: memoryview) -> None:
        descriptor = self._descriptors.get(self.path, self._exists)
        self._exists = True
        disk.write_at(descriptor, data, self.flushed, self.path)
        place, size = 0, data.nbytes
        while place < size:
            end = min(size, place + BLOCK_BYTES - self._fill)
            if end - place == BLOCK_BYTES:
                self.sums.append(xxhash.xxh3_64_intdigest(data[place:end]))
            else:
                self._hash.update(data[place:end])
                self._fill += end - place
                if self._fill == BLOCK_BYTES:
                    self.sums.append(self._hash.intdigest())
                    self._hash.reset()
                    self._fill = 0
            place = end
        begin, end = self.flushed // _START_BYTES, (self.flushed + size) // _START_BYTES
        self.flushed += size
        if begin != end:
            disk.start_writing(descriptor, begin * _START_BYTES, (end - begin) * _START_BYTES)
