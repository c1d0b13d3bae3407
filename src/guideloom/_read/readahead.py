"""When to ask for bytes ahead of their reads: on by itself where reads wait for the disk, nothing where they do not."""

from __future__ import annotations

MAX_AHEAD_BYTES = 64 << 20
"""Most bytes asked for ahead of the batch that is being read."""

MAX_AHEAD_RUNS = 256
"""Most runs asked for ahead: several times the depth at which a disk is busy."""

WARM_NS_PER_RUN = 2_000
WARM_NS_PER_BYTE = 0.5
"""What a read from the page cache takes at most, generously; slower reads waited for something."""

WARM_GATHERS = 16
"""Gathers in a row at the speed of the page cache after which asking ahead stops."""


class Readahead:
    """Notices from the time of the last gathers whether the data is in the page cache.

    Attributes
    ----------
    cold : bool
        Whether to ask ahead. Several threads use it without a lock: a lost update costs one batch's advice.
    """

    __slots__ = ("_warm", "cold")

    def __init__(self) -> None:
        self.cold = False
        self._warm = 0

    def note(self, runs: int, nbytes: int, elapsed_ns: int) -> None:
        """Take note of one gather: runs, bytes, and the time inside the kernel."""
        if elapsed_ns > runs * WARM_NS_PER_RUN + nbytes * WARM_NS_PER_BYTE:
            self.cold = True
            self._warm = 0
        elif self.cold:
            self._warm += 1
            if self._warm >= WARM_GATHERS:
                self.cold = False
