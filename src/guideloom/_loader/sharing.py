"""How many threads should share the reading of batches, found out while they are read.

Threads help where reads wait for a device or run long without the interpreter lock. Where they do not, every hand-over
costs more than the read: it is then better that one thread reads alone, and the others sleep. What is delivered does
not depend on this.
"""

from __future__ import annotations

import os

# A batch that is made in less time is done before another thread has woken up.
_WORTH_SHARING_S = 0.0002
# More threads must be worth their noise; fewer are preferred when they do as well.
_BETTER_WITH_MORE = 0.75
_BETTER_WITH_FEWER = 1.0
# Reads wait when they spend more than this part of their time so.
_WAITING = 0.5
_ALONE_TRIAL = 4
_SHARED_TRIAL = 12
_FIRST_STRETCH = 128
_LONGEST_STRETCH = 4096


class Sharing:
    """Finds the number of threads with which a batch costs least, by trials of a few batches; over several epochs.

    From one thread alone it climbs to 2, 4, 8, ... threads as long as that pays, and looks now and then whether fewer,
    or more, do better by now. A trial that fails makes the next one rarer. Where reads do not wait, threads can only
    compete for processors: there it tries no more of them than there are processors besides the caller's.

    Parameters
    ----------
    num_readers : int
        Threads to share with; 0: there is nothing to find out.
    window : int
        Batches that may be under way at once.
    processors : int, optional
        Processors that this process may use; by default what the system says.

    Attributes
    ----------
    width : int
        How many of the threads may read at present; 0: one thread makes each batch alone. Changed by ``note`` only.
    costly : bool
        Whether the last batch took long enough for its waits to matter.
    """

    __slots__ = (
        "_count",
        "_level",
        "_levels",
        "_longest_s",
        "_longest_waited_s",
        "_processors",
        "_reference_s",
        "_stretch",
        "_sum_s",
        "_trial",
        "_until",
        "_up",
        "_waited_s",
        "_waits",
        "_window",
        "costly",
        "num_readers",
        "width",
    )

    def __init__(self, num_readers: int, window: int, processors: int | None = None) -> None:
        self.num_readers = num_readers
        self._processors = usable_processors() if processors is None else processors
        self.width = 0
        self.costly = False
        self._window = window
        self._levels = [0]
        while self._levels[-1] < num_readers:
            doubled = max(2, 2 * self._levels[-1])
            # A last step of a few threads more could not be told from noise.
            self._levels.append(doubled if 1.5 * doubled <= num_readers else num_readers)
        self._level = 0
        self._up = True
        self._trial = 0
        self._reference_s = 0.0
        self._stretch = _FIRST_STRETCH
        self._waits = False
        self._count = 0
        self._waited_s = 0.0
        self._longest_waited_s = 0.0
        self._sum_s = 0.0
        self._longest_s = 0.0
        self._until = _ALONE_TRIAL

    @property
    def shared(self) -> bool:
        """Whether reading is shared at present."""
        return self.width > 0

    def note(self, shared: bool, cost_s: float, waited_s: float = 0.0) -> None:
        """Take note of a batch.

        Parameters
        ----------
        shared : bool
            Whether its reading was shared; batches begun before that changed do not count.
        cost_s : float
            Time since the batch before, in seconds, without waits for a slow caller.
        waited_s : float
            How much of it the one thread that read alone did not run; not used of shared batches.
        """
        self.costly = cost_s >= _WORTH_SHARING_S
        if shared is not (self.width > 0):
            return
        self._count += 1
        self._sum_s += cost_s
        self._waited_s += waited_s
        # Of batches made alone the longest is left out: loading a kernel, say, happens once, and is no property of
        # this way. Shared ones come in bursts, each after a long wait that belongs to all of them.
        if not shared and cost_s > self._longest_s:
            self._longest_s = cost_s
            self._longest_waited_s = waited_s
        # A trial that cannot be won any more is over.
        lost = self._trial and self._sum_s - self._longest_s > self._reference_s * self._until
        if self._count < self._until and not lost:
            return
        mean_s = (self._sum_s - self._longest_s) / (self._count - (not shared))
        if not self._trial:
            self._reference_s = mean_s
            self._try_next()
        elif not lost and mean_s < self._reference_s * (_BETTER_WITH_MORE if self._trial > 0 else _BETTER_WITH_FEWER):
            self._level += self._trial
            self._reference_s = mean_s
            self._stretch = _FIRST_STRETCH
            self._try_next()
        else:
            self._up = self._trial < 0
            self._settle()

    def _try_next(self) -> None:
        """Begin a trial of the level above, or below; settle where there is none."""
        if self._level == 0:
            self._up = True
        elif self._level == len(self._levels) - 1 and not self._trial:
            self._up = False
        step = 1 if self._up else -1
        if self._level == 0 and self._reference_s < _WORTH_SHARING_S:
            # Looking costs nothing here.
            self._stretch = _FIRST_STRETCH
            self._settle()
            return
        if not 0 <= self._level + step < len(self._levels):
            self._up = not self._up
            self._settle()
            return
        if self._level == 0:
            waited_s = self._waited_s - self._longest_waited_s
            self._waits = waited_s > _WAITING * (self._sum_s - self._longest_s)
        if step > 0 and not self._waits and self._levels[self._level + 1] > self._processors - 1:
            self._settle()
            return
        self._trial = step
        self.width = self._levels[self._level + step]
        # Shared batches come in bursts of as many as are read at once. With fewer threads than before, those that more
        # have read ahead come first.
        burst = self._window if step < 0 else min(self._window, self.width)
        self._start(max(_SHARED_TRIAL, 2 * burst) if self.width else _ALONE_TRIAL)

    def _settle(self) -> None:
        """Stay at the present level for a while."""
        self._trial = 0
        self.width = self._levels[self._level]
        self._start(self._stretch)
        self._stretch = min(4 * self._stretch, _LONGEST_STRETCH)

    def _start(self, until: int) -> None:
        self._until = until
        self._count = 0
        self._waited_s = 0.0
        self._longest_waited_s = 0.0
        self._sum_s = 0.0
        self._longest_s = 0.0


def usable_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
