"""When to ask for bytes ahead of their reads: on by itself where reads wait for the disk, nothing where they do not."""

from __future__ import annotations

MAX_AHEAD_RUNS = 256
"""Most runs asked for ahead: several times the depth at which a disk is busy."""

WARM_GATHERS = 16
"""Gathers in a row that found all in the page cache after which asking ahead stops."""

MEASURED_EVERY = 8
"""Of so many gathers one is measured while all is in the page cache: that takes as long as to copy 8 KB."""

WAITS_PER_RUN = 0.5
"""Waits a run from which on reads are taken to wait for storage, also where no blocks are counted (a network)."""


class Readahead:
    """Notices from what the last gathers read from devices whether the data is in the page cache.

    Parameters
    ----------
    max_bytes : int
        Most bytes asked for ahead of the batch that is being read; 0: nothing is ever asked for.

    Attributes
    ----------
    cold : bool
        Whether to ask ahead. Several threads use it without a lock: a lost update costs one batch's advice.
    untried : bool
        Whether nothing was read yet. What is read first is then asked for at once: on a slow storage that saves a wait
        for each of its runs, and in the page cache it costs half a microsecond a run, once.
    """

    __slots__ = ("_asked", "_gathers", "_warm", "cold", "max_bytes", "untried")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.cold = False
        self.untried = max_bytes > 0
        self._warm = 0
        self._asked = 0
        self._gathers = 0

    def due(self) -> bool:
        """Whether the next gather is to be measured: each, but only some as long as all is in the page cache."""
        self._gathers += 1
        return self.cold or self.untried or (self.max_bytes > 0 and self._gathers % MEASURED_EVERY == 0)

    def reach(self, run_bytes: int) -> int:
        """Return how many runs of that many bytes each may be asked for ahead."""
        return min(MAX_AHEAD_RUNS, self.max_bytes // max(1, run_bytes))

    def note(self, runs: int, blocks: int, waits: int) -> None:
        """Take note of one gather: its runs, the blocks it read from devices, and how often it waited."""
        if not self.max_bytes:
            return
        self.untried = False
        if blocks or waits > runs * WAITS_PER_RUN or self._asked:
            self.cold = True
            self._warm = 0
            self._asked = 0
        elif self.cold:
            self._warm += 1
            if self._warm >= WARM_GATHERS:
                self.cold = False

    def note_asked(self, blocks: int) -> None:
        """Take note of the blocks that asking ahead made devices read."""
        self._asked += blocks
