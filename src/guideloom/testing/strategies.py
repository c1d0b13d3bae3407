"""Hypothesis strategies for shards, windows and loaders; importing this module needs hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ModuleNotFoundError(
        "guideloom.testing.strategies needs hypothesis, which is not installed: pip install hypothesis",
        name="hypothesis",
    ) from None

__all__ = ["document_requests", "loader_configs", "shard_counts", "slices", "span_lengths", "windows"]


def shard_counts(max_shards: int = 5, max_count: int = 12, *, min_total: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the number of elements of each shard; empty shards anywhere, ``min_total`` elements in all at least."""
    counts = st.lists(st.integers(0, max_count) | st.just(0), min_size=1, max_size=max_shards).map(tuple)
    return counts.filter(lambda drawn: sum(drawn) >= min_total)


def span_lengths(
    max_shards: int = 4, max_spans: int = 5, max_length: int = 6
) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Draw the lengths of the spans of each shard; empty shards anywhere, one element in all at least."""
    shard = st.lists(st.integers(1, max_length), max_size=max_spans).map(tuple)
    return st.lists(shard, min_size=1, max_size=max_shards).map(tuple).filter(any)


def windows(counts: Sequence[int], *, max_wraps: int = 3) -> st.SearchStrategy[tuple[int, int]]:
    """Draw ``(index, length)`` within a stream of ``counts``; lengths reach ``max_wraps`` times around it."""
    total = sum(counts)
    return st.tuples(st.integers(0, total - 1), st.integers(0, max_wraps * total + 1))


def document_requests(count: int, max_size: int = 20) -> st.SearchStrategy[list[int]]:
    """Draw indexes for ``read_many``: any order, repeats, or none."""
    return st.lists(st.integers(0, count - 1), max_size=max_size)


def slices(size: int) -> st.SearchStrategy[slice]:
    """Draw slices of a sequence of ``size``: ends open, negative and far outside, steps of both signs."""
    end = st.none() | st.integers(-2 * size - 2, 2 * size + 2)
    step = st.none() | st.integers(-size - 2, size + 2).filter(bool)
    return st.builds(slice, end, end, step)


@st.composite
def loader_configs(
    draw: st.DrawFn,
    *,
    dataset_size: int = 24,
    max_world_size: int = 3,
    num_workers: Sequence[int] = (0, 1, 3),
    prefetch: Sequence[int] = (0, 1, 4),
) -> dict[str, Any]:
    """Draw keyword arguments of ``StatefulDataLoader`` that a data set of ``dataset_size`` samples allows.

    Notes
    -----
    ``prefetch * local_batch_size >= num_workers`` holds, so that the loader has nothing to warn of.
    """
    world_size = draw(st.integers(1, min(max_world_size, dataset_size)))
    local_batch_size = draw(st.integers(1, max(1, dataset_size // world_size)))
    workers = draw(st.sampled_from(sorted(num_workers)))
    enough = [n for n in sorted(prefetch) if n * local_batch_size >= workers]
    shuffle = draw(st.booleans())
    return {
        "local_batch_size": local_batch_size,
        "rank": draw(st.integers(0, world_size - 1)),
        "world_size": world_size,
        "num_workers": workers if enough else 0,
        "prefetch": draw(st.sampled_from(enough or [0])),
        "drop_last": draw(st.booleans()),
        "shuffle": shuffle,
        "shuffle_seed": draw(st.integers(0, 2**63 - 1)) if shuffle else None,
    }
