"""Windows to runs, against an element-by-element oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from guideloom._plan.windows import plan_windows


def oracle(counts: list[int], begin: int, length: int) -> list[tuple[int, int]]:
    """(segment, local element) of each element of a window, one by one."""
    where = [(segment, local) for segment, count in enumerate(counts) for local in range(count)]
    return [where[(begin + i) % len(where)] for i in range(length)]


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    length=st.integers(0, 40) | st.integers(100, 300),
    itemsize=st.sampled_from([1, 2, 7]),
    data=st.data(),
)
def test_runs_are_the_elements_of_the_windows(
    counts: list[int], length: int, itemsize: int, data: st.DataObject
) -> None:
    total = sum(counts)
    begins = data.draw(st.lists(st.integers(0, total - 1), max_size=5))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    segment_file = np.arange(len(counts), dtype=np.int64) * 3 + 1
    plan = plan_windows(starts, segment_file, np.array(begins, np.int64), length, itemsize)

    assert plan.bounds == plan.first_run.tolist()
    assert plan.bounds[-1] == plan.file.size
    at = 0
    for window, begin in enumerate(begins):
        found = []
        for run in range(plan.bounds[window], plan.bounds[window + 1]):
            assert plan.dst[run] == at
            at += int(plan.nbytes[run])
            assert plan.file[run] == segment_file[plan.segment[run]]
            assert plan.nbytes[run] > 0
            first = int(plan.src[run])
            assert first % itemsize == 0
            found += [
                (int(plan.segment[run]), e)
                for e in range(first // itemsize, (first + int(plan.nbytes[run])) // itemsize)
            ]
        assert found == oracle(counts, begin, length)
        # A run is maximal: neighbours within a window never continue each other.
        for run in range(plan.bounds[window] + 1, plan.bounds[window + 1]):
            assert (plan.segment[run], plan.src[run]) != (
                plan.segment[run - 1],
                plan.src[run - 1] + plan.nbytes[run - 1],
            )


def test_offsets_beyond_32_bits() -> None:
    starts = np.array([0, 2**33, 2**33 + 2**40], np.int64)
    plan = plan_windows(starts, np.array([0, 1]), np.array([2**33 - 1, 2**33 + 2**40 - 2]), 4, 8)
    assert plan.segment.tolist() == [0, 1, 1, 0]
    assert plan.src.tolist() == [(2**33 - 1) * 8, 0, (2**40 - 2) * 8, 0]
    assert plan.nbytes.tolist() == [8, 24, 16, 16]
