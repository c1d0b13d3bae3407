"""Windows of a segmented stream as byte ranges.

Letters: B windows, R runs, S segments. A *run* is a maximal piece of a window that lies in one segment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel

I64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64[::1], int64)")
def count_runs(starts: I64, begins: I64, length: int) -> int:
    """Number of runs R of the windows ``[begins[b], begins[b] + length)`` over a stream that wraps at ``starts[-1]``.

    ``starts`` (int64[S+1]) are the global indexes of the segments' first elements, and the total. O(B (log S + runs)).
    """
    total = starts[-1]
    runs = 0
    for b in range(begins.size):
        left = length
        at = begins[b]
        segment = np.searchsorted(starts, at, side="right") - 1
        while left > 0:
            room = starts[segment + 1] - at
            if room > 0:
                runs += 1
                take = min(room, left)
                left -= take
                at += take
            segment += 1
            if at == total:
                at = np.int64(0)
                segment = np.int64(0)
    return runs


@kernel(
    "void(int64[::1], int64[::1], int64, int64, int64[::1], "
    "int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def fill_runs(
    starts: I64,
    begins: I64,
    length: int,
    itemsize: int,
    segment_file: I64,
    file: I64,
    src: I64,
    dst: I64,
    nbytes: I64,
    segment_of_run: I64,
    first_run: I64,
) -> None:
    """Fill the runs counted by :func:`count_runs`.

    ``file, src, dst, nbytes, segment_of_run`` are int64[R], ``first_run`` int64[B+1].

    ``src`` and ``dst`` are byte offsets: into the segment's element file (``segment_file``, int64[S]), and into a
    buffer that holds the
    windows one after the other.
    """
    total = starts[-1]
    r = 0
    for b in range(begins.size):
        first_run[b] = r
        done = 0
        at = begins[b]
        segment = np.searchsorted(starts, at, side="right") - 1
        while done < length:
            room = starts[segment + 1] - at
            if room > 0:
                take = min(room, length - done)
                file[r] = segment_file[segment]
                src[r] = (at - starts[segment]) * itemsize
                dst[r] = (b * length + done) * itemsize
                nbytes[r] = take * itemsize
                segment_of_run[r] = segment
                r += 1
                done += take
                at += take
            segment += 1
            if at == total:
                at = np.int64(0)
                segment = np.int64(0)
    first_run[begins.size] = r


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def locate_items(starts: I64, indexes: I64, segment: I64, local: I64, src_of_pair: I64) -> int:
    """For each global index its segment, its index in the segment, and the byte offset of its pair in the offsets file.

    All int64[B]; returns -1, or the position of the first index outside ``[0, starts[-1])``.
    """
    total = starts[-1]
    for b in range(indexes.size):
        if indexes[b] < 0 or indexes[b] >= total:
            return b
        s = np.searchsorted(starts, indexes[b], side="right") - 1
        segment[b] = s
        local[b] = indexes[b] - starts[s]
        src_of_pair[b] = local[b] * 8
    return -1


@kernel("int64(int64[:, ::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def place_payloads(pairs: I64, segment: I64, payload_size: I64, alignment: int, src: I64, nbytes: I64, dst: I64) -> int:
    """Check the offset pairs of B documents and lay their payloads out one behind the other.

    ``pairs`` int64[B, 2] begin and end in the payload file of ``segment`` (size ``payload_size``, int64[S]); each
    payload
    starts at a multiple of ``alignment``. Fills ``src, nbytes`` int64[B] and ``dst`` int64[B+1], whose last is the
    buffer's size.
    Returns -1, or the position of the first pair that is no range of its file.
    """
    at = 0
    for b in range(segment.size):
        begin = pairs[b, 0]
        end = pairs[b, 1]
        if begin < 0 or end < begin or end > payload_size[segment[b]]:
            return b
        src[b] = begin
        nbytes[b] = end - begin
        dst[b] = at
        at += end - begin
        at = (at + alignment - 1) // alignment * alignment
    dst[segment.size] = at
    return -1
