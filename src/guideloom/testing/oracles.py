"""The obvious answers: pure Python, one element at a time, to compare the fast ones with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def naive_window(shards: Sequence[Iterable[T]], index: int, length: int) -> list[T]:
    """Return the elements of a window of the global stream, going on at the first element after the last.

    Parameters
    ----------
    shards : sequence of iterables
        The elements of each shard.
    index, length : int
        First element and number of elements.
    """
    flat = [element for shard in shards for element in shard]
    if not 0 <= index < len(flat) or length < 0:
        raise IndexError(f"window [{index}, {index} + {length}) of {len(flat)} elements")
    return [flat[(index + i) % len(flat)] for i in range(length)]


def naive_runs(counts: Sequence[int], index: int, length: int) -> list[tuple[int, int]]:
    """Return the runs ``(shard, length)`` of a window: elements from one shard without a wrap between them.

    Parameters
    ----------
    counts : sequence of int
        Elements of each shard.
    index, length : int
        The window, in global elements.
    """
    owners = [[(shard, i) for i in range(count)] for shard, count in enumerate(counts)]
    runs: list[tuple[int, int]] = []
    last: tuple[int, int] | None = None
    for shard, i in naive_window(owners, index, length):
        if last is not None and last == (shard, i - 1):
            runs[-1] = (shard, runs[-1][1] + 1)
        else:
            runs.append((shard, 1))
        last = (shard, i)
    return runs


def naive_span_window(span_lengths: Sequence[Sequence[int]], index: int, length: int) -> list[tuple[int, int, int]]:
    """Return ``(element, shard, span)`` for each element of a window; elements and spans are numbered globally.

    Parameters
    ----------
    span_lengths : sequence of sequences of int
        The lengths of the spans of each shard.
    index, length : int
        First element and number of elements.
    """
    owners: list[list[tuple[int, int, int]]] = []
    element = span = 0
    for shard, lengths in enumerate(span_lengths):
        owners.append([])
        for size in lengths:
            for _ in range(size):
                owners[-1].append((element, shard, span))
                element += 1
            span += 1
    return naive_window(owners, index, length)


def naive_batches(
    order: Sequence[T],
    local_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    drop_last: bool = True,
    offset: int = 0,
) -> list[list[T]]:
    """Return the batches that a rank gets of an epoch.

    Parameters
    ----------
    order : sequence
        The epoch's samples; position ``p`` belongs to rank ``p % world_size`` and, from ``offset`` on, to global batch
        ``(p - offset) // (local_batch_size * world_size)``.
    local_batch_size, rank, world_size, drop_last
        As the loader's.
    offset : int
        Positions that were delivered before, perhaps in another world.
    """
    size = local_batch_size * world_size
    left = len(order) - offset
    steps = left // size if drop_last else -(-left // size)
    batches: list[list[T]] = [[] for _ in range(steps)]
    for position in range(offset, len(order)):
        step = (position - offset) // size
        if step < steps and position % world_size == rank:
            batches[step].append(order[position])
    return batches


def difference(expected: Any, found: Any) -> str | None:
    """Say where two nested lists and dicts first differ, or None; a NaN is no different from a NaN."""
    if isinstance(expected, list) and isinstance(found, list):
        for i, (left, right) in enumerate(zip(expected, found, strict=False)):
            inner = difference(left, right)
            if inner is not None:
                return f"[{i}]{inner}" if inner.startswith("[") else f"[{i}]: {inner}"
        if len(expected) != len(found):
            rest = expected[len(found) :] or found[len(expected) :]
            return f"expected {len(expected)} items, found {len(found)}; the first without a partner is {rest[0]!r}"
        return None
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key, left in expected.items():
            inner = difference(left, found[key])
            if inner is not None:
                return f"[{key!r}]{inner}" if inner.startswith("[") else f"[{key!r}]: {inner}"
        return None
    # What is a NaN is not equal to itself.
    if expected == found or (expected != expected and found != found):
        return None
    return f"expected {expected!r}, found {found!r}"
