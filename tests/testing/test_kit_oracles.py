"""The oracles by hand-made examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.testing import naive_batches, naive_runs, naive_span_window, naive_window
from guideloom.testing.oracles import difference
from guideloom.testing.strategies import document_requests, loader_configs, shard_counts, slices, span_lengths, windows


def test_naive_window() -> None:
    assert naive_window([[0, 1], [], [2, 3, 4]], 3, 4) == [3, 4, 0, 1]
    assert naive_window([[0, 1]], 1, 5) == [1, 0, 1, 0, 1]
    assert naive_window([[0]], 0, 0) == []
    for index, length in ((-1, 1), (1, 1), (0, -1)):
        with pytest.raises(IndexError):
            naive_window([[7]], index, length)


def test_naive_runs() -> None:
    assert naive_runs([2, 0, 3], 1, 7) == [(0, 1), (2, 3), (0, 2), (2, 1)]
    assert naive_runs([3], 1, 5) == [(0, 2), (0, 3)]
    assert naive_runs([1], 0, 2) == [(0, 1), (0, 1)]
    assert naive_runs([1], 0, 0) == []


def test_naive_span_window() -> None:
    assert naive_span_window([[2], [], [1, 2]], 1, 5) == [(1, 0, 0), (2, 2, 1), (3, 2, 2), (4, 2, 2), (0, 0, 0)]


def test_naive_batches() -> None:
    order = list(range(7))
    assert naive_batches(order, 2) == [[0, 1], [2, 3], [4, 5]]
    assert naive_batches(order, 2, drop_last=False) == [[0, 1], [2, 3], [4, 5], [6]]
    assert naive_batches(order, 1, rank=1, world_size=3) == [[1], [4]]
    assert naive_batches(order, 1, rank=2, world_size=3, drop_last=False) == [[2], [5], []]
    assert naive_batches(order, 2, rank=1, world_size=2, offset=2) == [[3, 5]]
    assert naive_batches(order, 1, rank=0, world_size=2, drop_last=False, offset=3) == [[4], [6]]


def test_difference() -> None:
    assert difference([[1], [2, 3]], [[1], [2, 3]]) is None
    assert difference([[1], [2, 3]], [[1], [2, 4]]) == "[1][1]: expected 3, found 4"
    assert difference([[1], [2]], [[1]]) == "expected 2 items, found 1; the first without a partner is [2]"


@given(st.data())
def test_strategies_keep_their_promises(data: st.DataObject) -> None:
    counts = data.draw(shard_counts(min_total=2))
    total = sum(counts)
    assert total >= 2
    index, length = data.draw(windows(counts))
    assert 0 <= index < total and 0 <= length <= 3 * total + 1
    assert all(0 <= i < total for i in data.draw(document_requests(total)))
    assert data.draw(slices(total)).step != 0
    assert any(data.draw(span_lengths()))
    config = data.draw(loader_configs(dataset_size=total))
    assert 0 <= config["rank"] < config["world_size"]
    assert config["local_batch_size"] * config["world_size"] <= total
    assert config["prefetch"] * config["local_batch_size"] >= config["num_workers"]
