"""Interrupts at every point of a program where Python can raise what a signal's handler raises."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

StateT = TypeVar("StateT")

NUMBER = signal.SIGUSR1


class Interrupted(BaseException):
    """What a handler raises that ends a program."""


class LateError(OSError):
    """What a handler raises that limits time: as the built-in one, an OSError."""


class _Points:
    """Sends a signal at one of a program's points: a function of Python begins, or one of C has returned."""

    def __init__(self, chosen: int) -> None:
        self.chosen = chosen
        self.seen = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self.chosen:
                self.where = f"{event} {getattr(arg, '__name__', '')} at {frame.f_code.co_filename}:{frame.f_lineno}"
                del arg  # else what is raised would keep what the function belongs to: a view, and what it shows
                signal.raise_signal(NUMBER)


def descriptors() -> dict[str, str]:
    """Open descriptors of this process, and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # that of the listing itself
    return found


def _threads() -> list[str]:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("guideloom")]
    for thread in ours:
        if thread.ident is not None:
            thread.join(10)
    return [thread.name for thread in ours if thread.ident is None or thread.is_alive()]


def interrupt_everywhere(
    make: Callable[[], StateT],
    act: Callable[[StateT], object],
    check: Callable[[StateT, bool], None],
    error: type[BaseException] = Interrupted,
    every: int = 1,
) -> int:
    """Run ``act`` again and again, each time with a signal at its next point, until it runs to its end without one.

    Parameters
    ----------
    make : callable
        Returns what ``act`` works on.
    check : callable
        Called with that, and whether ``act`` was interrupted; must not fail, wait for ever, nor leave anything open.
    error : type of exception
        What the signal's handler raises.
    every : int
        Only every so-many-th point is tried.

    Returns
    -------
    int
        How many points were tried.
    """

    def refuse(number: int, frame: FrameType | None) -> None:
        raise error("interrupted")

    def pass_over(unraisable: sys.UnraisableHookArgs) -> None:
        # Python itself swallows what is raised in a finaliser.
        if unraisable.exc_type is not error:
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, pass_over
    handler = signal.signal(NUMBER, refuse)
    try:
        chosen, tried = 1, 0
        while True:
            open_before = descriptors()
            points = _Points(chosen)
            state = make()
            interrupted = False
            try:
                sys.setprofile(points)
                try:
                    act(state)
                finally:
                    sys.setprofile(None)
            except error:
                interrupted = True
            try:
                check(state, interrupted)
                del state
                assert _threads() == []
                if descriptors() != open_before:
                    gc.collect()
                    assert descriptors() == open_before
                assert signal.getsignal(NUMBER) is refuse
            except BaseException as problem:
                problem.add_note(f"interrupted at point {chosen}: {points.where or 'none'}")
                raise
            if points.seen < chosen:
                return tried
            tried += 1
            chosen += every
    finally:
        signal.signal(NUMBER, handler)
        sys.unraisablehook = hook
