"""Steps in several threads, whose end is waited for whatever strikes the caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from guideloom._base.interrupts import interrupts_later

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_threads(
    step: Callable[[ItemT], ResultT], items: Iterable[ItemT], most_threads: int, name: str
) -> list[ResultT]:
    """Return what ``step`` gives for each item, in order.

    When it raises, no step runs any more: those that had begun were waited for. Of several errors it raises that of the
    first item.
    An executor of Python's would not do: an interrupt at a bad moment leaves its locks locked, or replaces itself by an
    error of its own.

    Parameters
    ----------
    step : callable
        Runs in the threads.
    items : iterable
    most_threads : int
        No more are started than there are items.
    name : str
        Of the threads, which get a number behind it.
    """
    left = deque(enumerate(items))
    results: list[Any] = [None] * len(left)
    raised: dict[int, BaseException] = {}
    threads = [
        threading.Thread(target=lambda: _work(step, left, results, raised, begun, ended, wake), name=f"{name}_{number}")
        for number in range(min(most_threads, len(left)))
    ]
    started: list[threading.Thread] = []
    begun: list[bool] = []
    ended: list[bool] = []
    wake = threading.Lock()
    wake.acquire()
    try:
        # What starts a thread would lose it.
        with interrupts_later():
            for thread in threads:
                thread.start()
                started.append(thread)
        _await(left, begun, ended, wake)
        _join(started)
    except BaseException:
        left.clear()
        # Not for the threads that were started: for one whose start was interrupted, too.
        _await(left, begun, ended, wake)
        _join(started)
        raise
    if raised:
        raise raised[min(raised)]
    return results


def _work(
    step: Callable[[ItemT], ResultT],
    left: deque[tuple[int, ItemT]],
    results: list[ResultT],
    raised: dict[int, BaseException],
    begun: list[bool],
    ended: list[bool],
    wake: threading.Lock,
) -> None:
    begun.append(True)
    try:
        while left:
            try:
                number, item = left.popleft()
            except IndexError:  # Another thread took the last one.
                return
            try:
                results[number] = step(item)
            except BaseException as error:  # noqa: BLE001  whatever it is, the caller gets it
                left.clear()
                raised[number] = error
    finally:
        ended.append(True)
        with suppress(RuntimeError):  # A wake is there already.
            wake.release()


def _await(left: deque[Any], begun: list[bool], ended: list[bool], wake: threading.Lock) -> None:
    """Wait until nothing is left, and who took something has ended; who begins later finds nothing."""
    while left or len(ended) < len(begun):
        wake.acquire()


def _join(started: list[threading.Thread]) -> None:
    with interrupts_later():
        for thread in started:
            thread.join()
