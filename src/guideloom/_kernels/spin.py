"""Waiting for another thread that only sets a flag: waking who sleeps on a lock costs both of them time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel

I64 = npt.NDArray[np.int64]


def _hand_over_numpy(theirs: I64, mine: I64, most: int, longest_ns: int, pause_us: int) -> int:
    """Twin of :func:`hand_over`."""
    theirs[0] = 1
    began_ns = time.monotonic_ns()
    for _ in range(most):
        time.sleep(pause_us * 1e-6)
        if mine[0] or time.monotonic_ns() - began_ns >= longest_ns:
            break
    return int(mine[0])


@kernel("int64(int64[::1], int64[::1], int64, int64, int64)", twin=_hand_over_numpy, build=True)
def hand_over() -> Any:
    """Set ``theirs[0]``, then look at ``mine[0]`` for at most ``most`` turns; returns what is in it.

    ``(theirs int64[1], mine int64[1], most, longest_ns, pause_us)``. Each turn sleeps for ``pause_us`` microseconds;
    with 0 it offers the processor to whoever wants it, which takes half a microsecond, or milliseconds where another
    process does: no turn begins after ``longest_ns``. Runs without the interpreter lock, which the other thread can
    thus take at once, and which is not taken for a look.
    """
    from guideloom._kernels import native

    return native.hand_over
