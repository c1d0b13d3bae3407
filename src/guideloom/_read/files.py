"""The file set of each backend: compiled gathers for ours, the documented methods for a user's own."""

from __future__ import annotations

import inspect
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import CorruptDataError, GuideLoomError, OutOfRangeError
from guideloom._base.interrupts import open_descriptor
from guideloom._base.locks import new_lock
from guideloom._base.protocols import IOReaderAbstract, IOSyncReaderAbstract
from guideloom._io.mapped import MmapIO, map_file
from guideloom._io.pread import PosixPreadIO, advise_random
from guideloom._io.seek import SeekIO, fill
from guideloom._kernels.columns import copy_code, spread_mapped
from guideloom._kernels.desk import gather_helped, new_desk
from guideloom._kernels.gather import (
    advise_files,
    advise_maps,
    gather_mapped,
    gather_pread,
    new_status,
    populate_cached,
)
from guideloom._kernels.status import DONE, NOT_OPEN, WATCHERS
from guideloom._read.fileset import FileSet, FileTable, PooledFileSet, default_capacity
from guideloom._read.requests import Spread

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


MAX_POPULATED_BYTES = 4 << 30
"""Most bytes of maps whose page tables are filled when they are opened, for what is in the page cache (2 MiB a GiB).

To ask what is there takes 10 ms a GiB, also where it is little. So what was looked at counts, and counts again for a
map that was made anew: of large data sets maps come and go with each batch.
"""


class PreadFileSet(PooledFileSet[int]):
    """Descriptors and the compiled ``pread`` gather."""

    def __init__(self, table: FileTable, capacity: int, read_ahead_bytes: int = 0, *, advice: bool = False) -> None:
        super().__init__(table, capacity, read_ahead_bytes)
        self.desk = new_desk()
        self._advice = advice

    def _open_one(self, file: int) -> tuple[int, int]:
        try:
            fd = open_descriptor(self.table.paths[file], os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self.table.missing(file) from error
        try:
            self.table.check_size(file, os.fstat(fd).st_size)
            if self._advice:
                advise_random(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd, fd

    def _close_one(self, handle: int) -> None:
        os.close(handle)

    def _close_files(self, files: list[int]) -> None:
        # In one go within C: an interrupt finds each descriptor closed, or kept.
        deque(map(os.close, map(self._handles.pop, files)), maxlen=0)

    def _forget(self) -> None:
        # The child's own copies; reads do not move a place in the file that it would share with the parent.
        with suppress(OSError):
            self._close_files(list(self._handles))
        super()._forget()

    def __del__(self) -> None:
        # Of a reader that nobody closed, or whose close was interrupted.
        with suppress(OSError, AttributeError):  # It may not have been made to its end.
            self._close_files(list(self._handles))

    def _advise(self, file: I64, src: I64, nbytes: I64, lo: int, hi: int) -> None:
        if hasattr(os, "posix_fadvise"):
            self._open_ahead(file[lo:hi])
            self.readahead.note_asked(advise_files(self.values, file, src, nbytes, lo, hi, new_status()))

    def _gather_open(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> int:
        status = new_status(self.readahead.due())
        values, desk = self.values, self.desk
        if desk[WATCHERS]:
            stopped = gather_helped.run(desk, False, values, values, file, src, dst, nbytes, lo, hi, out, shift, status)
        else:
            stopped = gather_pread.run(values, file, src, dst, nbytes, lo, hi, out, shift, status)
        if stopped < 0:
            self._note_done(stopped, hi - lo, status)
        elif status[0] != NOT_OPEN:
            self._raise(status, stopped, file, src, nbytes)
        return int(stopped)


class MappedFileSet(PooledFileSet[Any]):
    """Maps and the compiled ``memcpy`` gather."""

    def __init__(self, table: FileTable, capacity: int, read_ahead_bytes: int = 0) -> None:
        super().__init__(table, capacity, read_ahead_bytes)
        self.desk = new_desk()
        self._looked_at = 0
        # As floats, which do not wrap around.
        self._opens_all = len(table.paths) <= capacity and table.sizes.sum(dtype=np.float64) <= MAX_POPULATED_BYTES

    def _open_one(self, file: int) -> tuple[Any, int]:
        try:
            mapped, size = map_file(self.table.paths[file])
        except FileNotFoundError as error:
            raise self.table.missing(file) from error
        self.table.check_size(file, size)
        if mapped is None:
            return None, 0
        if hasattr(mmap, "MADV_RANDOM"):
            # A fault in the middle of a shuffle must not read 128 KiB around it; what comes next is asked for by us.
            mapped.madvise(mmap.MADV_RANDOM)
        view = np.frombuffer(mapped, np.uint8)
        address = int(view.__array_interface__["data"][0])
        if sys.platform == "linux" and self._looked_at + size <= MAX_POPULATED_BYTES:
            self._looked_at += size
            populate_cached(address, size)
        return (mapped, view), address

    def _ensure(self, file: int) -> None:
        super()._ensure(file)
        if self._opens_all:
            # Filling page tables takes milliseconds a file: all of it in the first batch, not some in each of several.
            self._opens_all = False
            for other in range(self.values.size):
                with suppress(OSError, GuideLoomError):  # It is raised when that file is read.
                    super()._ensure(other)

    def spread(self, request: Spread) -> None:
        """Gather records straight into columns, where a kernel knows how to copy each field."""
        dtype = request.dtype
        sources = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
        codes = [copy_code(source, field) for source, field in zip(sources, request.fields, strict=True)]
        if None in codes or self.values.size > self.capacity or self.checker is not None:
            super().spread(request)
            return
        offsets = [0] if dtype.names is None else [dtype.fields[name][1] for name in dtype.names]  # type: ignore[index]
        fields = np.array(
            [
                codes,
                offsets,
                [field.itemsize for field in request.fields],
                [column.__array_interface__["data"][0] for column in request.columns],
            ],
            np.int64,
        )
        room = request.columns[0].shape[0] * request.columns[0].shape[1]
        status = new_status()
        lo = request.lo
        user = object()
        try:
            self._enter(user)
            if not request.asked and (self.readahead.cold or self.readahead.untried):
                self._advise(request.file, request.src, request.nbytes, lo, request.hi)
            while True:
                stopped = int(
                    spread_mapped(
                        self.values, self.table.sizes, request.file, request.src, request.dst, request.nbytes,
                        lo, request.hi, dtype.itemsize, fields, room, request.shift, status,
                    )
                )  # fmt: skip
                if stopped < 0:
                    self._note_done(stopped, request.hi - lo, status)
                    return
                if status[0] != NOT_OPEN:
                    self._raise(status, stopped, request.file, request.src, request.nbytes)
                self._ensure(int(request.file[stopped]))
                lo = stopped
        finally:
            self._users.discard(user)
            self._left()

    def _advise(self, file: I64, src: I64, nbytes: I64, lo: int, hi: int) -> None:
        self._open_ahead(file[lo:hi])
        self.readahead.note_asked(advise_maps(self.values, self.table.sizes, file, src, nbytes, lo, hi, new_status()))

    def _close_one(self, handle: Any) -> None:
        # Views first; the map is closed by the collector when nothing refers to it, which is now.
        del handle

    def _gather_open(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> int:
        status = new_status(self.readahead.due())
        values, sizes, desk = self.values, self.table.sizes, self.desk
        if desk[WATCHERS]:
            stopped = gather_helped.run(desk, True, values, sizes, file, src, dst, nbytes, lo, hi, out, shift, status)
        else:
            stopped = gather_mapped.run(values, sizes, file, src, dst, nbytes, lo, hi, out, shift, status)
        if stopped < 0:
            self._note_done(stopped, hi - lo, status)
        elif status[0] != NOT_OPEN:
            self._raise(status, stopped, file, src, nbytes)
        return int(stopped)


class SeekFileSet(FileSet):
    """Opens each file of a batch once, seeks and reads; keeps nothing open."""

    def _gather(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> None:
        files = file[lo:hi]
        runs = lo + np.argsort(files, kind="stable")
        view = out.data
        columns = zip(
            file[runs].tolist(), src[runs].tolist(), (dst[runs] - shift).tolist(), nbytes[runs].tolist(), strict=True
        )
        handle = None
        current = -1
        try:
            for number, offset, at, size in columns:
                if not size:
                    continue
                if number != current:
                    if handle is not None:
                        handle.close()
                    try:
                        handle = open(self.table.paths[number], "rb", buffering=0)  # noqa: SIM115
                    except FileNotFoundError as error:
                        raise self.table.missing(number) from error
                    current = number
                if at < 0 or at + size > len(view):
                    raise CorruptDataError(
                        "a read lies outside the buffer", path=self.table.paths[number], offset=offset
                    )
                handle.seek(offset)  # type: ignore[union-attr]
                self._fill(handle, view[at : at + size], number, offset)  # type: ignore[arg-type]
        finally:
            if handle is not None:
                handle.close()

    def _fill(self, handle: FileIO, out: memoryview, number: int, offset: int) -> None:
        done = fill(handle, out)
        if done < len(out):
            raise CorruptDataError(
                f"expected {len(out)} bytes, found {done} before the end of the file: "
                "it was shortened after it was committed",
                path=self.table.paths[number],
                shard=int(self.table.shards[number]),
                offset=offset,
            )

    def _release(self) -> None:
        """Nothing is kept open."""

    def _forget(self) -> None:
        """Nothing is kept open."""


class _Entry:
    """A user's reader and the lock that lets one thread at a time into it, unless it allows more."""

    __slots__ = ("lock", "reader")

    def __init__(self, reader: IOSyncReaderAbstract) -> None:
        self.reader = reader
        self.lock = None if lets_several_in(reader) else new_lock()


def lets_several_in(reader: IOSyncReaderAbstract) -> bool:
    """Whether a user's reader says that several threads may call it at once, and open others beside it."""
    # Its own: what passes unknown attributes on to another reader has not said that of itself.
    has_said = inspect.getattr_static(reader, "concurrent_reads", None) is not None
    return has_said and bool(reader.concurrent_reads)


def is_own_error(error: Exception) -> bool:
    """Whether what a backend's read raised says more than that the file ended too early.

    What says no more, one of our own backends' in a user's perhaps, must not get out as the ``IndexError`` that it is:
    that would end the loop of whoever iterates over a reader.
    """
    return isinstance(error, GuideLoomError) and not isinstance(error, OutOfRangeError)


class BackendFileSet(PooledFileSet[_Entry]):
    """A user's own backend, through its documented methods only."""

    def __init__(self, table: FileTable, capacity: int, make: Callable[[PurePath], IOSyncReaderAbstract]) -> None:
        super().__init__(table, capacity)
        self._make = make
        self._opens_many = False  # until a reader says that it lets several threads in
        self._opening: dict[int, threading.Lock] = {}

    def _open_one(self, file: int) -> tuple[_Entry, int]:
        try:
            reader = self._make(self.table.paths[file])
            reader.open()
        except FileNotFoundError as error:
            raise self.table.missing(file) from error
        entry = _Entry(reader)
        self._opens_many = entry.lock is None
        return entry, 0

    def _ensure(self, file: int) -> None:
        with self._pool:
            if self.values[file] >= 0:
                return
            if not self._opens_many:
                self._open_locked(file)
                return
        # Outside of the pool's lock: of a store that takes 100 ms to open a file, a thousand would take a minute and a
        # half, however many threads read. A lock a file, so that none is opened twice.
        with self._opening.setdefault(file, new_lock()):
            if self.values[file] < 0:
                handle, value = self._open_one(file)
                with self._pool:
                    self._handles[file] = handle
                    self.values[file] = value

    def _forget(self) -> None:
        self._opening = {}
        super()._forget()

    def _close_one(self, handle: _Entry) -> None:
        handle.reader.close()

    def _gather_open(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> int:
        view = out.data
        for run in range(lo, hi):
            if not nbytes[run]:
                continue
            number = int(file[run])
            if self.values[number] < 0:
                return run
            entry = self._handles[number]
            at, size = int(dst[run]) - shift, int(nbytes[run])
            if entry.lock is None:
                self._read(entry.reader, number, int(src[run]), view[at : at + size])
            else:
                with entry.lock:
                    self._read(entry.reader, number, int(src[run]), view[at : at + size])
        return DONE

    def _read(self, reader: IOSyncReaderAbstract, number: int, offset: int, out: memoryview) -> None:
        try:
            self._fill(reader, number, offset, out)
        except FileNotFoundError as error:
            # From a reader that opens nothing before it is asked.
            raise self.table.missing(number) from error

    def _fill(self, reader: IOSyncReaderAbstract, number: int, offset: int, out: memoryview) -> None:
        # Of its class: what passes unknown attributes on to another reader would give that one's bytes, not its own.
        if hasattr(type(reader), "read_into"):
            try:
                filled: Any = reader.read_into(offset, out)  # type: ignore[func-returns-value]
            except (ValueError, IndexError) as error:
                if is_own_error(error):
                    raise
                raise self._short(number, offset, len(out), str(error)) from error
            # It has nothing to return; but one that ends in a file's own `readinto` tells its bytes, and must not be
            # believed to have filled the rest.
            if isinstance(filled, int) and filled != len(out):
                raise self._short(number, offset, len(out), f"read_into() filled {filled} bytes")
            return
        data = reader.read(offset, len(out))
        if len(data) != len(out):
            raise self._short(number, offset, len(out), f"read() gave {len(data)} bytes")
        out[:] = data

    def _short(self, number: int, offset: int, size: int, why: str) -> CorruptDataError:
        return CorruptDataError(
            f"the backend could not give {size} bytes: {why}",
            path=self.table.paths[number],
            shard=int(self.table.shards[number]),
            offset=offset,
        )


def open_file_set(backend: IOReaderAbstract, table: FileTable, capacity: int | None = None) -> FileSet:
    """Return the file set for a backend: a compiled one for ours, the documented methods for any other."""
    size = default_capacity() if capacity is None else capacity
    # Exactly our classes: what a subclass changes must be heard.
    if type(backend) is PosixPreadIO:
        return PreadFileSet(table, size, backend.read_ahead_bytes, advice=backend.advice)
    if type(backend) is MmapIO:
        return MappedFileSet(table, size, backend.read_ahead_bytes)
    if type(backend) is SeekIO:
        return SeekFileSet(table)
    return BackendFileSet(table, size, backend.sync_reader())


def is_own_backend(backend: IOReaderAbstract) -> bool:
    """Whether GuideLoom may list the folder and use its compiled gathers: exactly our classes, no subclass."""
    return type(backend) in (PosixPreadIO, MmapIO, SeekIO)
