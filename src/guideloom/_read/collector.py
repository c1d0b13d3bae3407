"""Python's cyclic collector while samples of many small objects are made: it is kept to the young ones.

A collection that begins by itself visits the middle generation too when that one's turn has come. Whatever lives then,
as the samples of every batch that waits, counts as old from there on, and a fourth more of old objects brings a pass
over all that there are: 0.1 s in a process that has imported torch. Visits to the young objects alone, asked for in
time, leave the collector no reason to begin by itself; samples that are dropped are gone before they count as old.
"""

from __future__ import annotations

import gc

# As many times as usual may young objects be visited before the middle generation is, where it never has garbage.
_MOST_PATIENCE = 32


class YoungObjects:
    """Room for the objects of one sample after the other, as long as the collector does not begin by itself.

    Parameters
    ----------
    most : int
        Objects that may be young at a time; 0 leaves all to the collector.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        self._most = most

    def make_room(self, num: int) -> None:
        """Visit the young objects now if `num` more would have the collector begin by itself, and now helps."""
        if num < self._most < gc.get_count()[0] + num:
            gc.collect(0)


class Collector:
    """When older generations are visited, where young objects are visited by us; one for a process, as Python's is.

    Cycles in what a user's functions make are garbage that only the collector frees. So the middle generation is
    visited the later, the more often nothing was found in it, and as soon as the thresholds say where something was.
    Garbage that lived during such a visit waits for a pass over all: when as many visits as the third threshold says
    were made since the last one, everything is left to the collector until it has made the next.
    """

    __slots__ = ("_num_passes", "_num_visits", "patience")

    def __init__(self) -> None:
        self.patience = 1
        self._num_visits = 0
        self._num_passes = 0

    def begin_batch(self) -> YoungObjects:
        """Visit the middle generation if it is due, and return the room for the objects of a batch."""
        young, middle, old = gc.get_threshold()
        if not young or not gc.isenabled():
            return YoungObjects(0)
        if self._num_visits > old and not self._look_for_a_pass():
            return YoungObjects(0)
        if gc.get_count()[1] > self.patience * middle:
            self.patience = 1 if gc.collect(1) else min(4 * self.patience, _MOST_PATIENCE)
            self._look_for_a_pass()
            self._num_visits += 1
        return YoungObjects(young - young // 4)  # the rest is for what collate functions and other threads make

    def _look_for_a_pass(self) -> bool:
        """Whether all objects were visited since the last look."""
        num_passes = gc.get_stats()[2]["collections"]
        passed: bool = num_passes != self._num_passes
        if passed:
            self._num_passes = num_passes
            self._num_visits = 0
        return passed


COLLECTOR = Collector()
