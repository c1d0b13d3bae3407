"""Ends the threads of feeds before the interpreter does."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from guideloom._loader.work import Feed

LOGGER = logging.getLogger("guideloom")

_TIMEOUT_S = 1.0
_TIMEOUT_OF_WORK_S = 60.0
_LOOK_S = 0.25

_COMPILES = "guideloom._kernels.jit"

_FEEDS: dict[Feed, list[threading.Thread]] = {}


def register(feed: Feed, threads: list[threading.Thread]) -> None:
    """Have ``feed`` stopped and joined when the interpreter exits."""
    _FEEDS[feed] = threads


def unregister(feed: Feed) -> None:
    """Forget a feed whose threads have ended."""
    _FEEDS.pop(feed, None)


@atexit.register
def _stop_all() -> None:
    feeds = list(_FEEDS.items())
    for feed, _ in feeds:
        feed.stop()
    deadline = perf_counter() + _TIMEOUT_S
    for feed, _ in feeds:
        feed.join(max(0.0, deadline - perf_counter()))
    _await_work([thread for _, threads in feeds for thread in threads])


def _await_work(threads: list[threading.Thread]) -> None:
    """Wait while threads compute: a user's function, as a rule. One that waits itself, for a read say, may hang.

    A thread that wants the interpreter lock when the interpreter is gone is ended by it, where it stands (up to Python
    3.13). C++ code, torch's, does not survive that: the process would end by SIGABRT, with all its work done.
    """
    deadline = perf_counter() + _TIMEOUT_OF_WORK_S
    used = [_used_ticks(thread) for thread in threads]
    compiling = any(_compiles(thread) for thread in threads)
    told = False
    while (alive := [thread for thread in threads if thread.is_alive()]) and perf_counter() < deadline:
        until = perf_counter() + _LOOK_S
        for thread in alive:  # one that ends at once must not make the look too short for the others
            thread.join(max(0.0, until - perf_counter()))
        before, used = used, [_used_ticks(thread) for thread in threads]
        working = [
            thread
            for thread, a, b in zip(threads, before, used, strict=True)
            # The system may have one for a moment longer than Python. And on a machine with much other work, one that
            # computes may have got less than a tick, or nothing.
            if thread.is_alive() and (b > a or _wants_to_run(thread))
        ]
        if not working:
            return
        # One that compiled when the look began may be on its way out.
        compiled, compiling = compiling, any(_compiles(thread) for thread in working)
        if not (told or compiled or compiling):
            told = True
            LOGGER.warning(
                "%s still works at exit, in collate_fn or unpack: waiting for it, for %.0f s at most",
                working[0].name,
                _TIMEOUT_OF_WORK_S,
            )


def _used_ticks(thread: threading.Thread) -> int:
    """Return the processor time that a thread used, in ticks of the system (10 ms); 0 where it does not say."""
    user, system = _stat(thread)[11:13] or (0, 0)
    return int(user) + int(system)


def _wants_to_run(thread: threading.Thread) -> bool:
    """Whether a thread runs, or waits for nothing but a processor; False where the system does not say."""
    return _stat(thread)[:1] == ["R"]


def _stat(thread: threading.Thread) -> list[str]:
    """Return what the system says of a thread, from its state on; nothing where it does not."""
    with suppress(OSError):
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()
    return []


def _compiles(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != _COMPILES:
        frame = frame.f_back
    return frame is not None
