"""Ctrl-C that waits for the end of what must not be cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Raise the ``KeyboardInterrupt`` of a Ctrl-C at the end of the block.

    Blocking the signal would not do: another thread gets it then, and Python interrupts the main thread nevertheless.
    A handler of the user's is left alone, and so is every thread but the main one, which alone is interrupted.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    met: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: met.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if met:
            raise KeyboardInterrupt
