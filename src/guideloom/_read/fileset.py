"""Sets of open files: bounded, shared by threads, read in batches; what all backends share.

A *file set* knows a data set's files by number. ``gather`` executes the runs of a plan: it opens what is not open,
keeps at most ``capacity`` files open, and turns what goes wrong into an error with path, shard and offset.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import CorruptDataError, GuideLoomError, MissingShardError, NotOpenError
from guideloom._base.locks import new_lock
from guideloom._kernels.desk import NO_DESK
from guideloom._kernels.status import BAD_RANGE, BLOCKS, FAILED, SHORT, WAITED, WAITS
from guideloom._read.readahead import Readahead
from guideloom._read.requests import Gather, Spread
from guideloom._storage.blocks import BlockChecker

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
HandleT = TypeVar("HandleT")

MAX_OPEN_FILES = 1024
"""Most files one reader keeps open, when the process may open that many."""


def default_capacity() -> int:
    """How many files one reader may keep open: a quarter of what the process may open, at most ``MAX_OPEN_FILES``."""
    try:
        import resource
    except ImportError:
        return 128
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else max(8, min(MAX_OPEN_FILES, soft // 4))


class FileTable:
    """Names, sizes and shards of a data set's files, for opening them and for messages.

    Parameters
    ----------
    paths : sequence of PurePath, length F
    sizes : int64[F]
        Bytes, as committed.
    shards : int64[F]
    """

    def __init__(self, paths: Sequence[PurePath], sizes: I64, shards: I64) -> None:
        self.paths = paths
        self.sizes = np.ascontiguousarray(sizes, np.int64)
        self.shards = shards

    def check_size(self, file: int, found: int) -> None:
        """Refuse a file whose size is no longer the committed one."""
        expected = int(self.sizes[file])
        if found != expected:
            raise CorruptDataError(
                f"expected a file of {expected} bytes, as its commit record says, found {found}: "
                "the file was changed after it was committed; restore it, or write the shard anew",
                path=self.paths[file],
                shard=int(self.shards[file]),
                offset=min(found, expected),
            )

    def missing(self, file: int) -> MissingShardError:
        """Return the error for a file that is gone."""
        return MissingShardError(
            "a file of a committed shard is gone: restore it, or write the shard anew with mode='overwrite'",
            path=self.paths[file],
            shard=int(self.shards[file]),
        )


class FileSet(ABC):
    """Files that ``gather`` reads from; any number of threads may call it at once.

    ``close`` is safe at any time: files that a gather still uses are closed by the last one to finish.
    """

    def __init__(self, table: FileTable, read_ahead_bytes: int = 0) -> None:
        self.table = table
        # One entry for each gather under way. Sets grow and shrink atomically, and a gather is counted before it looks
        # whether the set is closed: so either it sees that, or who closes sees it.
        self._users: set[object] = set()
        self._closed = False
        _ALL.add(self)
        self.readahead = Readahead(read_ahead_bytes)
        self.checker: BlockChecker | None = None  # set by whoever opened the data set, before the first gather
        self.desk = NO_DESK  # where gathers are laid out for threads that wait; here none ever is

    def gather(
        self,
        file: I64,
        src: I64,
        dst: I64,
        nbytes: I64,
        lo: int,
        hi: int,
        out: U8,
        shift: int = 0,
        asked: bool = False,
    ) -> None:
        """Fill ``out`` with runs: ``out[dst[r] - shift:][:nbytes[r]]`` is ``file[r]`` from ``src[r]``, r in [lo, hi).

        Parameters
        ----------
        file, src, dst, nbytes : int64[R], C-contiguous
        lo, hi : int
            Half-open range of runs.
        out : uint8[M], C-contiguous
            Owned by the caller; every byte of every run is written, or an error is raised.
        shift : int
            Subtracted from ``dst``.
        asked : bool
            Whether these bytes were asked for ahead, with ``ahead``.
        """
        user = object()
        try:
            self._enter(user)
            if not asked and (self.readahead.cold or self.readahead.untried):
                self._advise(file, src, nbytes, lo, hi)
            if self.checker is not None:
                self.checker.check_ranges(file, src, nbytes, lo, hi)
            self._gather(file, src, dst, nbytes, lo, hi, out, shift)
        finally:
            self._users.discard(user)
            self._left()

    def ahead(self, file: I64, src: I64, nbytes: I64, lo: int, hi: int) -> None:
        """Ask for the bytes of runs that will be gathered soon; does nothing where reads do not wait."""
        if self.readahead.cold:
            user = object()
            try:
                self._enter(user)
                self._advise(file, src, nbytes, lo, hi)
            finally:
                self._users.discard(user)
                self._left()

    def _advise(self, file: I64, src: I64, nbytes: I64, lo: int, hi: int) -> None:  # noqa: B027
        """Pass the advice on, where the backend has a way to."""

    def execute(self, request: Gather | Spread) -> None:
        """Do what an operation requests."""
        if isinstance(request, Gather):
            g = request
            self.gather(g.file, g.src, g.dst, g.nbytes, g.lo, g.hi, g.out, g.shift, g.asked)
        else:
            self.spread(request)

    def spread(self, request: Spread) -> None:
        """Read records and take them apart into columns; by default through a buffer of records."""
        rows = request.scratch()
        self.execute(request.as_gather(rows))
        request.fill(rows)

    def close(self) -> None:
        """Close the files; a gather after this is a ``RuntimeError``."""
        self._closed = True
        self._left()

    def _enter(self, user: object) -> None:
        """Count a use of the files, until ``user`` is taken out of ``_users`` again.

        Whoever calls this does so in the ``try`` whose ``finally`` does that: an interrupt may strike at any point, and
        a use that nobody ends would keep the files open.
        """
        self._users.add(user)
        if self._closed:
            raise NotOpenError("this reader is closed: open it again, or keep it open while threads read from it")

    def _left(self) -> None:
        if self._closed and not self._users:
            self._release()

    def after_fork(self) -> None:
        """Make the file set usable in the child of a fork."""
        # The parent's threads do not exist here, so neither do their locks nor their use of the files.
        self._users = set()
        # The same one: a signal's handler may fork between a look at the desk and the gather that is laid out there.
        self.desk.fill(0)
        self._forget()
        if self.checker is not None:
            self.checker.forget_threads()

    @abstractmethod
    def _gather(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> None: ...

    @abstractmethod
    def _release(self) -> None:
        """Close everything; several threads may call it, and any number of times."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what the parent of this forked process had open, so that it is opened anew."""


_ALL: weakref.WeakSet[FileSet] = weakref.WeakSet()


def _forget_all() -> None:
    # At once, while the numbers of the parent's descriptors surely are those of its files: a child that becomes a
    # daemon closes them all, and gives the numbers to other files.
    for files in list(_ALL):
        files.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class PooledFileSet(FileSet, Generic[HandleT]):
    """A file set that keeps handles, at most ``capacity``, and evicts the least recently used ones.

    As long as all files fit, a gather takes no lock for them: ``values`` (int64[F], -1 when not open) only ever
    gains entries.
    """

    def __init__(self, table: FileTable, capacity: int, read_ahead_bytes: int = 0) -> None:
        super().__init__(table, read_ahead_bytes)
        self.capacity = max(1, capacity)
        self.values = np.full(len(table.paths), -1, np.int64)
        self._handles: dict[int, HandleT] = {}  # in order of last use
        # Of each file the lists of who keeps it open; emptying a list ends all of its pins, in one step.
        self._pins: dict[int, list[list[int]]] = {}
        # Entered as a lock, not as a condition, whose own code an interrupt could end with the lock held.
        self._pool = new_lock()
        self._room = threading.Condition(self._pool)

    @property
    def num_open(self) -> int:
        """Files open now."""
        return len(self._handles)

    @abstractmethod
    def _open_one(self, file: int) -> tuple[HandleT, int]:
        """Open a file; returns its handle and the value that the gather uses."""

    @abstractmethod
    def _close_one(self, handle: HandleT) -> None: ...

    def _close_files(self, files: list[int]) -> None:
        """Close open files, and forget their handles."""
        for file in files:
            self._close_one(self._handles.pop(file))

    @abstractmethod
    def _gather_open(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> int:
        """Gather; returns a number below 0, or the run whose file is not open; raises for anything else."""

    def _gather(self, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int) -> None:
        if self.values.size <= self.capacity:
            while (stopped := self._gather_open(file, src, dst, nbytes, lo, hi, out, shift)) >= 0:
                self._ensure(int(file[stopped]))
                lo = stopped
            return
        while lo < hi:
            # Runs on few files at a time, so that several threads go on side by side within the capacity.
            wanted: dict[int, None] = {}
            end = lo
            for end in range(lo, hi):
                number = int(file[end])
                if not nbytes[end]:
                    continue
                if number not in wanted and len(wanted) >= max(1, self.capacity // 8):
                    break
                wanted[number] = None
            else:
                end = hi
            pinned: list[int] = []
            try:
                for number in sorted(wanted):
                    self._pin(number, pinned)
                stopped = self._gather_open(file, src, dst, nbytes, lo, end, out, shift)
                if stopped >= 0:
                    raise RuntimeError(f"file {int(file[stopped])} was evicted while pinned")
            finally:
                pinned.clear()
                self._unpinned()
            lo = end

    def _open_ahead(self, file: I64) -> None:
        """Open the files of runs, if all fit: of a file that is not open nothing can be asked for."""
        if self.values.size > self.capacity:
            return
        unopened = file[self.values[file] < 0]
        if unopened.size:
            for number in np.unique(unopened).tolist():
                with suppress(OSError, GuideLoomError):  # It is raised where that file is read.
                    self._ensure(number)

    def _ensure(self, file: int) -> None:
        with self._pool:
            if self.values[file] < 0:
                self._open_locked(file)

    def _open_locked(self, file: int) -> None:
        handle, value = self._open_one(file)
        self._handles[file] = handle
        self.values[file] = value

    def _pin(self, file: int, pinned: list[int]) -> None:
        """Open ``file``, keep it open, and add it to ``pinned``; waits for room only when that is empty.

        Else two threads that hold pins could wait for each other.
        """
        with self._pool:
            while True:
                if self.values[file] >= 0:
                    self._handles[file] = self._handles.pop(file)
                    break
                if len(self._handles) >= self.capacity:
                    victim = self._victim()
                    if victim is not None:
                        self.values[victim] = -1
                        self._close_files([victim])
                        continue
                    if not pinned:
                        self._room.wait()
                        continue
                    # Over capacity by what the other threads hold: bounded by threads * capacity / 8.
                self._open_locked(file)
                break
            others = list(filter(None, self._pins.get(file, ())))
            self._pins[file] = [*others, pinned]
            pinned.append(file)

    def _victim(self) -> int | None:
        return next((file for file in self._handles if not any(self._pins.get(file, ()))), None)

    def _unpinned(self) -> None:
        with self._pool:
            self._close_beyond_capacity()
            self._room.notify_all()

    def _close_beyond_capacity(self) -> None:
        while len(self._handles) > self.capacity:
            victim = self._victim()
            if victim is None:
                break
            self.values[victim] = -1
            self._close_files([victim])

    def _release(self) -> None:
        with self._pool:
            self.values.fill(-1)
            self._close_files(list(self._handles))

    def _forget(self) -> None:
        self._pool = new_lock()
        self._room = threading.Condition(self._pool)
        self._pins = {}
        self._handles = {}
        self.values.fill(-1)

    def _note_done(self, done: int, runs: int, status: I64) -> None:
        """Take note of a gather that a kernel did."""
        if done == WAITED or self.readahead.cold or self.readahead.untried:
            self.readahead.note(runs, int(status[BLOCKS]), int(status[WAITS]))

    def _raise(self, status: I64, run: int, file: I64, src: I64, nbytes: I64) -> None:
        """Turn a kernel's status into an error."""
        number = int(file[run])
        path, shard, offset = self.table.paths[number], int(self.table.shards[number]), int(src[run])
        size = int(nbytes[run])
        if status[0] == FAILED:
            code = int(status[1])
            raise OSError(code, f"reading {size} bytes at byte offset {offset} failed: {os.strerror(code)}", str(path))
        if status[0] == SHORT:
            raise CorruptDataError(
                f"expected {size} bytes, found {int(status[2])} before the end of the file: "
                "it was shortened after it was committed",
                path=path,
                shard=shard,
                offset=offset,
            )
        if status[0] == BAD_RANGE:
            raise CorruptDataError(
                f"a read of {size} bytes lies outside the file of {int(self.table.sizes[number])} bytes, "
                "or outside the buffer",
                path=path,
                shard=shard,
                offset=offset,
            )
        raise RuntimeError(f"unknown status {status.tolist()} of a gather kernel")
