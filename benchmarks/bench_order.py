"""The order of an epoch: shuffling without a permutation in memory.

Ceiling: ``test_ceiling_of_a_permutation_in_memory``, a look-up in one that was made before and takes 8 bytes a sample.
What is counted: memory, which depends on the positions asked for and not on the size of the data set.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from guideloom._plan.order import make_order

SIZE = 1_000_000_007


@pytest.mark.parametrize("count", [512, 1 << 16])
def test_positions_to_indexes(benchmark: Any, count: int) -> None:
    order = make_order(SIZE, True, 1, 0)
    indexes = benchmark(order.positions_to_indexes, SIZE // 2, 1, count)
    assert np.unique(indexes).size == count


@pytest.mark.parametrize("count", [512, 1 << 16])
def test_ceiling_of_a_permutation_in_memory(benchmark: Any, count: int) -> None:
    permutation = np.random.default_rng(0).permutation(1 << 20)
    assert benchmark(lambda: permutation[1000 : 1000 + count].copy()).size == count


def test_start_of_an_epoch(benchmark: Any) -> None:
    """Nothing is made but the object: a further epoch costs as much as the first."""
    assert benchmark(make_order, SIZE, True, 1, 7).size == SIZE


def test_memory_does_not_grow_with_the_data_set() -> None:
    peaks = []
    for size in (10_000, SIZE):
        make_order(size, True, 1, 0).positions_to_indexes(0, 1, 4096)
        tracemalloc.start()
        try:
            make_order(size, True, 1, 1).positions_to_indexes(0, 1, 4096)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert max(peaks) < 8 * 8 * 4096 + 32_768
    assert abs(peaks[1] - peaks[0]) < 65_536
