"""A desk: where a gather is laid out for threads that wait, so that they can do some of its runs.

A thread that waits for a batch has a processor, and nothing to do: it takes runs of the very gather that it waits for.
No thread is woken for that, and no interpreter lock is taken; no code of a user runs in another thread than before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.gather import gather_mapped_numpy, gather_pread_numpy
from guideloom._kernels.jit import kernel
from guideloom._kernels.status import DESK_SIZE

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

NO_DESK: I64 = np.zeros(0, np.int64)
"""In place of a desk: nothing is ever laid out here."""


def new_desk() -> I64:
    """Return an empty desk, int64[DESK_SIZE]; for one process: a forked child fills it with 0."""
    return np.zeros(DESK_SIZE, np.int64)


def _gather_helped_numpy(
    desk: I64, is_mapped: bool, handles: I64, sizes: I64, file: I64, src: I64, dst: I64, nbytes: I64,
    lo: int, hi: int, out: U8, shift: int, status: I64,
) -> int:  # fmt: skip
    """Twin of :func:`gather_helped`: alone."""
    if is_mapped:
        return gather_mapped_numpy(handles, sizes, file, src, dst, nbytes, lo, hi, out, shift, status)
    return gather_pread_numpy(handles, file, src, dst, nbytes, lo, hi, out, shift, status)


@kernel(
    "int64(int64[::1], boolean, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, "
    "uint8[::1], int64, int64[::1])",
    twin=_gather_helped_numpy,
    build=True,
)
def gather_helped() -> Any:
    """Gather with the help of the threads that wait at a desk, if any; they run in ``spin.hand_over``.

    ``(desk int64[DESK_SIZE], is_mapped, handles, sizes int64[F], file, ...)``: the arguments and the result of
    ``gather_mapped`` or, with descriptors as handles, of ``gather_pread``. What cannot be done is tried once more,
    alone: the run where it stops is the same as theirs. One gather lies on a desk at a time; others, and small ones,
    are done alone.
    """
    from guideloom._kernels import native_desk

    return native_desk.gather_helped
