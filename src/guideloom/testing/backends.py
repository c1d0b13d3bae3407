"""Backends for tests: the smallest one a user could write, and wrappers that count, wait or fail.

All of them implement the documented methods only, so that GuideLoom takes the path it takes for any user's backend.
"""

from __future__ import annotations

import asyncio
import copy
import fnmatch
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from guideloom._base.protocols import (
    IOAsyncReaderAbstract,
    IOReaderAbstract,
    IOSyncReaderAbstract,
    StorageBufferTypes,
)

Operation: TypeAlias = Literal["open", "filesize", "read"]
Gate: TypeAlias = threading.Event | threading.Barrier | Callable[[PurePath, int, int], object]


# --- the smallest backend ----------------------------------------------------------------------


class _MinimalSyncReader(IOSyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._content: bytes | None = None

    def open(self) -> None:
        self._content = Path(self._path).read_bytes()

    def close(self) -> None:
        self._content = None

    def filesize(self) -> int:
        return len(self._opened())

    def read(self, offset: int, size: int) -> bytearray:
        content = self._opened()
        if offset < 0 or size < 0 or offset + size > len(content):
            raise IndexError(
                f"expected {size} bytes at {offset}, the file has {len(content)} [path {str(self._path)!r}]"
            )
        return bytearray(content[offset : offset + size])

    def _opened(self) -> bytes:
        if self._content is None:
            raise RuntimeError(f"not open [path {str(self._path)!r}]")
        return self._content


class _MinimalAsyncReader(IOAsyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self._sync = _MinimalSyncReader(path)

    async def open(self) -> None:
        self._sync.open()

    async def close(self) -> None:
        self._sync.close()

    async def filesize(self) -> int:
        return self._sync.filesize()

    async def read(self, offset: int, size: int) -> bytearray:
        return self._sync.read(offset, size)


class MinimalBackend(IOReaderAbstract):
    """The least that a user's backend may be: each file is loaded into memory when it is opened.

    It shares no code with :mod:`guideloom.io`, so it can also serve as the oracle for a backend.
    """

    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return _MinimalSyncReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return _MinimalAsyncReader


# --- wrappers ----------------------------------------------------------------------------------


class BackendWrapper(IOReaderAbstract):
    """A backend that passes every call to another one, with a hook before and after each.

    Parameters
    ----------
    inner : IOReaderAbstract, optional
        The backend that reads; :class:`guideloom.io.SeekIO` when not given.
    concurrent_reads : bool
        Whether to tell GuideLoom that several threads may read through one reader at once; only if ``inner`` allows it.

    Notes
    -----
    Subclasses override the hooks. They may be called from many threads at once. A pickled copy has its own counters.
    """

    def __init__(self, inner: IOReaderAbstract | None = None, *, concurrent_reads: bool = False) -> None:
        if inner is None:
            from guideloom.io import SeekIO

            inner = SeekIO()
        self.inner = inner
        self.concurrent_reads = concurrent_reads
        self._lock = threading.Lock()

    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return partial(_WrappedSyncReader, self, self.inner.sync_reader())

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return partial(_WrappedAsyncReader, self, self.inner.async_reader())

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        """Run before each call of ``inner``; ``offset`` and ``size`` are 0 unless it is a read."""

    async def before_async(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        """Run before each call of ``inner``'s asyncio reader; must not block the event loop."""
        self.before(operation, path, offset, size)

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        """Return what the caller gets in place of ``data``."""
        return data

    def opened(self, path: PurePath) -> None:
        """Run after a file was opened."""

    def closed(self, path: PurePath) -> None:
        """Run after an open file was closed."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class _WrappedSyncReader(IOSyncReaderAbstract):
    def __init__(
        self, backend: BackendWrapper, make: Callable[[PurePath], IOSyncReaderAbstract], path: PurePath
    ) -> None:
        self.concurrent_reads = backend.concurrent_reads
        self._backend = backend
        self._path = path
        self._inner = make(path)
        self._is_open = False

    def open(self) -> None:
        self._backend.before("open", self._path, 0, 0)
        self._inner.open()
        self._is_open = True
        self._backend.opened(self._path)

    def close(self) -> None:
        self._inner.close()
        if self._is_open:
            self._is_open = False
            self._backend.closed(self._path)

    def filesize(self) -> int:
        self._backend.before("filesize", self._path, 0, 0)
        return self._inner.filesize()

    def read(self, offset: int, size: int) -> StorageBufferTypes:
        self._backend.before("read", self._path, offset, size)
        return self._backend.after_read(self._path, offset, self._inner.read(offset, size))


class _WrappedAsyncReader(IOAsyncReaderAbstract):
    def __init__(
        self, backend: BackendWrapper, make: Callable[[PurePath], IOAsyncReaderAbstract], path: PurePath
    ) -> None:
        self._backend = backend
        self._path = path
        self._inner = make(path)
        self._is_open = False

    async def open(self) -> None:
        await self._backend.before_async("open", self._path, 0, 0)
        await self._inner.open()
        self._is_open = True
        self._backend.opened(self._path)

    async def close(self) -> None:
        await self._inner.close()
        if self._is_open:
            self._is_open = False
            self._backend.closed(self._path)

    async def filesize(self) -> int:
        await self._backend.before_async("filesize", self._path, 0, 0)
        return await self._inner.filesize()

    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        await self._backend.before_async("read", self._path, offset, size)
        return self._backend.after_read(self._path, offset, await self._inner.read(offset, size))


# --- counting ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What was asked of one file, or of all files together.

    Parameters
    ----------
    opens, closes, filesizes, reads : int
        Calls. Opens, closes and reads count when they succeed; a ``close`` of a file that is not open does not count.
    bytes_read : int
        Bytes handed out by ``read``.
    """

    opens: int = 0
    closes: int = 0
    filesizes: int = 0
    reads: int = 0
    bytes_read: int = 0

    @property
    def open_now(self) -> int:
        """Readers that are open at this moment."""
        return self.opens - self.closes


class CountingBackend(BackendWrapper):
    """Counts what GuideLoom asks of a backend, per file.

    Parameters
    ----------
    inner : IOReaderAbstract, optional
        The backend that reads; ``SeekIO`` when not given.
    concurrent_reads : bool
        See :class:`BackendWrapper`.

    Attributes
    ----------
    peak_open : int
        The largest number of readers that were open at once.
    """

    def __init__(self, inner: IOReaderAbstract | None = None, *, concurrent_reads: bool = False) -> None:
        super().__init__(inner, concurrent_reads=concurrent_reads)
        self.reset()

    def reset(self) -> None:
        """Forget the counts; files that are open stay counted as open."""
        with self._lock:
            open_now = {path: n.open_now for path, n in self.__dict__.get("_counts", {}).items() if n.open_now}
            self._counts: dict[str, FileCounts] = {path: FileCounts(opens=n) for path, n in open_now.items()}
            self.peak_open = self._open_now = sum(open_now.values())

    @property
    def per_file(self) -> dict[str, FileCounts]:
        """Counts by path, as text."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> FileCounts:
        """Counts of all files together."""
        counts = self.per_file.values()
        return FileCounts(
            opens=sum(one.opens for one in counts),
            closes=sum(one.closes for one in counts),
            filesizes=sum(one.filesizes for one in counts),
            reads=sum(one.reads for one in counts),
            bytes_read=sum(one.bytes_read for one in counts),
        )

    def matching(self, pattern: str) -> FileCounts:
        """Counts of the files whose name matches a shell pattern, such as ``"*.elements.bin"``."""
        found = FileCounts()
        for path, one in self.per_file.items():
            if fnmatch.fnmatchcase(PurePath(path).name, pattern):
                found = FileCounts(
                    found.opens + one.opens,
                    found.closes + one.closes,
                    found.filesizes + one.filesizes,
                    found.reads + one.reads,
                    found.bytes_read + one.bytes_read,
                )
        return found

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        if operation == "filesize":
            self._add(path, filesizes=1)

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        self._add(path, reads=1, bytes_read=len(data))
        return data

    def opened(self, path: PurePath) -> None:
        self._add(path, opens=1)
        with self._lock:
            self._open_now += 1
            self.peak_open = max(self.peak_open, self._open_now)

    def closed(self, path: PurePath) -> None:
        self._add(path, closes=1)
        with self._lock:
            self._open_now -= 1

    def _add(self, path: PurePath, **more: int) -> None:
        with self._lock:
            old = self._counts.get(str(path), FileCounts())
            self._counts[str(path)] = replace(old, **{key: getattr(old, key) + n for key, n in more.items()})

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_counts": {}, "_open_now": 0, "peak_open": 0}


# --- waiting -----------------------------------------------------------------------------------


class LatencyBackend(BackendWrapper):
    """Holds calls back until the test lets them go, or for a fixed time.

    Parameters
    ----------
    inner : IOReaderAbstract, optional
        The backend that reads; ``SeekIO`` when not given.
    gate : threading.Event, threading.Barrier or callable, optional
        What a call waits for: ``gate.wait()``, or ``gate(path, offset, size)`` returning. A test that holds an
        ``Event`` decides itself when a slow read ends, without a clock.
    delay_s : float
        Seconds that each call takes besides; for benchmarks.
    operations : tuple of {"open", "filesize", "read"}
        Which calls wait.
    match : str
        Shell pattern of the names of the files whose calls wait.
    timeout_s : float
        A gate that stays shut that long is a ``TimeoutError``, so that a faulty test ends.
    concurrent_reads : bool
        See :class:`BackendWrapper`; True here lets several reads of one file wait together.

    Notes
    -----
    A backend with an ``Event`` or a ``Barrier`` cannot be pickled, as they cannot; one with a delay or a module-level
    callable can.
    """

    def __init__(
        self,
        inner: IOReaderAbstract | None = None,
        *,
        gate: Gate | None = None,
        delay_s: float = 0.0,
        operations: tuple[Operation, ...] = ("read",),
        match: str = "*",
        timeout_s: float = 60.0,
        concurrent_reads: bool = False,
    ) -> None:
        super().__init__(inner, concurrent_reads=concurrent_reads)
        self.gate = gate
        self.delay_s = delay_s
        self.operations = operations
        self.match = match
        self.timeout_s = timeout_s
        self._waiting = 0
        self._changed = threading.Condition(self._lock)

    @property
    def waiting(self) -> int:
        """Calls that are held back at this moment."""
        with self._lock:
            return self._waiting

    def wait_for_waiting(self, count: int, timeout_s: float = 30.0) -> None:
        """Return once at least ``count`` calls are held back; ``TimeoutError`` if that does not happen."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, timeout_s):
                raise TimeoutError(f"expected {count} calls to be held back, found {self._waiting} after {timeout_s} s")

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        if not self._applies(operation, path):
            return
        if self.delay_s:
            time.sleep(self.delay_s)
        self._pass_gate(path, offset, size)

    async def before_async(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        if not self._applies(operation, path):
            return
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.gate is not None:
            await asyncio.to_thread(self._pass_gate, path, offset, size)

    def _applies(self, operation: Operation, path: PurePath) -> bool:
        return operation in self.operations and fnmatch.fnmatchcase(path.name, self.match)

    def _pass_gate(self, path: PurePath, offset: int, size: int) -> None:
        if self.gate is None:
            return
        self._count_waiting(1)
        try:
            if isinstance(self.gate, threading.Event):
                if not self.gate.wait(self.timeout_s):
                    raise TimeoutError(f"the gate stayed shut for {self.timeout_s} s [path {str(path)!r}]")
            elif isinstance(self.gate, threading.Barrier):
                self.gate.wait(self.timeout_s)
            else:
                self.gate(path, offset, size)
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        with self._changed:
            self._waiting += change
            self._changed.notify_all()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_changed"]
        return {**state, "_waiting": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._changed = threading.Condition(self._lock)


# --- failing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One way in which calls fail.

    Parameters
    ----------
    error : BaseException or callable, optional
        What is raised: a copy of the exception, or what the callable gives.
    short_by : int
        In place of an error: a read hands out this many bytes fewer than asked, as a broken backend might.
    flip_at : int, optional
        In place of an error: the byte at this offset of the file is inverted in every read that covers it.
    operation : {"read", "open", "filesize"}
        Which calls.
    match : str
        Shell pattern of the names of the files concerned.
    offset : int, optional
        Only reads that cover this byte of the file.
    after : int
        Matching calls that pass before the fault begins: 0 for the first, 1 for the second, and so on.
    times : int, optional
        Calls that fail before the fault ends; None for ever.
    """

    error: BaseException | Callable[[], BaseException] | None = None
    short_by: int = 0
    flip_at: int | None = None
    operation: Operation = "read"
    match: str = "*"
    offset: int | None = None
    after: int = 0
    times: int | None = 1

    def __post_init__(self) -> None:
        if (self.error is not None) + (self.short_by > 0) + (self.flip_at is not None) != 1:
            raise ValueError("expected exactly one of error, short_by and flip_at")
        if self.operation != "read" and self.error is None:
            raise ValueError(f"only a read can be short or flipped, not {self.operation!r}")

    def covers(self, operation: Operation, path: PurePath, offset: int, size: int) -> bool:
        """Whether a call is one that this fault is about."""
        wanted = self.offset if self.flip_at is None else self.flip_at
        return (
            operation == self.operation
            and fnmatch.fnmatchcase(path.name, self.match)
            and (wanted is None or offset <= wanted < offset + size)
        )


class FaultBackend(BackendWrapper):
    """Fails on demand.

    Parameters
    ----------
    inner : IOReaderAbstract or None
        The backend that reads; ``SeekIO`` when None.
    *faults : Fault
        Each counts the calls that it matches by itself; the first that is due is the one that happens.
    concurrent_reads : bool
        See :class:`BackendWrapper`.

    Attributes
    ----------
    happened : list of int
        How often each fault happened so far.
    """

    def __init__(self, inner: IOReaderAbstract | None, *faults: Fault, concurrent_reads: bool = False) -> None:
        super().__init__(inner, concurrent_reads=concurrent_reads)
        self.faults = faults
        self.happened = [0] * len(faults)
        self._seen = [0] * len(faults)

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        fault = self._due(operation, path, offset, size, raising=True)
        if fault is None:
            return
        error = fault.error
        # A copy: one instance raised in several threads would gather all their tracebacks.
        raise copy.copy(error) if isinstance(error, BaseException) else error()  # type: ignore[misc]

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        fault = self._due("read", path, offset, len(data), raising=False)
        if fault is None:
            return data
        changed = bytearray(data)
        if fault.flip_at is not None:
            changed[fault.flip_at - offset] ^= 0xFF
            return changed
        return changed[: max(0, len(changed) - fault.short_by)]

    def _due(self, operation: Operation, path: PurePath, offset: int, size: int, raising: bool) -> Fault | None:
        due = None
        with self._lock:
            for i, fault in enumerate(self.faults):
                if (fault.error is not None) != raising or not fault.covers(operation, path, offset, size):
                    continue
                self._seen[i] += 1
                turn = self._seen[i] - fault.after
                if due is None and turn > 0 and (fault.times is None or turn <= fault.times):
                    self.happened[i] += 1
                    due = fault
        return due
