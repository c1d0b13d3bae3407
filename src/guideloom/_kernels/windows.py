"""Windows of a segmented stream as byte ranges.

Letters: B windows, R runs, S segments. A *run* is a maximal piece of a window that lies in one segment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel

I64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[:, ::1], int64[::1])")
def fill_runs(
    starts: I64, begins: I64, length: int, itemsize: int, segment_file: I64, columns: I64, first_run: I64
) -> int:
    """Fill the runs of the windows ``[begins[b], begins[b] + length)`` over a stream that wraps at ``starts[-1]``.

    ``starts`` (int64[S+1]) are the global indexes of the segments' first elements, and the total.
    The rows of ``columns`` (int64[5, room for some number of runs]) are ``file, src, dst, nbytes, segment``;
    ``first_run`` is int64[B+1].

    ``src`` and ``dst`` are byte offsets: into the segment's element file (``segment_file``, int64[S]), and into a
    buffer that holds the windows one after the other. Returns the number of runs R: where it is more than there is
    room for, those beyond are only counted. O(B (log S + runs)).
    """
    total = starts[-1]
    room_for = columns.shape[1]
    r = 0
    for b in range(begins.size):
        first_run[b] = r
        done = 0
        at = begins[b]
        # The last one that begins at or before ``at``: of ``searchsorted`` the compiler makes five functions.
        segment, beyond = 0, starts.size - 1
        while beyond - segment > 1:
            middle = (segment + beyond) >> 1
            if starts[middle] <= at:
                segment = middle
            else:
                beyond = middle
        while done < length:
            room = starts[segment + 1] - at
            if room > 0:
                take = min(room, length - done)
                if r < room_for:
                    columns[0, r] = segment_file[segment]
                    columns[1, r] = (at - starts[segment]) * itemsize
                    columns[2, r] = (b * length + done) * itemsize
                    columns[3, r] = take * itemsize
                    columns[4, r] = segment
                r += 1
                done += take
                at += take
            segment += 1
            if at == total:
                at = np.int64(0)
                segment = 0
    first_run[begins.size] = r
    return r


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def locate_items(starts: I64, indexes: I64, segment: I64) -> int:
    """Find the segment of each global index, all int64[B].

    Returns -1, or the position of the first index outside ``[0, starts[-1])``.
    """
    total = starts[-1]
    for b in range(indexes.size):
        if indexes[b] < 0 or indexes[b] >= total:
            return b
        found, beyond = 0, starts.size - 1  # as above, the last one that begins at or before the index
        while beyond - found > 1:
            middle = (found + beyond) >> 1
            if starts[middle] <= indexes[b]:
                found = middle
            else:
                beyond = middle
        segment[b] = found
    return -1


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[:, ::1])"
)
def place_payloads(
    table: I64,
    row: I64,
    segment: I64,
    payload_size: I64,
    alignment: int,
    src: I64,
    nbytes: I64,
    dst: I64,
    bounds: I64,
) -> int:
    """Check the offsets of B documents and lay their payloads out one behind the other.

    Document ``b`` is ``[table[row[b]], table[row[b] + 1])`` in the payload file of ``segment[b]`` (size
    ``payload_size``, int64[S]); each payload starts at a multiple of ``alignment``, a power of two. Fills
    ``src, nbytes`` int64[B], ``bounds`` int64[2, B] (begin and end where it goes) and ``dst`` int64[B+1]: the begins,
    and the buffer's size.
    Returns -1, or the position of the first document whose offsets are no range of its file.
    """
    at = 0
    mask = ~(alignment - 1)
    for b in range(segment.size):
        begin = table[row[b]]
        end = table[row[b] + 1]
        if begin < 0 or end < begin or end > payload_size[segment[b]]:
            return b
        size = end - begin
        src[b] = begin
        nbytes[b] = size
        dst[b] = at
        bounds[0, b] = at
        at += size
        bounds[1, b] = at
        at = (at + alignment - 1) & mask
    dst[segment.size] = at
    return -1
