"""What is to be read for each batch, and what is done with it; used by the caller's thread and by ours alike.

Letters: B samples of a full batch of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from guideloom._base.locks import new_lock
from guideloom._dataset.source import BatchSource, Empty
from guideloom._loader.draws import HERE, U64
from guideloom._plan.order import Order
from guideloom._plan.partition import Partition
from guideloom._plan.seeds import position_seeds

CollateFn = Callable[[list[Any]], Any]

# Rows planned in one go: enough to share the fixed cost of a plan, few enough not to delay the first batch.
_CHUNK_ROWS = 512
_CHUNKS_KEPT = 3


class Schedule:
    """The rows of each batch that this rank still gets in an epoch, planned in chunks of several batches.

    Successive full batches of a rank are one arithmetic progression of positions (stride: the number of ranks), so a
    chunk is one call of the order and one of ``BatchSource.prepare``.

    Parameters
    ----------
    source : BatchSource
    order : Order
    partition : Partition
    offset : int
        Samples of the epoch that were delivered before, over all ranks.
    """

    def __init__(self, source: BatchSource, order: Order, partition: Partition, offset: int) -> None:
        self._source = source
        self.order = order
        self._partition = partition
        self._offset = offset
        self.num_batches = partition.num_batches(offset)
        self.batch_size = partition.local_batch_size
        left = partition.size - offset
        self._num_full = min(self.num_batches, left // partition.global_batch_size)
        self._per_chunk = max(1, _CHUNK_ROWS // partition.local_batch_size)
        self._chunks: dict[int, Any] = {}
        self._lock = new_lock()

    def positions(self, number: int) -> tuple[int, int, int]:
        """Return the positions of batch ``number`` as ``(start, stride, count)``."""
        return self._partition.batch_positions(self._offset, number)

    def seeds(self, number: int) -> U64:
        """Return a seed for each sample of batch ``number``."""
        return position_seeds(self.order, *self.positions(number))

    def rows(self, number: int) -> tuple[Any, int, int]:
        """Return ``(prepared, lo, hi)`` of batch ``number`` in ``[0, num_batches)``, for ``BatchSource.samples``.

        Any thread may call it; batches are asked for roughly in order.
        """
        if number >= self._num_full:
            return self._plan(number, 1), 0, self.positions(number)[2]
        chunk, place = divmod(number, self._per_chunk)
        prepared = self._chunks.get(chunk)
        if prepared is None:
            prepared = self._planned(chunk)
        if place == self._per_chunk // 2 and self._source.waits and number + self._per_chunk < self._num_full:
            self._source.follow(prepared, self._planned(chunk + 1))
        lo = place * self.batch_size
        return prepared, lo, lo + self.batch_size

    def _planned(self, chunk: int) -> Any:
        with self._lock:
            return self._planned_alone(chunk)

    def _planned_alone(self, chunk: int) -> Any:
        prepared = self._chunks.get(chunk)
        if prepared is None:
            first = chunk * self._per_chunk
            prepared = self._plan(first, min(self._per_chunk, self._num_full - first))
            while len(self._chunks) >= _CHUNKS_KEPT:
                del self._chunks[min(self._chunks)]
            self._chunks[chunk] = prepared
        return prepared

    def _plan(self, first: int, num_batches: int) -> Any:
        start, stride, count = self.positions(first)
        return self._source.prepare(self.order.positions_to_indexes(start, stride, count * num_batches))


def collated(collate_fn: CollateFn, samples: list[Any], seeds: Callable[[int], U64], number: int) -> Any:
    """Return the user's batch ``number`` of samples; an error over none of them says where that comes from."""
    before = HERE.seeds
    try:
        HERE.seeds = partial(seeds, number)
        return collate_fn(samples)
    except Exception as error:
        if not samples:
            error.add_note(
                "collate_fn was given an empty list: with drop_last=False this rank has no part of the last batch"
            )
        raise
    finally:
        # No call of a function, at whose begin an interrupt could strike and leave it as it is.
        HERE.seeds = before


class Work(Protocol):
    """How a batch is made; both steps may run in any thread."""

    splits: bool
    """Whether a batch may be read in several parts."""
    anywhere: bool
    """Whether ``finish`` may run in one thread now and in another one then; user code may rely on its thread."""

    def read(self, prepared: Any, lo: int, hi: int) -> Any:
        """Read a part of a batch."""
        ...

    def finish(self, parts: list[Any], number: int) -> Any:
        """Make batch ``number`` of its parts, in order; called for one batch at a time, in the order of the batches."""
        ...


class SampleWork:
    """Samples for the user's ``collate_fn``.

    Parameters
    ----------
    source : BatchSource
    schedule : Schedule
    collate_fn : callable
    pin : callable or None
    empty : callable
        Allocates what samples are read into.
    """

    splits = True
    anywhere = False

    def __init__(
        self,
        source: BatchSource,
        schedule: Schedule,
        collate_fn: CollateFn,
        pin: Callable[[Any], Any] | None,
        empty: Empty = np.empty,
    ) -> None:
        self._samples = source.samples
        self._seeds = schedule.seeds
        self._empty = empty
        self._collate_fn = collate_fn
        self._pin = pin

    def read(self, prepared: Any, lo: int, hi: int) -> list[Any]:
        return self._samples(prepared, lo, hi, self._empty)

    def finish(self, parts: list[Any], number: int) -> Any:
        samples = parts[0] if len(parts) == 1 else [sample for part in parts for sample in part]
        batch = collated(self._collate_fn, samples, self._seeds, number)
        return batch if self._pin is None else self._pin(batch)


class ArrayWork:
    """Whole numeric batches, without a step per sample (``collate_fn=None``).

    Parameters
    ----------
    read : callable
        ``(prepared, lo, hi) -> batch``.
    """

    splits = False
    anywhere = True

    def __init__(self, read: Callable[[Any, int, int], Any]) -> None:
        self.read = read

    def finish(self, parts: list[Any], number: int) -> Any:
        return parts[0]


class CopyingWork:
    """The batches of another work, on their way to a device.

    Parameters
    ----------
    work : Work
    copy : callable
        Queues a batch's copy.
    """

    def __init__(self, work: Work, copy: Callable[[Any], Any]) -> None:
        self.splits = work.splits
        self.anywhere = work.anywhere
        self.read = work.read
        self._finish = work.finish
        self._copy = copy

    def finish(self, parts: list[Any], number: int) -> Any:
        return self._copy(self._finish(parts, number))


class Feed(Protocol):
    """Where an iterator gets its batches from, in order."""

    def take(self) -> Any:
        """Return the next batch; ``EndOfEpoch`` after the last. An error of a batch is raised in its place."""
        ...

    def stop(self) -> None:
        """Tell every thread and process to end, without waiting; any number of times, also from a finaliser."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of all threads and processes; False when the time did not suffice."""
        ...


class EndOfEpoch(Exception):
    """No batch is left. Not ``StopIteration``, which the user's own functions could raise by mistake."""


class SerialFeed:
    """Everything in the caller's thread."""

    def __init__(self, schedule: Schedule, work: Work) -> None:
        self._num_batches = schedule.num_batches
        self._rows = schedule.rows
        self._read = work.read
        self._finish = work.finish
        self._next = 0

    def take(self) -> Any:
        number = self._next
        if number >= self._num_batches:
            raise EndOfEpoch
        batch = self._finish([self._read(*self._rows(number))], number)
        self._next = number + 1
        return batch

    def stop(self) -> None:
        pass

    def join(self, timeout_s: float) -> bool:
        return True
