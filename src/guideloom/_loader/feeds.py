"""Chooses how batches are made: by the caller, by threads, or by processes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from guideloom._dataset.source import BatchSource, Empty
from guideloom._loader import bridge
from guideloom._loader.arguments import Arguments
from guideloom._loader.bridge import CopyAhead, PinnedArrays, Pinner
from guideloom._loader.iterator import Opened
from guideloom._loader.pipeline import ThreadFeed
from guideloom._loader.processes import ProcessFeed
from guideloom._loader.sharing import Sharing
from guideloom._loader.work import ArrayWork, CopyingWork, Feed, SampleWork, Schedule, SerialFeed, Work
from guideloom._loader.worker_body import Job
from guideloom._loader.workers import GONE_S


def make_feed(
    given: Arguments, copy_ahead: CopyAhead | None, opened: Opened, schedule: Schedule, sharing: Sharing
) -> Feed:
    """Start what makes the batches of ``schedule``; ``opened`` gets to know it before the first thread starts."""
    pinner = Pinner(given.device) if given.pin_memory else None
    if not schedule.num_batches:
        return SerialFeed(schedule, _array_work(opened.source, None, np.empty))
    enter_thread = _nothing if pinner is None else pinner.enter_thread
    if given.num_workers and given.parallel_method == "process":
        received = _received(given.collate_fn, pinner, copy_ahead)
        # An iterator that was dropped a moment ago is about to give its workers back, or to end those that hang: others
        # that were started before would be beside them, with all the memory that they take.
        opened.feeds.join(monotonic() + GONE_S)
        return ProcessFeed(
            opened.workers,
            Job(given.dataset, opened.source.snapshot, given.collate_fn),
            schedule,
            given.num_workers,
            given.prefetch,
            enter_thread,
            received,
            opened.feeds.append,
        )
    work: Work
    if given.collate_fn is None:
        work = _array_work(opened.source, pinner, opened.memory.empty)
    else:
        work = SampleWork(opened.source, schedule, given.collate_fn, pinner, opened.memory.empty)
    if copy_ahead is not None:
        work = CopyingWork(work, copy_ahead)
    if not given.num_workers and not given.prefetch:
        return SerialFeed(schedule, work)
    return ThreadFeed(
        schedule,
        work,
        given.num_workers,
        given.prefetch,
        sharing,
        opened.source.desk,
        enter_thread,
        opened.lend,
        opened.release,
    )


def _array_work(source: BatchSource, pinner: Pinner | None, empty: Empty) -> ArrayWork:
    """Return the reading of numeric batches into ordinary memory, or into pinned memory."""
    arrays, tensors = source.arrays, bridge.tensors
    if pinner is None:
        return ArrayWork(lambda prepared, lo, hi: tensors(arrays(prepared, lo, hi, empty)))

    def read(prepared: Any, lo: int, hi: int) -> Any:
        pinned = PinnedArrays()
        return pinned.tensors(arrays(prepared, lo, hi, pinned.empty))

    return ArrayWork(read)


def _received(collate_fn: Any, pinner: Pinner | None, copy_ahead: CopyAhead | None) -> Callable[[Any], Any] | None:
    """Return what is done to a batch from a process: its arrays become tensors, its tensors pinned, and copied."""
    steps = [None if collate_fn is not None else bridge.tensors, pinner, copy_ahead]
    taken: list[Callable[[Any], Any]] = [step for step in steps if step is not None]
    if not taken:
        return None

    def receive(batch: Any) -> Any:
        for step in taken:
            batch = step(batch)
        return batch

    return receive


def _nothing() -> None:
    pass
