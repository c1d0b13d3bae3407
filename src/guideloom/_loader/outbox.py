"""The bounded queue between the thread that makes batches and the caller, and the way our threads sleep and wake.

Waking a thread that wants the interpreter lock costs both sides more than a small batch does. So a thread that has to
wait watches for a moment before it sleeps: a caller that does nothing else then takes turns with the thread that makes
batches, a full queue at a time, and no one sleeps at all. Where one sleeps, neither side is woken
for each batch: a producer when half of the room is free, a waiting caller when three quarters of the room are taken (so
that the producer goes on while the caller wakes up) or the batch took long, or after a moment whatever there is: after
a millisecond, four for a caller that does nothing but take batches.
A producer whose caller computes between batches is not woken: it looks for room itself now and then, so that the caller
loses no time to wake it, nor waits for the interpreter lock that it would take at once, at the begin of a step.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.locks import new_lock
from guideloom._kernels.desk import NO_DESK, gather_helped
from guideloom._kernels.gather import new_status
from guideloom._kernels.spin import hand_over
from guideloom._loader.sharing import usable_processors
from guideloom._loader.work import EndOfEpoch

LOGGER = logging.getLogger("guideloom")

STALLED_S = 60.0
"""A caller that waits so long for one batch is told by a warning in the log, and again as often as that passes."""

WATCHES = usable_processors() > 1
"""Whether threads watch for a moment before they sleep: where they would not stand in each other's way."""

# For how many turns, of about half a microsecond: as long as small batches take to make, and to be taken.
_CALLER_TURNS = 1000
_PRODUCER_TURNS, _PRODUCER_TURNS_FOR_IDLE = 500, 1500
# A turn takes milliseconds where another process gets it: after so long none is begun.
_LONGEST_WATCH_NS = 1_000_000
# A watch that took so long was interrupted by other work; for how many waits no one watches after that.
_HELD_UP_S = 0.0015
_SHORTEST_REST, _LONGEST_REST = 64, 4096

# A batch that takes so long is worth a wake of its own; for a caller that does nothing but take batches, the second.
_SLOW_S, _SLOW_FOR_IDLE_S = 0.0003, 0.003

# How long a waiting caller may be kept waiting for a second batch when the first one is there; and such a caller.
_HOLD_S, _HOLD_FOR_IDLE_S = 0.001, 0.004


# A producer whose caller is away for so long, or longer, looks for room by itself, twice while the caller is away: each
# look takes some 15 us of a processor, a wake more than that from the caller. After so many in vain it sleeps.
_SHORTEST_AWAY_S = 0.001
_LONGEST_NAP_S = 0.01
_MOST_NAPS = 64

# A caller that comes back so soon, so many times in a row, does nothing with its batches but take them.
_IDLE_S = 0.00002
_NUM_QUICK = 16


class Sleeper:
    """A place for one thread to sleep.

    A wake that comes before the sleep is kept, so none is lost; a wake without a reason is possible. ``wake`` takes
    no lock and may therefore be called from a finaliser that interrupted the sleeping thread itself.

    Parameters
    ----------
    desk : int64 array
        Where it finds gathers to help with while it watches.
    """

    __slots__ = ("_desk", "_lock", "_next_rest", "_rest", "_signal", "_status", "hinted", "napping", "watching")

    def __init__(self, desk: npt.NDArray[np.int64] = NO_DESK) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._lock.acquire()
        self._signal = np.zeros(1, np.int64)
        self._status = new_status()
        self.watching = False
        self.napping = False
        self.hinted = False
        self._rest = 0
        self._next_rest = _SHORTEST_REST

    def watch(self, other: Sleeper | None, turns: int) -> int:
        """Wake ``other``, and wait for a wake for a moment, without sleep; for what was waited for, look yourself.

        Returns how many gathers of other threads it helped with meanwhile.
        Whoever would wake this thread may leave it to itself while ``watching``: it looks once more before it sleeps.
        """
        if self._rest or self._lock.acquire(blocking=False):
            self._rest -= self._rest > 0
            if other is not None:
                other.wake()
            return 0
        self._signal[0] = 0
        if other is not None:
            with suppress(RuntimeError):  # A wake is there already.
                other._lock.release()
        self.watching = True
        began_at = perf_counter()
        try:
            # The other thread is signalled when the interpreter lock is free for it, not before.
            theirs = _NOBODY if other is None else other._signal
            helped: int = hand_over(theirs, self._signal, turns, _LONGEST_WATCH_NS, self._desk, self._status)
        finally:
            self.watching = False
        self._lock.acquire(blocking=False)
        if perf_counter() - began_at > _HELD_UP_S:
            # Others want the processors: whoever watches then loses its turn to them, and had better sleep.
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        else:
            self._next_rest = max(self._next_rest - 1, _SHORTEST_REST)
        return helped

    def nap(self, mutex: AbstractContextManager[Any], interval_s: float) -> bool:
        """Sleep, but look for a ``hint`` every ``interval_s``, for a while; False when neither hint nor wake came."""
        with mutex:
            self.hinted = False
            self.napping = True
        woken = False
        try:
            for _ in range(_MOST_NAPS):
                woken = self._lock.acquire(timeout=interval_s)
                if woken or self.hinted:
                    break
        finally:
            with mutex:
                self.napping = False
                woken = woken or self.hinted
        return woken

    def hint(self) -> None:
        """Have a thread that is ``napping`` end that at its next look, which costs no time; with its mutex held."""
        self.hinted = True

    def sleep(self, timeout_s: float = -1) -> bool:
        """Wait for a wake; False after ``timeout_s``."""
        return self._lock.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """End the present sleep, or the next one."""
        with suppress(RuntimeError):  # A wake is there already.
            self._lock.release()
        # Last: who begins to watch clears it, unless it finds the lock free.
        self._signal[0] = 1


_NOBODY = np.zeros(1, np.int64)

PARKED = object()
"""Given by ``Outbox.take`` in place of a batch: the batch thread rests, the caller may make the next batch itself."""


def _nothing() -> None:
    pass


class Pace:
    """Finds out what the caller does between batches.

    Attributes
    ----------
    away_s : float
        Seconds from a batch to the next call, averaged over the last few.
    """

    __slots__ = ("_given_at", "_num_quick", "away_s")

    def __init__(self) -> None:
        self._given_at = perf_counter()
        self._num_quick = 0
        self.away_s = 0.0

    def idle(self) -> bool:
        """Whether the caller, who has just come for a batch, is idle: does nothing but take batches."""
        away_s = perf_counter() - self._given_at
        self.away_s += (away_s - self.away_s) / 4
        if away_s > _IDLE_S:
            self._num_quick = 0
            return False
        self._num_quick += 1
        return self._num_quick >= _NUM_QUICK

    def given(self) -> None:
        """Note that the caller is given a batch now."""
        self._given_at = perf_counter()


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
        Called by the caller's thread, with ``mutex`` held, when ``starved`` is set and there is room again; returns who
        is to be woken.
    hands_over : bool
        Whether who makes batches calls ``hand_over`` before it waits for room, and ``prepare`` in time.
    desk : int64 array
        Where a waiting caller finds gathers to help with.

    Attributes
    ----------
    mutex : lock
        Guards all attributes, and what a feed puts under it.
    ahead : int
        The window as it is used at present, 1 to ``window``; only the caller's thread changes it.
    idle : bool
        Whether the caller does nothing but take batches, and so gets many at a time; only its thread changes it.
    taken : int
        Batches that the caller took.
    begun : int
        Batches that were begun; kept by the feed.
    hands_over : bool
        Whether a thread that waits watches first: not before ``prepare``, unless an earlier outbox was prepared.
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
        "_hold",
        "_kernels",
        "_may_hand_over",
        "_on_room",
        "_put",
        "_put_at",
        "_ready",
        "_total",
        "_waiting",
        "ahead",
        "begun",
        "hands_over",
        "idle",
        "mutex",
        "parked",
        "resting",
        "starved",
        "stopped",
        "taken",
    )

    def __init__(
        self,
        window: int,
        total: int,
        on_room: Callable[[], Sleeper | None],
        hands_over: bool = False,
        desk: npt.NDArray[np.int64] = NO_DESK,
    ) -> None:
        self.mutex = new_lock()
        self.taken = 0
        self.begun = 0
        self.starved = False
        self.stopped = False
        self.ahead = window
        self.idle = False
        self._may_hand_over = hands_over and WATCHES
        self._kernels = (hand_over, gather_helped) if desk.size else (hand_over,)
        self.hands_over = self._may_hand_over and all(kernel.compiled is not None for kernel in self._kernels)
        self._total = total
        self._on_room = on_room
        self._ready: deque[Any] = deque()
        self._put = 0
        self._put_at = 0.0
        self._asking = False
        self.resting = False
        self.parked = False
        self._waiting = False
        self._hold = False
        self._caller = Sleeper(desk)

    @property
    def limit(self) -> int:
        """Batches with smaller numbers may be begun."""
        return min(self.taken + self._asking + self.ahead, self._total)

    def put(self, item: Any) -> None:
        """Add the next batch, or a :class:`Failure`, after which nothing may follow."""
        wake = False
        now = perf_counter()
        slow = now - self._put_at > (_SLOW_FOR_IDLE_S if self.idle else _SLOW_S)
        self._put_at = now
        with self.mutex:
            self._ready.append(item)
            self._put += 1
            if self._waiting:
                last = self._put == self._total or type(item) is Failure
                # One that watches is woken by who waits for room.
                plenty = not self._caller.watching and len(self._ready) >= max(1, 3 * self.ahead // 4)
                if not self._hold or last or plenty or slow:
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
        watch = self.hands_over
        item: Any = None
        waited_s = 0.0
        while True:
            with self.mutex:
                if self._ready:
                    item = self._ready.popleft()
                    self.taken += 1
                    self._asking = self._waiting = False
                    producer = self._look_for_room(waits=False)
                    break
                if self.stopped or self.taken >= self._total:
                    raise EndOfEpoch
                self._asking = True
                if self.parked:
                    return PARKED
                self._waiting = True
                self._hold = hold
                producer = self._look_for_room(waits=True)
            if watch:
                watch = False
                self._caller.watch(producer, _CALLER_TURNS)
                continue
            if producer is not None:
                producer.wake()
            hold_s = _HOLD_FOR_IDLE_S if self.idle else _HOLD_S
            if not self._caller.sleep(hold_s if hold else STALLED_S):
                if not hold:
                    waited_s += STALLED_S
                    LOGGER.warning(
                        "no batch for %g s: a read or collate_fn takes that long, or hangs; still waiting", waited_s
                    )
                hold = False
        if producer is not None:
            producer.wake()
        if type(item) is Failure:
            raise item.error
        return item

    def took(self) -> None:
        """Count a batch that the caller made itself after ``PARKED``."""
        with self.mutex:
            self._put += 1
            self.taken += 1
            self._asking = False
            producer = self._look_for_room(waits=False)
        if producer is not None:
            producer.wake()

    def park(self) -> bool:
        """Let the batch thread rest, if ``resting`` is set; a caller that waits makes its batch itself."""
        with self.mutex:
            self.parked = self.resting
            wake = self.parked and self._waiting
            if wake:
                self._waiting = False
        if wake:
            self._caller.wake()
        return self.parked

    def unpark(self) -> None:
        """End the rest of the batch thread: from now on the caller makes no batch."""
        with self.mutex:
            self.resting = self.parked = False

    def _look_for_room(self, waits: bool) -> Sleeper | None:
        """Return who is to be woken because there is room; one that watches only when the caller waits itself."""
        room = self.taken + self._asking + self.ahead - self.begun
        if not self.starved or room < max(1, self.ahead // 2):
            return None
        producer = self._on_room()
        if producer is not None and producer.watching and not waits:
            return None
        if producer is not None and producer.napping and len(self._ready) > 1:
            # There is time; should it run out before the next look, a later call wakes.
            producer.hint()
            return None
        self.starved = False
        return producer

    def prepare(self) -> None:
        """Compile, or load, what handing over takes.

        To be called by the thread that makes batches, once the caller has some: on a machine's first use it takes
        longer than all else before the first batch, and can as well be done beside a first step of training.
        """
        if self._may_hand_over and not self.hands_over:
            for kernel in self._kernels:
                if self.stopped:
                    # Who closes waits for this thread.
                    return
                kernel.get()
            self.hands_over = True

    def hand_over(self, producer: Sleeper) -> bool:
        """Wake a caller that watches, now that all room is taken, and watch for room; False where none is waiting.

        To be called by the thread that makes batches before it sleeps, without the mutex.
        """
        if not (self.hands_over and self._waiting and self._ready):
            # A caller that is busy will be so for longer than it pays to watch.
            return False
        producer.watch(self._caller, _PRODUCER_TURNS_FOR_IDLE if self.idle else _PRODUCER_TURNS)
        return True

    def wait_for_room(self, producer: Sleeper, away_s: float) -> None:
        """Wait for room, or a wake, while the caller is away, for ``away_s`` as a rule; without the mutex."""
        interval_s = min(away_s / 2, _LONGEST_NAP_S)
        if not self.hands_over or away_s < _SHORTEST_AWAY_S or not producer.nap(self.mutex, interval_s):
            producer.sleep()

    def retire(self, abandoned: bool) -> None:
        """Give up who makes batches, which has ended, and the batches that are ready if no one will take them."""
        self._on_room = _nothing
        if abandoned:
            self._ready.clear()

    def stop(self) -> None:
        """Wake the caller; safe in a finaliser."""
        self.stopped = True
        self._caller.wake()
