"""Seeds for what a collate function draws at random, the same whenever and wherever the batch is made."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import NotOpenError

U64 = npt.NDArray[np.uint64]


class _Here(threading.local):
    """What gives the seeds of the batch that a thread is at; None where it calls no collate function."""

    seeds: Callable[[], U64] | None = None


HERE = _Here()


def sample_seeds() -> U64:
    """Return a seed for each sample of the batch that the calling ``collate_fn`` was given.

    For masks, noise or crops that are the same when the batch is made again: after a crash, by another process, beside
    other work. A sample's seed depends on ``shuffle_seed``, the epoch and the sample's position in it, and on nothing
    else: not on ranks, batch size, workers, prefetch, or where the run was resumed. In one epoch all differ.

    Returns
    -------
    uint64[B]
        In the order of the samples; new memory. For one generator a batch take the first, or all of them
        (``np.random.default_rng(sample_seeds())``); for what shall not depend on the batch size or the number of ranks,
        a generator for each sample.

    Raises
    ------
    NotOpenError
        No collate function runs in this thread.

    Notes
    -----
    Costs some 10 us. ``docs/order.md`` has the algorithm.

    Examples
    --------
    >>> def collate(samples):
    ...     generator = np.random.default_rng(sample_seeds())
    ...     tokens = np.stack([sample["tokens"] for sample in samples])
    ...     return tokens, generator.random(tokens.shape) < 0.15
    """
    seeds = HERE.seeds
    if seeds is None:
        raise NotOpenError(
            "sample_seeds() is for a collate_fn of a StatefulDataLoader, and none runs in this thread: call it there, "
            "and pass its result on to other threads"
        )
    return seeds()
