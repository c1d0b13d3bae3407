"""Which bytes the windows of a stream are: pure, no I/O.

Letters: B windows, R runs, S segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from guideloom._kernels.windows import fill_runs

I64 = npt.NDArray[np.int64]

_SPARE_RUNS = 16


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Byte ranges of B windows of one length.

    Parameters
    ----------
    num_windows, length : int
        B, and elements a window.
    window_bytes : int
        Bytes a window takes in the buffer.
    file, src, dst, nbytes : int64[R]
        Run ``r`` is ``nbytes[r]`` bytes from offset ``src[r]`` of file ``file[r]``; it goes to offset ``dst[r]`` of
        the buffer.
    segment : int64[R]
        Segment of each run.
    first_run : int64[B+1]
        Runs of window ``b`` are ``first_run[b] .. first_run[b+1]``.
    bounds : list of int, length B+1
        ``first_run`` as Python integers, for slicing.
    """

    num_windows: int
    length: int
    window_bytes: int
    file: I64
    src: I64
    dst: I64
    nbytes: I64
    segment: I64
    first_run: I64
    bounds: list[int]


def plan_windows(starts: I64, segment_file: I64, begins: I64, length: int, itemsize: int) -> WindowPlan:
    """Plan the windows ``[begins[b], begins[b] + length)`` of a stream that wraps.

    Parameters
    ----------
    starts : int64[S+1]
        Global index of each segment's first element, and the total.
    segment_file : int64[S]
        The file that holds each segment's elements.
    begins : int64[B]
        In ``[0, total)``; the caller has checked it.
    length : int
        Elements a window, at least 0; above the total it wraps as often as needed.
    itemsize : int
        Bytes an element.
    """
    begins = np.ascontiguousarray(begins, np.int64)
    num_windows = begins.size
    first_run = np.empty(num_windows + 1, np.int64)
    # Nearly always a window is one run; only where more cross a segment's end is there a second try.
    room = num_windows + _SPARE_RUNS
    while True:
        columns = np.empty((5, room), np.int64)
        num_runs = fill_runs(starts, begins, length, itemsize, segment_file, columns, first_run)
        if num_runs <= room:
            break
        room = num_runs
    file, src, dst, nbytes, segment = columns[:, :num_runs]
    return WindowPlan(
        num_windows, length, length * itemsize, file, src, dst, nbytes, segment, first_run, first_run.tolist()
    )
