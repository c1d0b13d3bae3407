"""The queue between the thread that makes batches and the caller: who is woken, and when nobody has to be."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from guideloom import StatefulDataLoader
from guideloom._loader import outbox as module
from guideloom._loader.outbox import PARKED, Outbox, Pace, Sleeper
from guideloom._loader.work import EndOfEpoch
from tests.loader.fakes import ItemDataset


class Producer:
    """Makes the numbers below ``total``, the way a batch thread does."""

    def __init__(self, window: int, total: int, hands_over: bool, away_s: float = 0.0) -> None:
        self.away_s = away_s
        self.sleeper = Sleeper()
        self.outbox = Outbox(window, total, self.on_room, hands_over)
        self.outbox.prepare()
        self.total = total
        self.waits = False
        self.most_ready = 0
        self.thread = threading.Thread(target=self.run)

    def on_room(self) -> Sleeper | None:
        return self.sleeper if self.waits else None

    def run(self) -> None:
        for number in range(self.total):
            handed_over = False
            while True:
                with self.outbox.mutex:
                    self.waits = number >= self.outbox.limit
                    if not self.waits:
                        self.outbox.begun += 1
                        break
                    self.outbox.starved = True
                handed_over = not handed_over and self.outbox.hand_over(self.sleeper)
                if not handed_over:
                    self.outbox.wait_for_room(self.sleeper, self.away_s)
            self.outbox.put(number)
            self.most_ready = max(self.most_ready, number + 1 - self.outbox.taken)


@pytest.mark.parametrize("watches", [False, True])
@pytest.mark.parametrize("hands_over", [False, True])
@pytest.mark.parametrize("window", [1, 2, 4, 16])
def test_every_item_comes_once_in_order(
    window: int, hands_over: bool, watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHES", watches)
    producer = Producer(window, 3000, hands_over)
    producer.thread.start()
    found = [producer.outbox.take() for _ in range(3000)]
    producer.thread.join()
    assert found == list(range(3000))
    assert producer.most_ready <= window + 1
    with pytest.raises(EndOfEpoch):
        producer.outbox.take()


@pytest.mark.parametrize("most_naps", [1, 1 << 40])
def test_no_item_is_late_for_ever_where_the_producer_looks_for_room_itself(
    most_naps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHES", True)
    monkeypatch.setattr(module, "_MOST_NAPS", most_naps)
    monkeypatch.setattr(module, "_LONGEST_NAP_S", 1e-6)
    hinted: list[None] = []
    hint = Sleeper.hint

    def counted(self: Sleeper) -> None:
        hinted.append(None)
        hint(self)

    monkeypatch.setattr(Sleeper, "hint", counted)
    producer = Producer(8, 3000, hands_over=True, away_s=1.0)
    producer.thread.start()
    rng = random.Random(0)
    for number in range(3000):
        # Now and then away for some time, without and with the interpreter lock.
        for _ in range(rng.choice([0, 0, 0, 50])):
            os.sched_yield()
            sum(range(100))
        assert producer.outbox.take() == number
    producer.thread.join()
    assert hinted


def test_a_wake_or_a_hint_ends_a_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAPS", 1 << 40)
    mutex = threading.Lock()
    sleeper = Sleeper()
    sleeper.wake()
    assert sleeper.nap(mutex, 30)
    for end in (sleeper.wake, sleeper.hint):

        def rouse(end: Callable[[], None] = end) -> None:
            while True:
                with mutex:
                    if sleeper.napping:
                        return end()

        rouser = threading.Thread(target=rouse)
        rouser.start()
        assert sleeper.nap(mutex, 1e-6)
        rouser.join()
        assert not sleeper.napping
    monkeypatch.setattr(module, "_MOST_NAPS", 1)
    assert not sleeper.nap(mutex, 1e-6)


def test_a_hint_at_the_end_of_a_nap_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAPS", 1)
    sleeper = Sleeper()
    entered: list[None] = []

    class Mutex:
        def __enter__(self) -> None:
            entered.append(None)
            if len(entered) == 2:
                sleeper.hint()

        def __exit__(self, *error: object) -> None:
            pass

    assert sleeper.nap(Mutex(), 1e-6)
    assert len(entered) == 2


def test_an_idle_caller_and_its_producer_take_turns_without_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHES", True)
    # However slow this machine is at the moment, neither gives up.
    monkeypatch.setattr(module, "_CALLER_TURNS", 1 << 40)
    monkeypatch.setattr(module, "_PRODUCER_TURNS", 1 << 40)
    monkeypatch.setattr(module, "_LONGEST_WATCH_NS", 1 << 60)
    monkeypatch.setattr(module, "_HELD_UP_S", 1000.0)
    sleep = Sleeper.sleep

    def longest_without_sleep() -> int:
        """Batches that were taken while no one slept, in a run of 3000."""
        producer = Producer(4, 3000, hands_over=True)
        taken = [0]

        def noted(self: Any, timeout_s: float = -1) -> bool:
            taken.append(producer.outbox.taken)
            return sleep(self, timeout_s)

        monkeypatch.setattr(Sleeper, "sleep", noted)
        producer.thread.start()
        assert [producer.outbox.take() for _ in range(3000)] == list(range(3000))
        producer.thread.join()
        return max(after - before for before, after in pairwise(sorted([*taken, 3000])))

    # Who loses the processor is out of step for a while, on a busy machine again and again: there it is some 20 at a
    # time, elsewhere all 3000. Without watching it is never more than 5.
    assert any(longest_without_sleep() > 10 for _ in range(20))


def test_a_wake_while_watching_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_WATCH_NS", 1 << 60)
    monkeypatch.setattr(module, "_HELD_UP_S", 1000.0)
    sleeper = Sleeper()
    sleeper.wake()
    sleeper.watch(None, 1 << 40)
    waker = threading.Thread(target=sleeper.wake)
    waker.start()
    sleeper.watch(None, 1 << 40)
    waker.join()
    assert not sleeper.watching


def test_who_is_held_up_while_watching_sleeps_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    now = [0.0]

    def watch(theirs: Any, mine: Any, most: int, longest_ns: int, desk: Any, status: Any) -> int:
        watched.append(most)
        now[0] += 0.003 if len(watched) in (2, 3) else 0.0001
        return 0

    monkeypatch.setattr(module, "hand_over", watch)
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    sleeper = Sleeper()
    waits = []
    for wait in range(300):
        before = len(watched)
        sleeper.watch(None, 5)
        if len(watched) > before:
            waits.append(wait)
    # After the second watch it rests for 64 waits, after the third for twice as many.
    assert waits[:4] == [0, 1, 66, 195]
    assert waits[4:] == list(range(196, 300))


@pytest.mark.parametrize("window", [4, 16])
@pytest.mark.parametrize(
    ("batch_s", "idle", "alone"),
    [(1e-5, False, False), (1e-3, False, True), (1e-5, True, False), (1e-3, True, False), (1e-2, True, True)],
)
def test_a_slow_batch_is_not_held_back(
    batch_s: float, idle: bool, alone: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "_HOLD_S", 30)
    monkeypatch.setattr(module, "_HOLD_FOR_IDLE_S", 30)
    about_to_sleep = threading.Event()
    sleep = Sleeper.sleep

    def noted(self: Any, timeout_s: float = -1) -> bool:
        about_to_sleep.set()
        return sleep(self, timeout_s)

    monkeypatch.setattr(Sleeper, "sleep", noted)
    outbox = Outbox(window, 10, lambda: None)
    outbox.ahead = 4
    outbox.idle = idle
    outbox.put(0)
    assert outbox.take() == 0
    taken: list[int] = []
    ready: list[int] = []

    def take() -> None:
        taken.append(outbox.take())
        ready.append(len(outbox._ready))

    caller = threading.Thread(target=take)
    caller.start()
    assert about_to_sleep.wait(30)
    for number in range(1, 4):
        now[0] += batch_s
        outbox.put(number)
        assert outbox._waiting == (not alone and number < 3)  # no more as soon as it is woken
        if alone:
            break
    caller.join(20)
    assert taken == [1]
    # Quick ones come three at a time, a slow one alone; what is slow for a caller that is idle takes longer.
    assert ready == [0 if alone else 2]


@pytest.mark.parametrize(("idle", "longest_s"), [(False, 0.001), (True, 0.004)])
def test_a_batch_that_is_there_is_held_back_for_a_moment_only(
    idle: bool, longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(4, 10, lambda: None)
    outbox.idle = idle
    outbox.put(0)
    assert outbox.take() == 0
    waits: list[float] = []

    def sleep(self: Any, timeout_s: float = -1) -> bool:
        waits.append(timeout_s)
        if not outbox._ready:
            outbox.put(1)  # quick: nobody is woken for it
        return False

    monkeypatch.setattr(Sleeper, "sleep", sleep)
    assert outbox.take() == 1
    assert waits == [longest_s]


def test_a_wake_is_not_missed_by_who_begins_to_watch_meanwhile() -> None:
    sleeper = Sleeper()

    class Lock:
        """As another thread sees the sleeper's own, which clears the signal at the last moment before it is free."""

        def release(self) -> None:
            sleeper._signal[0] = 0

    sleeper._lock = Lock()  # type: ignore[assignment]
    sleeper.wake()
    assert sleeper._signal[0] == 1


def test_a_caller_is_idle_that_comes_back_at_once_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    pace = Pace()

    def comes_back(after_s: float) -> bool:
        now[0] += after_s
        idle = pace.idle()
        now[0] += 1.0  # waits for the batch
        pace.given()
        return idle

    assert [comes_back(1e-5) for _ in range(18)] == [False] * 15 + [True] * 3
    assert pace.away_s == pytest.approx(1e-5, rel=0.01)
    assert not comes_back(1e-3)
    assert pace.away_s == pytest.approx(2.6e-4, rel=0.1)
    assert [comes_back(1e-5) for _ in range(17)] == [False] * 15 + [True] * 2


class _Watched(ItemDataset):
    """Counts the samples that are made beyond those asked for, and lets the caller wait for them."""

    def __init__(self) -> None:
        super().__init__(200)
        self.made = self.asked = self.wanted = self.most_ahead = 0
        self.reached = threading.Event()

    def before_read(self, index: int) -> None:
        self.made = index + 1
        self.most_ahead = max(self.most_ahead, self.made - self.asked)
        if self.made >= self.wanted:
            self.reached.set()


@pytest.mark.parametrize(("idle", "ahead"), [(True, 4), (False, 16)])
def test_fewer_batches_are_made_ahead_for_an_idle_caller(
    idle: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "idle", lambda self: idle)
    dataset = _Watched()
    loader = StatefulDataLoader(dataset, list, local_batch_size=1, prefetch=16, shuffle=False)
    with loader, iter(loader) as batches:
        for number in range(200 - ahead):
            if number == 40:
                # Before the first one was asked for, nobody was known to be idle.
                dataset.most_ahead = 0
            # A thread that found no room goes on when half of it is free.
            dataset.reached.clear()
            dataset.wanted = number + ahead // 2 + 1
            assert dataset.made >= dataset.wanted or dataset.reached.wait(30)
            dataset.asked = number + 1
            assert next(batches) == [number]
            assert batches._feed._outbox.idle is idle
    assert ahead // 2 <= dataset.most_ahead <= ahead


def test_the_rest_of_the_batch_thread_ends() -> None:
    outbox = Outbox(4, 100, lambda: None, hands_over=False)
    assert not outbox.park()
    outbox.resting = True
    assert outbox.park() and outbox.take() is PARKED
    outbox.took()
    outbox.unpark()
    assert not outbox.resting and not outbox.park()
    outbox.put("made again")
    assert outbox.take() == "made again"
