"""Wrappers that hold calls back, or make them fail, when a test says so."""

from __future__ import annotations

import asyncio
import copy
import fnmatch
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

from guideloom._base.protocols import IOReaderAbstract, StorageBufferTypes
from guideloom.testing.backends import BackendWrapper, Operation

Gate: TypeAlias = threading.Event | threading.Barrier | Callable[[PurePath, int, int], object]


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
        """Return once at least ``count`` calls are held back; ``TimeoutError`` if not within ``timeout_s``."""
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
        """Whether a call is one that this fault is about; see :meth:`BackendWrapper.before`."""
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
