"""The bounded queue between the thread that makes batches and the caller, and the way our threads sleep and wake.

Waking a thread that wants the interpreter lock costs both sides more than a small batch does, so neither side is woken
for each batch: a producer when half of the room is free, a waiting caller when three quarters of the room are taken (so
that the producer goes on while the caller wakes up), or after a millisecond whatever there is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from guideloom._loader.work import EndOfEpoch

# How long a waiting caller may be kept waiting for a second batch when the first one is there.
_HOLD_S = 0.001


class Sleeper:
    """A place for one thread to sleep.

    A wake that comes before the sleep is kept, so none is lost; a wake without a reason is possible. ``wake`` takes
    no lock and may therefore be called from a finaliser that interrupted the sleeping thread itself.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float = -1) -> bool:
        """Wait for a wake; False after ``timeout_s``."""
        return self._lock.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """End the present sleep, or the next one."""
        with suppress(RuntimeError):  # A wake is there already.
            self._lock.release()


PARKED = object()
"""Given by ``Outbox.take`` in place of a batch: the batch thread rests, the caller may make the next batch itself."""


def _nothing() -> None:
    pass


class Failure:
    """An error in the place of a batch."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Outbox:
    """Finished batches, in order.

    Parameters
    ----------
    window : int
        Batches that may be under way or ready beyond those the caller took or waits for, at least 1.
    total : int
        Number of batches.
    on_room : callable
        Called by the caller's thread, with ``mutex`` held, when ``starved`` is set and there is room again.

    Attributes
    ----------
    mutex : lock
        Guards all attributes, and what a feed puts under it.
    taken : int
        Batches that the caller took.
    begun : int
        Batches that were begun; kept by the feed.
    starved : bool
        Set by the feed when it finds ``begun == limit``.
    stopped : bool
    resting : bool
        Set by the caller's thread when it would rather make batches itself.
    parked : bool
        Whether the batch thread rests, and the caller may make batches.
    """

    __slots__ = (
        "_asking",
        "_caller",
        "_half",
        "_hold",
        "_on_room",
        "_plenty",
        "_put",
        "_ready",
        "_total",
        "_waiting",
        "_window",
        "begun",
        "mutex",
        "parked",
        "resting",
        "starved",
        "stopped",
        "taken",
    )

    def __init__(self, window: int, total: int, on_room: Callable[[], None]) -> None:
        self.mutex = threading.Lock()
        self.taken = 0
        self.begun = 0
        self.starved = False
        self.stopped = False
        self._window = window
        self._total = total
        self._half = max(1, window // 2)
        self._plenty = max(1, 3 * window // 4)
        self._on_room = on_room
        self._ready: deque[Any] = deque()
        self._put = 0
        self._asking = False
        self.resting = False
        self.parked = False
        self._waiting = False
        self._hold = False
        self._caller = Sleeper()

    @property
    def limit(self) -> int:
        """Batches with smaller numbers may be begun."""
        return min(self.taken + self._asking + self._window, self._total)

    def put(self, item: Any) -> None:
        """Add the next batch, or a :class:`Failure`, after which nothing may follow."""
        wake = False
        with self.mutex:
            self._ready.append(item)
            self._put += 1
            if self._waiting:
                last = self._put == self._total or type(item) is Failure
                if not self._hold or last or len(self._ready) >= self._plenty:
                    self._waiting = False
                    wake = True
        if wake:
            self._caller.wake()

    def take(self) -> Any:
        """Return the next batch, waiting for it, or ``PARKED``; an error of a batch is raised in its place.

        Raises
        ------
        EndOfEpoch
            After the last batch, or when the outbox was stopped.
        """
        # The first batch is worth a wake of its own.
        hold = self.taken > 0
        item: Any = None
        while True:
            with self.mutex:
                if self._ready:
                    item = self._ready.popleft()
                    self.taken += 1
                    self._asking = self._waiting = False
                    self._look_for_room()
                    break
                if self.stopped or self.taken >= self._total:
                    raise EndOfEpoch
                self._asking = True
                if self.parked:
                    return PARKED
                self._waiting = True
                self._hold = hold
                self._look_for_room()
            if not self._caller.sleep(_HOLD_S if hold else -1):
                hold = False
        if type(item) is Failure:
            raise item.error
        return item

    def took(self) -> None:
        """Count a batch that the caller made itself after ``PARKED``."""
        with self.mutex:
            self._put += 1
            self.taken += 1
            self._asking = False
            self._look_for_room()

    def park(self) -> bool:
        """Let the batch thread rest, if ``resting`` is set and the caller does not wait for it already."""
        with self.mutex:
            self.parked = self.resting and not self._waiting
            return self.parked

    def unpark(self) -> None:
        """End the rest of the batch thread: from now on the caller makes no batch."""
        with self.mutex:
            self.resting = self.parked = False

    def _look_for_room(self) -> None:
        if self.starved and self.taken + self._asking + self._window - self.begun >= self._half:
            self.starved = False
            self._on_room()

    def retire(self, abandoned: bool) -> None:
        """Give up who makes batches, which has ended, and the batches that are ready if no one will take them."""
        self._on_room = _nothing
        if abandoned:
            self._ready.clear()

    def stop(self) -> None:
        """Wake the caller; safe in a finaliser."""
        self.stopped = True
        self._caller.wake()
