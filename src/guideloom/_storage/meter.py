"""How far a check or a copy of many bytes has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are done, and all bytes."""


class Meter:
    """Adds up the bytes that are done, and reports each sum.

    Parameters
    ----------
    total : int
        All bytes.
    progress : callable, optional
        Called at once, and after each :meth:`add`.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self._total = total
        self._progress = progress
        self.add(0)

    def add(self, size: int) -> None:
        """Count ``size`` more bytes as done."""
        self.done += size
        if self._progress is not None:
            self._progress(self.done, self._total)
