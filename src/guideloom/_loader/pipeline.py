"""Batches made by threads: some read, one makes batches of what was read, the caller takes them.

While reading is not shared (see ``sharing``), the batch thread reads too, and the reading threads sleep. While it is,
a *task* is a part of a batch to read: all of it, unless there are more reading threads than batches ahead. Tasks are
claimed in order by whoever is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.forks import FORKS
from guideloom._base.interrupts import interrupts_later
from guideloom._loader.exits import register, unregister
from guideloom._loader.outbox import PARKED, Failure, Outbox, Pace, Sleeper
from guideloom._loader.sharing import Sharing
from guideloom._loader.work import EndOfEpoch, Feed, Schedule, Work

# Batches made ahead for a caller that does nothing but take them, all in one go: more would leave the processor's cache
# before they are taken, and free more memory in one go than the allocator keeps.
_AHEAD_OF_IDLE = 4
# Until a watch ends by time.
_HELPER_TURNS = 1 << 40


class _Slot:
    """What was read of one batch so far."""

    __slots__ = ("missing", "parts")

    def __init__(self, num_parts: int) -> None:
        self.parts: list[Any] = [None] * num_parts
        self.missing = num_parts


class ThreadFeed:
    """Batches made by threads of this process.

    Parameters
    ----------
    schedule : Schedule
    work : Work
    num_workers : int
        Reading threads.
    prefetch : int
        Batches made ahead by a thread of their own; 0: nothing is read ahead, the caller makes each batch, with the
        help of the reading threads where ``work`` splits batches.
    sharing : Sharing
        What was found out about reading threads so far; made for ``num_workers`` and ``prefetch``.
    desk : int64 array
        Where threads that wait find gathers to help with.
    enter_thread : callable
        Called first in each thread, before it reads or makes a batch.
    on_start : callable
        Called once, with this object, before the first thread starts.
    on_ended : callable
        Called once, by the last thread to end: from then on nothing reads any more.

    Notes
    -----
    Threads refer to this object, and it refers to neither the iterator nor the loader: an iterator that is dropped
    is collected, and stops them. They are daemon threads only so that the interpreter begins to exit without them;
    ``atexit`` then stops and joins them before it is gone.
    """

    def __init__(
        self,
        schedule: Schedule,
        work: Work,
        num_workers: int,
        prefetch: int,
        sharing: Sharing,
        desk: npt.NDArray[np.int64],
        enter_thread: Callable[[], None],
        on_start: Callable[[Feed], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._work = work
        self._total = schedule.num_batches
        self._on_demand = prefetch == 0
        self._prefetch = prefetch
        self._demanded = 0
        self._outbox = Outbox(max(1, prefetch), self._total, self._on_room, hands_over=True, desk=desk)
        self._mutex = self._outbox.mutex
        rows = schedule.batch_size
        self._part_rows = min(rows, -(-rows * max(1, prefetch) // max(1, num_workers))) if work.splits else rows
        self._num_parts = -(-rows // self._part_rows)
        self._sharing = sharing
        self._can_share = num_workers > 0 and (prefetch > 0 or self._num_parts > 1)
        self._reading = 0
        self._cursor = 0
        self._slots: dict[int, _Slot] = {}
        self._head = 0
        self._next = 0
        self._pace = Pace()
        self._parking = Sleeper(desk)
        self._batcher = Sleeper(desk)
        self._batcher_waits = False
        self._readers = [Sleeper() for _ in range(num_workers)]
        self._idle: list[Sleeper] = []
        self._stopped = False
        self._abandoned = False
        self._on_ended = on_ended
        self._forks = FORKS.count
        bodies = [
            _Body("guideloom-reading", partial(self._read_until_stopped, sleeper, enter_thread), self._count_ended)
            for sleeper in self._readers
        ]
        if not self._on_demand:
            make = partial(self._make_until_stopped, enter_thread)
            bodies.append(_Body("guideloom-batching", make, self._count_ended))
        self._alive = len(bodies)
        self._threads = [threading.Thread(target=body, name=body.name, daemon=True) for body in bodies]
        # What starts a thread would lose it, or have ``threading`` list it for ever.
        with interrupts_later():
            register(self, self._threads)
            on_start(self)
            try:
                for thread in self._threads:
                    thread.start()
            except BaseException:
                # No room for another thread.
                self.stop()
                for body in bodies:
                    body.give_up()
                raise

    # --- the caller's side ---

    def take(self) -> Any:
        """See :class:`Feed`."""
        if self._forks != FORKS.count:
            raise RuntimeError(
                "this iterator was made before the process forked, its threads stayed behind: call iter(loader) again"
            )
        if not self._on_demand:
            item = self._take_anywhere() if self._work.anywhere else self._take_made()
            self._pace.given()
            return item
        number = self._demanded
        if self._stopped or number >= self._total:
            raise EndOfEpoch
        self._demanded = number + 1
        item = self._make(number)
        if self._stopped:
            raise EndOfEpoch
        if type(item) is Failure:
            raise item.error
        return item

    def _take_made(self) -> Any:
        idle = self._outbox.idle = self._pace.idle() and not self._sharing.shared
        self._outbox.ahead = min(self._prefetch, _AHEAD_OF_IDLE) if idle else self._prefetch
        return self._outbox.take()

    def _take_anywhere(self) -> Any:
        # An idle caller leaves nothing to overlap with: it gets its batches faster by making them.
        if self._pace.idle():
            self._outbox.resting = True
        elif self._outbox.resting:
            self._outbox.unpark()
            self._parking.wake()
        item = self._outbox.take()
        if item is PARKED:
            item = self._make(self._next)
            if self._stopped:
                raise EndOfEpoch
            if type(item) is Failure:
                raise item.error
            self._next += 1
            self._outbox.took()
        return item

    def stop(self) -> None:
        """See :class:`Feed`."""
        # Takes no lock: a finaliser may run this in a thread that holds one.
        self._abandoned = True
        self._stopped = True
        self._outbox.stop()
        self._batcher.wake()
        self._parking.wake()
        for sleeper in self._readers:
            sleeper.wake()

    def join(self, timeout_s: float) -> bool:
        """See :class:`Feed`."""
        deadline = perf_counter() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- with the mutex held ---

    def _limit(self) -> int:
        return self._demanded if self._on_demand else self._outbox.limit

    def _on_room(self) -> Sleeper | None:
        if self._sharing.shared:
            self._wake_reader()
        elif self._batcher_waits:
            return self._batcher
        return None

    def _wake_batcher(self) -> None:
        if self._batcher_waits:
            self._batcher_waits = False
            self._batcher.wake()

    def _wake_reader(self) -> None:
        if self._idle and self._reading < self._sharing.width:
            self._idle.pop().wake()

    def _claim(self, limit: int) -> tuple[int, int] | None:
        """Return the next task as (batch, part), or None when nothing may be read at present."""
        number, part = divmod(self._cursor, self._num_parts)
        if number >= limit:
            self._outbox.starved = True
            return None
        self._cursor += 1
        if part == 0:
            self._outbox.begun += 1
        # One wakes one: as many as there is work for.
        if self._cursor < limit * self._num_parts:
            self._wake_reader()
        return number, part

    # --- reading ---

    def _read(self, task: tuple[int, int], enter_thread: Callable[[], None] | None = None) -> None:
        number, part = task
        try:
            if enter_thread is not None:
                enter_thread()
            prepared, lo, hi = self._schedule.rows(number)
            first = min(hi, lo + part * self._part_rows)
            value = self._work.read(prepared, first, min(hi, first + self._part_rows))
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised at this batch
            value = Failure(error)
        with self._mutex:
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = _Slot(self._num_parts)
            slot.parts[part] = value
            slot.missing -= 1
            if slot.missing == 0 and number == self._head:
                self._wake_batcher()

    def _read_until_stopped(self, sleeper: Sleeper, enter_thread: Callable[[], None]) -> None:
        """Body of a reading thread."""
        task = None
        enter: Callable[[], None] | None = enter_thread
        while not self._stopped:
            with self._mutex:
                if task is not None:
                    self._reading -= 1
                    task = None
                if self._cursor >= self._total * self._num_parts:
                    return
                if self._reading < self._sharing.width:
                    self._reading += 1
                    task = self._claim(self._limit())
                    self._reading -= task is None
                if task is None:
                    self._idle.append(sleeper)
            if task is None:
                sleeper.sleep()
            else:
                self._read(task, enter)
                enter = None

    # --- making batches ---

    def _make(self, number: int) -> Any:
        """Return batch ``number``, or a Failure, also when stopped. For one thread."""
        sharing = self._sharing
        begun_at = perf_counter()
        waited_s = 0.0
        handed_over = False
        while True:
            if self._stopped:
                return Failure(EndOfEpoch())
            parts, task, alone, room = None, None, False, True
            with self._mutex:
                self._batcher_waits = False
                limit = self._limit()
                slot = self._slots.get(number)
                if slot is not None and slot.missing == 0:
                    del self._slots[number]
                    parts = slot.parts
                elif number >= limit:
                    self._outbox.starved = self._batcher_waits = True
                    room = False
                elif not sharing.shared and self._cursor == number * self._num_parts:
                    self._cursor += self._num_parts
                    self._outbox.begun += 1
                    alone = True
                else:
                    # When sharing has just ended, parts of this batch may be left that no other thread will read.
                    left = not sharing.shared and self._cursor < (number + 1) * self._num_parts
                    if self._on_demand or left:
                        task = self._claim(limit)
                    elif self._cursor < limit * self._num_parts:
                        self._wake_reader()
                    self._batcher_waits = task is None
                if parts is not None or alone:
                    self._head = number + 1
            if alone:
                if self._can_share and sharing.costly:
                    ran_at, read_at = thread_time(), perf_counter()
                    parts = [self._read_whole(number)]
                    waited_s = (perf_counter() - read_at) - (thread_time() - ran_at)
                else:
                    parts = [self._read_whole(number)]
            if parts is not None:
                break
            if task is not None:
                self._read(task)
            elif room:
                self._batcher.sleep()
            else:
                slept_at = perf_counter()
                handed_over = not handed_over and self._outbox.hand_over(self._batcher)
                if not handed_over:
                    self._outbox.wait_for_room(self._batcher, self._pace.away_s)
                begun_at += perf_counter() - slept_at
        item = self._finished(parts, number)
        if self._can_share:
            sharing.note(not alone, perf_counter() - begun_at, waited_s)
        return item

    def _read_whole(self, number: int) -> Any:
        try:
            return self._work.read(*self._schedule.rows(number))
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised at this batch
            return Failure(error)

    def _finished(self, parts: list[Any], number: int) -> Any:
        for part in parts:
            if type(part) is Failure:
                return part
        try:
            return self._work.finish(parts, number)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised at this batch
            return Failure(error)

    def _make_until_stopped(self, enter_thread: Callable[[], None]) -> None:
        """Body of the batch thread."""
        try:
            enter_thread()
            self._make_ahead()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised at the next batch
            self._outbox.put(Failure(error))
            self._stop_reading()

    def _make_ahead(self) -> None:
        while self._next < self._total and not self._stopped:
            if self._outbox.resting and self._outbox.park():
                self._help_caller()
                continue
            item = self._make(self._next)
            if self._stopped:
                return
            self._next += 1
            self._outbox.put(item)
            if type(item) is Failure:
                # Nothing that was read ahead is of use any more.
                self._stop_reading()
                return
            if self._prefetch <= self._next < self._total:
                self._outbox.prepare()
            del item

    def _help_caller(self) -> None:
        """Help the caller to read, as long as it makes its batches itself."""
        self._outbox.prepare()
        while self._outbox.parked and not self._stopped:
            helped = self._outbox.hands_over and self._parking.watch(None, _HELPER_TURNS)
            # The watch may have used up the wake that came with a change.
            if not helped and self._outbox.parked and not self._stopped:
                self._parking.sleep()

    def _stop_reading(self) -> None:
        """End the reading threads; what is in the outbox stays."""
        self._stopped = True
        for sleeper in self._readers:
            sleeper.wake()

    def _count_ended(self) -> None:
        """Count a thread that ends."""
        with self._mutex:
            self._alive -= 1
            last = self._alive == 0
        if last:
            # From here on nothing refers to this feed but its iterator: it goes with that, without the collector.
            self._slots.clear()
            self._outbox.retire(self._abandoned)
            unregister(self)
            on_ended, self._on_ended = self._on_ended, _nothing
            on_ended()


def _nothing() -> None:
    pass


class _Body:
    """What one thread does: the thread begins it, or the feed gives it up, should its start be interrupted."""

    def __init__(self, name: str, run: Callable[[], None], ended: Callable[[], None]) -> None:
        self.name = name
        self._run = run
        self._ended = ended
        self._claim = threading.Lock()

    def __call__(self) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._run()
            finally:
                self._ended()

    def give_up(self) -> None:
        """Keep the thread from beginning, if it has not begun."""
        if self._claim.acquire(blocking=False):
            self._ended()
