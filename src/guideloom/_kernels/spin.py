"""Waiting for another thread without sleep, for a moment: a processor that sleeps takes long to wake."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel

I64 = npt.NDArray[np.int64]


def _hand_over_numpy(theirs: I64, mine: I64, most: int, longest_ns: int, desk: I64, status: I64) -> int:
    """Twin of :func:`hand_over`."""
    theirs[0] = 1
    began_ns = time.monotonic_ns()
    for _ in range(most):
        time.sleep(0)
        if mine[0] or time.monotonic_ns() - began_ns >= longest_ns:
            break
    return 0


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])", twin=_hand_over_numpy, build=True)
def hand_over() -> Any:
    """Set ``theirs[0]``, then watch ``mine[0]`` for at most ``most`` turns, helping with gathers meanwhile.

    ``(theirs int64[1], mine int64[1], most, longest_ns, desk int64[DESK_SIZE] or [0], status int64[STATUS_SIZE])``;
    returns how many gathers, laid out on the desk, it took part in. Each turn offers the processor to whoever wants it:
    that takes half a microsecond, or milliseconds where another process does, so no turn begins after ``longest_ns``.
    Runs without the interpreter lock, which the other thread can thus take at once.
    """
    from guideloom._kernels import native_desk

    return native_desk.hand_over
