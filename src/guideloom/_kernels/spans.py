"""Spans of windows: which rows of the span table, which payloads, and which payload belongs to each element.

Letters: B windows, R runs (see ``_kernels/windows.py``), S segments, M entries of all samples, Q rows of all blocks,
P spans of all windows.
A *block* is the run of table rows that holds every span of one run of elements; a *row* is (first element, payload
offset).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"  # noqa: E501
)
def find_blocks(
    segment: I64,
    first: I64,
    count: I64,
    sample_bounds: I64,
    samples: I64,
    loaded: I64,
    stride: I64,
    rows: I64,
    block_row: I64,
    block_size: I64,
) -> int:
    """Bound the table rows of each run by the in-memory samples.

    Run ``r`` is elements ``[first[r], first[r] + count[r])`` of ``segment[r]``. The samples of segment ``s`` are
    ``samples[sample_bounds[s]:sample_bounds[s + 1]]``, one for every ``stride[s]`` of its ``rows[s]`` rows. Fills
    ``block_row`` and
    ``block_size`` int64[R]; a block includes the row after its last span. Returns -1, or the first run whose segment's
    samples are not loaded.
    """
    for r in range(segment.size):
        s = segment[r]
        if loaded[s] == 0:
            return r
        a = first[r]
        b = a + count[r] - 1
        # By hand: with NumPy's function the kernel takes far longer to compile, and asks for a good part of numba's
        # compiler when it is loaded from the cache.
        lo = sample_bounds[s]
        end = sample_bounds[s + 1]
        while lo < end:  # the samples that are not after ``a``
            middle = (lo + end) // 2
            if samples[middle] <= a:
                lo = middle + 1
            else:
                end = middle
        hi = sample_bounds[s]
        end = sample_bounds[s + 1]
        while hi < end:  # those that are not after ``b``
            middle = (hi + end) // 2
            if samples[middle] <= b:
                hi = middle + 1
            else:
                end = middle
        lo = max(lo - sample_bounds[s] - 1, 0)
        hi -= sample_bounds[s]
        block_row[r] = lo * stride[s]
        block_size[r] = min(hi * stride[s], rows[s]) - lo * stride[s] + 1
    return -1


@kernel(
    "int64(int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1], int64[::1], int64[::1])"
)
def find_spans(
    table: I64,
    block_begin: I64,
    block_end: I64,
    segment: I64,
    first: I64,
    count: I64,
    payload_size: I64,
    span_row: I64,
    span_count: I64,
    src: I64,
    nbytes: I64,
    dst: I64,
) -> int:
    """Find each run's spans in its block, check them, and bound its payload.

    Run ``r`` has the block ``table[block_begin[r]:block_end[r]]`` (at least one row) of ``table`` int64[Q, 2]; runs may
    share one. Fills ``span_row`` (row of ``table``), ``span_count``, and the payload's ``src``, ``nbytes`` in the
    segment's payload file (of ``payload_size[s]`` bytes), all int64[R], and ``dst`` int64[R+1]: where each payload goes
    in a buffer that holds them one behind the other.
    Returns P, or ``-1 - r`` for the first run whose rows cannot be right.
    """
    spans = 0
    at = 0
    for r in range(segment.size):
        begin = block_begin[r]
        end = block_end[r]
        a = first[r]
        b = a + count[r]
        lo = begin
        hi = end  # the last row with table[row, 0] <= a is in [lo, hi)
        while hi - lo > 1:
            middle = (lo + hi) // 2
            if table[middle, 0] <= a:
                lo = middle
            else:
                hi = middle
        if table[lo, 0] > a:
            return -1 - r
        row = lo
        while True:
            if row + 1 >= end or table[row + 1, 0] <= table[row, 0] or table[row + 1, 1] < table[row, 1]:
                return -1 - r
            row += 1
            if table[row, 0] >= b:
                break
        if table[lo, 1] < 0 or table[row, 1] > payload_size[segment[r]]:
            return -1 - r
        span_row[r] = lo
        span_count[r] = row - lo
        src[r] = table[lo, 1]
        nbytes[r] = table[row, 1] - table[lo, 1]
        dst[r] = at
        at += nbytes[r]
        spans += span_count[r]
    dst[segment.size] = at
    return spans


@kernel(
    "void(int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    "int32[:, ::1], int64[::1], int64[::1], int64[::1])"
)
def fill_spans(
    table: I64,
    span_row: I64,
    span_count: I64,
    first: I64,
    count: I64,
    shard_of_run: I64,
    first_run: I64,
    index: I32,
    span_bounds: I64,
    offsets: I64,
    shard_of_span: I64,
) -> None:
    """Say for each element which span it lies in, and for each span where its payload stands in the batch's buffer.

    Fills ``index`` int32[B, L] (within the window), ``span_bounds`` int64[B+1], ``offsets`` int64[P+1],
    ``shard_of_span`` int64[P].
    """
    p = 0
    at = 0
    for b in range(first_run.size - 1):
        span_bounds[b] = p
        base = p
        e = 0
        for r in range(first_run[b], first_run[b + 1]):
            stop = first[r] + count[r]
            for row in range(span_row[r], span_row[r] + span_count[r]):
                size = min(table[row + 1, 0], stop) - max(table[row, 0], first[r])
                index[b, e : e + size] = p - base
                e += size
                offsets[p] = at
                at += table[row + 1, 1] - table[row, 1]
                shard_of_span[p] = shard_of_run[r]
                p += 1
    span_bounds[first_run.size - 1] = p
    offsets[p] = at
