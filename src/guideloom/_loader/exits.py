"""Ends the threads of feeds before the interpreter does."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from time import perf_counter

from guideloom._loader.work import Feed

LOGGER = logging.getLogger("guideloom")

_TIMEOUT_S = 1.0
_TIMEOUT_OF_OTHERS_S = 60.0
_LOOK_S = 0.02

_CALLS_TORCH, _CALLS_BACKENDS = "guideloom._loader.bridge", "guideloom._read.files"
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
    _await_others_code([thread for _, threads in feeds for thread in threads])


def _await_others_code(threads: list[threading.Thread]) -> None:
    """Wait while threads run a user's functions, or compile a kernel.

    A thread that wants the interpreter lock when the interpreter is gone is ended by it, where it stands (up to Python
    3.13). C++ code, torch's, does not survive that: the process would end by SIGABRT, with all its work done.
    """
    deadline = perf_counter() + _TIMEOUT_OF_OTHERS_S
    for thread in threads:
        told = False
        while thread.is_alive() and _runs_others_code(modules := _modules_of(thread)):
            left_s = deadline - perf_counter()
            if left_s <= 0:
                return
            if not told and _COMPILES not in modules:
                told = True
                LOGGER.warning(
                    "%s still runs at exit, in collate_fn or unpack: waiting for it, for %.0f s at most",
                    thread.name,
                    left_s,
                )
            thread.join(_LOOK_S)


def _modules_of(thread: threading.Thread) -> list[str]:
    """Return the module of each function that a thread is in, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return modules


def _runs_others_code(modules: list[str]) -> bool:
    """Whether these belong to a user's function, or torch's; not to a backend's, whose reads may hang."""
    if not modules or _CALLS_BACKENDS in modules:
        return False
    return modules[0].partition(".")[0] != "guideloom" or modules[0] == _CALLS_TORCH
