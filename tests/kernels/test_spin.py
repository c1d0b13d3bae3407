"""Handing over without sleep: the other is signalled, and a signal ends the watch."""

from __future__ import annotations

import threading

import numpy as np

from guideloom._kernels import spin
from guideloom._kernels.desk import NO_DESK
from guideloom._kernels.gather import new_status

NEVER_ENDING = 1 << 60


def hand_over(theirs: np.ndarray, mine: np.ndarray, most: int, longest_ns: int) -> int:
    return int(spin.hand_over(theirs, mine, most, longest_ns, NO_DESK, new_status()))


def flag() -> np.ndarray:
    return np.zeros(1, np.int64)


def test_the_other_is_signalled_and_the_watch_has_an_end() -> None:
    theirs, mine = flag(), flag()
    assert hand_over(theirs, mine, 3, NEVER_ENDING) == 0
    assert theirs.tolist() == [1]
    assert mine.tolist() == [0]


def test_a_watch_that_others_hold_up_ends_by_time() -> None:
    # Turns without end: only the time can end this.
    assert hand_over(flag(), flag(), NEVER_ENDING, 1000) == 0


def test_two_threads_take_turns_without_the_interpreter_lock() -> None:
    hand_over(flag(), flag(), 0, 0)
    one, two, order = flag(), flag(), []

    def other() -> None:
        for _ in range(200):
            hand_over(flag(), two, NEVER_ENDING, NEVER_ENDING)
            two[0] = 0
            order.append("other")
            one[0] = 1

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(200):
        order.append("main")
        assert hand_over(two, one, NEVER_ENDING, NEVER_ENDING) == 0
        assert one.tolist() == [1]
        one[0] = 0
    thread.join()
    assert order == ["main", "other"] * 200
