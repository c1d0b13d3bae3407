"""A seed for each position of an epoch, for what a user's functions draw at random.

``docs/order.md`` describes it so that another implementation can reproduce it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from guideloom._plan.order import Order, positions_between

U64 = npt.NDArray[np.uint64]

NAME = "seeds-1"


def position_seeds(order: Order, start: int, stride: int, count: int) -> U64:
    """Return the seeds of positions ``start, start + stride, ...`` of an epoch, uint64[count].

    They depend on seed, epoch and position alone, and all of an epoch differ. The source is SplitMix64 (Steele, Lea,
    Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), begun at a digest of seed and epoch.

    Raises
    ------
    OutOfRangeError
        A position is outside ``[0, order.size)``.
    """
    digest = hashlib.blake2b(f"{NAME}:{order.seed:x}:{order.epoch:x}".encode("ascii"), digest_size=8).digest()
    mixed = positions_between(start, stride, count, order.size).astype(np.uint64)
    mixed += np.uint64(1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(int.from_bytes(digest, "little"))
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
