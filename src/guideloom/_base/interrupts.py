"""Keeps what a signal's handler raises from striking where something would be lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Those whose handlers raise in practice: Ctrl-C, schedulers that want their machine back, limits of time, dead workers.
_NUMBERS = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGALRM",
        "SIGUSR1",
        "SIGUSR2",
        "SIGHUP",
        "SIGQUIT",
        "SIGCHLD",
        "SIGVTALRM",
        "SIGXCPU",
        "SIGBREAK",
    )
    if hasattr(signal, name)
)


def open_descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is there as ``os.open`` does; an interrupt that comes meanwhile leaves no open file behind."""
    opened: list[int] = []
    try:
        # Within C from the call to the list: Python itself would interrupt between the call and a name for its result.
        opened.extend(map(os.open, (path,), (flags,)))
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened[0]


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Run the handlers of signals, that of Ctrl-C and a user's own, at the end of the block.

    A handler may raise, at any point of the block; what it raises then leaves the block's end instead. Blocking the
    signals would not do: another thread gets them then, and Python interrupts the main thread nevertheless.
    In other threads than the main one, which alone is interrupted, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = _Waiting()
    try:
        waiting.begin()
        yield
    finally:
        waiting.end()


class _Waiting:
    """Stands in for handlers, and calls them later."""

    __slots__ = ("_handlers", "_held", "_met", "_pid")

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held: list[int] = []
        self._met: dict[int, FrameType | None] = {}  # as the system does, one of each number
        self._pid = os.getpid()

    def begin(self) -> None:
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler):
                # Said first: a handler that raises in between must not find a change that nobody takes back.
                self._handlers[number] = handler
                self._held.append(number)
                signal.signal(number, self._note)

    def end(self) -> None:
        try:
            self._give_back()
        finally:
            self._call()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._met[number] = frame
        else:
            # A process forked in the block never sees its end.
            self._handlers[number](number, frame)

    def _give_back(self) -> None:
        try:
            self._give_back_in_turn()
        finally:
            # One that is back already may raise before the others are.
            if self._held:
                self._give_back()

    def _give_back_in_turn(self) -> None:
        while self._held:
            number = self._held[-1]
            signal.signal(number, self._handlers[number])
            self._held.pop()

    def _call(self) -> None:
        try:
            self._call_in_turn()
        finally:
            if self._met:
                self._call()

    def _call_in_turn(self) -> None:
        while self._met:
            number, frame = self._met.popitem()
            self._handlers[number](number, frame)
