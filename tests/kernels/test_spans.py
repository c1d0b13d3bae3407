"""Spans of runs of elements, against an element-by-element oracle, and tables that cannot be right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guideloom._kernels.spans import fill_spans, find_blocks, find_spans


def table_of(lengths: list[int], sizes: list[int]) -> np.ndarray:
    rows = np.zeros((len(lengths) + 1, 2), np.int64)
    rows[1:, 0] = np.cumsum(lengths)
    rows[1:, 1] = np.cumsum(sizes)
    return rows


spans = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=20)
foreign_samples = st.lists(st.integers(0, 100), max_size=4).map(sorted)  # those of the segments beside


@given(spans=spans, stride=st.integers(1, 5), data=st.data())
def test_spans_of_a_run(spans: list[tuple[int, int]], stride: int, data: st.DataObject) -> None:
    lengths, sizes = [n for n, _ in spans], [n for _, n in spans]
    rows = table_of(lengths, sizes)
    owner = np.repeat(np.arange(len(spans)), lengths)
    begin = data.draw(st.integers(0, owner.size - 1))
    end = data.draw(st.integers(begin + 1, owner.size))
    one = np.ones(1, np.int64)
    sample = np.ascontiguousarray(rows[:-1:stride, 0])
    block_row, block_size = np.zeros((2, 1), np.int64)
    before, after = data.draw(foreign_samples), data.draw(foreign_samples)
    bounds = np.cumsum([0, len(before), sample.size, len(after)])
    missing = find_blocks(
        one, one * begin, one * (end - begin), bounds, np.array([*before, *sample, *after]),
        np.array([0, 1, 0]), np.array([7, stride, 7]), np.array([9, len(spans), 9]), block_row, block_size,
    )  # fmt: skip
    assert missing == -1
    first_sample, last_sample = (int((sample <= element).sum()) for element in (begin, end - 1))
    assert block_row[0] == (first_sample - 1) * stride
    assert block_row[0] + block_size[0] == min(last_sample * stride, len(spans)) + 1
    table = np.ascontiguousarray(rows[block_row[0] : block_row[0] + block_size[0]])
    assert len(table) == block_size[0]
    assert len(table) <= (owner[end - 1] // stride - owner[begin] // stride + 1) * stride + 1
    span_row, span_count, src, nbytes = np.zeros((4, 1), np.int64)
    dst = np.zeros(2, np.int64)
    touched = list(range(owner[begin], owner[end - 1] + 1))
    found = find_spans(table, one * 0, one * len(table), one * 0, one * begin, one * (end - begin),
                       one * rows[-1, 1], span_row, span_count, src, nbytes, dst)  # fmt: skip
    assert found == len(touched)
    assert dst.tolist() == [0, nbytes[0]]
    assert span_row[0] + block_row[0] == touched[0]
    assert span_count[0] == len(touched)
    assert src[0] == rows[touched[0], 1]
    assert nbytes[0] == sum(sizes[s] for s in touched)

    index = np.full((1, end - begin), -1, np.int32)
    span_bounds, offsets, shards = (
        np.zeros(2, np.int64),
        np.zeros(len(touched) + 1, np.int64),
        np.zeros(len(touched), np.int64),
    )
    fill_spans(table, span_row, span_count, one * begin, one * (end - begin), one * 9, np.array([0, 1]), index,
               span_bounds, offsets, shards)  # fmt: skip
    assert index[0].tolist() == (owner[begin:end] - owner[begin]).tolist()
    assert span_bounds.tolist() == [0, len(touched)]
    assert np.diff(offsets).tolist() == [sizes[s] for s in touched]
    assert (shards == 9).all()


@pytest.mark.parametrize("stride", [1, 2, 3, 7])
def test_blocks_of_every_run_of_a_segment(stride: int) -> None:
    starts = table_of([1, 3, 2, 5, 1, 4], [0] * 6)[:, 0]
    sample = starts[:-1:stride]
    runs = np.array([(a, b - a) for a in range(starts[-1]) for b in range(a + 1, starts[-1] + 1)])
    first, count = np.ascontiguousarray(runs.T)
    row, size = np.zeros((2, len(runs)), np.int64)
    bounds, samples = np.cumsum([0, 2, sample.size, 2]), np.array([0, 5, *sample, 0, 2])
    ones = np.ones(3, np.int64)
    missing = find_blocks(np.ones_like(first), first, count, bounds, samples, ones, ones * stride, ones * 6, row, size)
    assert missing == -1
    last_sample_at = [max(n for n, start in enumerate(sample) if start <= a) for a in first]
    next_sample_after = [sum(start <= b for start in sample) for b in first + count - 1]
    assert row.tolist() == [stride * n for n in last_sample_at]
    assert (row + size - 1).tolist() == [min(stride * n, 6) for n in next_sample_after]


@given(spans=spans, data=st.data())
def test_runs_may_share_a_block(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    lengths, sizes = [n for n, _ in spans], [n for _, n in spans]
    total = sum(lengths)
    begins = data.draw(st.lists(st.integers(0, total - 1), max_size=5))
    counts = [data.draw(st.integers(1, total - begin)) for begin in begins]
    table = np.concatenate([np.full((9, 2), 10**9), table_of(lengths, sizes)])  # some other segment's rows before it
    owner = np.repeat(np.arange(len(spans)), lengths)
    zero = np.zeros(len(begins), np.int64)
    span_row, span_count, src, nbytes = np.zeros((4, len(begins)), np.int64)
    dst = np.zeros(len(begins) + 1, np.int64)
    found = find_spans(
        table, zero + 9, zero + len(table), zero, np.array(begins, np.int64), np.array(counts, np.int64),
        np.array([sum(sizes)]), span_row, span_count, src, nbytes, dst,
    )  # fmt: skip
    touched = [sorted(set(owner[a : a + n].tolist())) for a, n in zip(begins, counts, strict=True)]
    assert found == sum(map(len, touched))
    assert span_row.tolist() == [9 + spans_of_run[0] for spans_of_run in touched]
    assert span_count.tolist() == [len(spans_of_run) for spans_of_run in touched]
    assert nbytes.tolist() == [sum(sizes[s] for s in spans_of_run) for spans_of_run in touched]
    assert dst.tolist() == np.cumsum([0, *nbytes]).tolist()


def test_the_first_run_that_cannot_be_is_named() -> None:
    table = table_of([4, 4], [1, 1])
    zero = np.zeros(3, np.int64)
    found = find_spans(
        table, zero, zero + 3, zero, np.array([0, 6, 7]), np.array([8, 3, 3]), np.array([2]),
        zero.copy(), zero.copy(), zero.copy(), zero.copy(), np.zeros(4, np.int64),
    )  # fmt: skip
    assert found == -1 - 1


def test_segment_without_samples_is_named() -> None:
    one = np.ones(2, np.int64)
    found = find_blocks(
        np.array([0, 1]), one * 0, one, np.array([0, 1, 1]), np.zeros(1, np.int64), np.array([1, 0]), one, one,
        one.copy(), one.copy(),
    )  # fmt: skip
    assert found == 1


@given(
    spans=spans,
    row=st.integers(0, 20),
    column=st.integers(0, 1),
    delta=st.sampled_from([-(2**62), -7, -1, 1, 7, 2**62]),
)
@example(spans=[(2, 1), (1, 1), (2, 1)], row=2, column=0, delta=-1)
def test_a_wrong_table_is_refused_or_never_leads_outside(
    spans: list[tuple[int, int]], row: int, column: int, delta: int
) -> None:
    rows = table_of([n for n, _ in spans], [n for _, n in spans])
    total, size = int(rows[-1, 0]), int(rows[-1, 1])
    rows[row % len(rows), column] += delta
    one = np.ones(1, np.int64)
    span_row, span_count, src, nbytes = np.zeros((4, 1), np.int64)
    dst = np.zeros(2, np.int64)
    found = find_spans(
        rows,
        one * 0,
        one * len(rows),
        one * 0,
        one * 0,
        one * total,
        one * size,
        span_row,
        span_count,
        src,
        nbytes,
        dst,
    )
    if found < 0:
        assert found == -1
    else:
        assert 0 <= src[0] <= src[0] + nbytes[0] <= size
        assert 0 <= span_row[0] < span_row[0] + span_count[0] <= len(rows) - 1
        # A span of no elements would take those of the span before it.
        used = rows[span_row[0] : span_row[0] + span_count[0] + 1]
        assert used[0, 0] <= 0 and used[-1, 0] >= total
        assert (np.diff(used[:, 0]) > 0).all() and (np.diff(used[:, 1]) >= 0).all()
