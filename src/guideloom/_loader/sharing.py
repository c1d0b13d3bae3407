"""Whether it pays to share the reading of batches among threads, found out while they are read.

Threads help where reads wait for a device or run long without the interpreter lock. Where they do not, every hand-over
costs more than the read: it is then better that one thread reads alone, and the others sleep. What is delivered does
not depend on this.
"""

from __future__ import annotations

# A batch that is made in less time is done before another thread has woken up.
_WORTH_SHARING_S = 0.0002
_BETTER = 0.9
_ALONE_TRIAL = 4
_SHARED_TRIAL = 16
_FIRST_STRETCH = 64
_LONG_STRETCH = 512
_LONGEST_STRETCH = 4096


class Sharing:
    """Compares the cost of a batch made alone with that of one whose reading is shared, and prefers the cheaper way.

    Parameters
    ----------
    possible : bool
        Whether there are threads to share with.
    window : int
        Batches that may be under way at once.

    Attributes
    ----------
    shared : bool
        What to do at present. Changed by ``note`` only.
    """

    __slots__ = ("_count", "_reference_s", "_stretch", "_sum_s", "_trial", "_until", "_window", "possible", "shared")

    def __init__(self, possible: bool, window: int) -> None:
        self.possible = possible
        self.shared = False
        self._window = window
        self._trial = False
        self._reference_s = 0.0
        self._stretch = _FIRST_STRETCH
        # One batch tells a slow device from a fast one.
        self._until = 1
        self._count = 0
        self._sum_s = 0.0

    def note(self, shared: bool, cost_s: float) -> None:
        """Take note of a batch.

        Parameters
        ----------
        shared : bool
            Whether its reading was shared; batches begun before the last change do not count.
        cost_s : float
            Time since the batch before, in seconds, without waits for a slow caller.
        """
        if shared is not self.shared:
            return
        self._count += 1
        self._sum_s += cost_s
        if self._count < self._until:
            return
        mean_s = self._sum_s / self._count
        self._count, self._sum_s = 0, 0.0
        if self._trial:
            self._trial = False
            if mean_s < _BETTER * self._reference_s:
                self._stretch = _FIRST_STRETCH
            else:
                self.shared = not self.shared
                self._stretch = min(max(_LONG_STRETCH, 2 * self._stretch), _LONGEST_STRETCH)
            self._until = self._stretch
        elif not self.shared and mean_s < _WORTH_SHARING_S:
            self._until = self._stretch
        else:
            self._trial = True
            self._reference_s = mean_s
            self.shared = not self.shared
            self._until = max(_SHARED_TRIAL, 2 * self._window) if self.shared else _ALONE_TRIAL
