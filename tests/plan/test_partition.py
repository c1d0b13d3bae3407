"""Who gets which positions: every sample once, every rank in step, whatever the worlds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._plan.order import FeistelOrder
from guideloom._plan.partition import Partition
from guideloom.errors import ArgumentError, OutOfRangeError

SIZES = [0, 1, 2, 3, 7, 64, 65535, 65536, 65537, 65538]
WORLDS = [1, 2, 3, 5]


def world(size: int, local_batch_size: int, world_size: int, drop_last: bool) -> list[Partition]:
    return [Partition(size, local_batch_size, rank, world_size, drop_last) for rank in range(world_size)]


def positions(partition: Partition, offset: int, step: int) -> list[int]:
    start, stride, count = partition.batch_positions(offset, step)
    return [start + i * stride for i in range(count)]


def naive_batches(size: int, global_batch_size: int, drop_last: bool, offset: int) -> list[list[int]]:
    """The global batches, by dealing the positions out one by one."""
    batches: list[list[int]] = []
    for position in range(offset, size):
        if not batches or len(batches[-1]) == global_batch_size:
            batches.append([])
        batches[-1].append(position)
    if drop_last and batches and len(batches[-1]) < global_batch_size:
        batches.pop()
    return batches


def check_against_naive(size: int, local_batch_size: int, world_size: int, drop_last: bool, offset: int) -> None:
    ranks = world(size, local_batch_size, world_size, drop_last)
    batches = naive_batches(size, local_batch_size * world_size, drop_last, offset)
    for rank, partition in enumerate(ranks):
        assert partition.num_batches(offset) == len(batches)
        for step, batch in enumerate(batches):
            assert partition.span(offset, step) == (batch[0], batch[-1] + 1)
            assert positions(partition, offset, step) == [p for p in batch if p % world_size == rank]


@given(
    size=st.integers(0, 60),
    local_batch_size=st.integers(1, 70),
    world_size=st.integers(1, 9),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_partition_deals_as_by_hand(
    size: int, local_batch_size: int, world_size: int, drop_last: bool, data: st.DataObject
) -> None:
    check_against_naive(size, local_batch_size, world_size, drop_last, data.draw(st.integers(0, size)))


def test_every_offset_of_every_small_epoch() -> None:
    for size, local, world_size, drop_last in product(range(8), (1, 2, 3), (1, 2, 3), (False, True)):
        for offset in range(size + 1):
            check_against_naive(size, local, world_size, drop_last, offset)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_sweep_delivers_every_sample_once_and_ranks_in_step(size: int, world_size: int, drop_last: bool) -> None:
    order = FeistelOrder(size, 1, 1)
    for local in (1, 3, 8, size + 1) if size < 100 else (8, size + 1):
        ranks = world(size, local, world_size, drop_last)
        steps = {partition.num_batches() for partition in ranks}
        assert len(steps) == 1
        delivered = []
        for step, partition in product(range(steps.pop()), ranks):
            start, stride, count = partition.batch_positions(0, step)
            assert 0 <= count <= local
            assert count == local or (not drop_last and step == partition.num_batches() - 1)
            delivered.append(order.positions_to_indexes(start, stride, count))
        indexes = np.concatenate([*delivered, np.empty(0, np.int64)])
        expected = size // (local * world_size) * (local * world_size) if drop_last else size
        assert indexes.size == expected
        assert np.unique(indexes).size == expected
        assert drop_last or np.array_equal(np.sort(indexes), np.arange(size))


@pytest.mark.parametrize("offset", [0, 1, 5, 24])
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_world_with_the_same_global_batch_size_has_the_same_batches(offset: int, drop_last: bool) -> None:
    contents = []
    for world_size in (1, 2, 3, 4, 6, 8, 12, 24):
        ranks = world(1000, 24 // world_size, world_size, drop_last)
        contents.append(
            [
                sorted(p for partition in ranks for p in positions(partition, offset, step))
                for step in range(ranks[0].num_batches(offset))
            ]
        )
    assert all(content == contents[0] for content in contents)
    assert contents[0] == naive_batches(1000, 24, drop_last, offset)


@pytest.mark.parametrize("locals_", [(4, 4, 4, 4), (1, 7, 3, 2), (16, 5, 1, 9)])
@pytest.mark.parametrize("steps", [(1, 1, 1), (3, 2, 5), (0, 4, 0)])
def test_worlds_8_3_5_8_deliver_every_sample_once(locals_: tuple[int, ...], steps: tuple[int, ...]) -> None:
    size = 1009
    order = FeistelOrder(size, 5, 0)
    offset = 0
    delivered: list[int] = []
    for world_size, local, number in zip((8, 3, 5, 8), locals_, (*steps, None), strict=True):
        ranks = world(size, local, world_size, drop_last=False)
        left = ranks[0].num_batches(offset)
        taken = left if number is None else number
        assert taken <= left
        for step, partition in product(range(taken), ranks):
            delivered += order.positions_to_indexes(*partition.batch_positions(offset, step)).tolist()
        offset = ranks[0].span(offset, taken - 1)[1] if taken else offset
    assert offset == size
    assert sorted(delivered) == list(range(size))


def test_sizes_up_to_2_to_the_62nd_cost_nothing() -> None:
    size = 2**62
    partition = Partition(size, 3, 4, 5, False)
    last = partition.num_batches() - 1
    assert last == (size - 1) // 15
    lo, hi = partition.span(0, last)
    assert (lo, hi) == (last * 15, size)
    start, stride, count = partition.batch_positions(7, last - 1)
    assert start % 5 == 4 and stride == 5 and 0 <= count <= 3
    assert all(type(value) is int for value in (lo, hi, start, stride, count))


def test_numpy_integers_become_python_integers() -> None:
    partition = Partition(np.int32(100), np.uint8(4), np.int64(1), np.int16(2), np.True_)
    assert partition == Partition(100, 4, 1, 2, True)
    for value in (*partition.span(np.int64(3), np.int8(2)), *partition.batch_positions(np.int64(3), np.int8(2))):
        assert type(value) is int
    assert type(partition.num_batches(np.int64(3))) is int
    assert type(partition.global_batch_size) is int


def test_empty_part_of_a_last_batch() -> None:
    ranks = world(9, 2, 4, drop_last=False)
    assert [partition.num_batches() for partition in ranks] == [2] * 4
    assert [partition.batch_positions(0, 1)[2] for partition in ranks] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 1, 0, 1), "size must be at least 0, got -1"),
        ((10, 0, 0, 1), "local_batch_size must be at least 1, got 0"),
        ((10, -3, 0, 1), "local_batch_size must be at least 1, got -3"),
        ((10, 1, 0, 0), "world_size must be at least 1, got 0"),
        ((10, 1, 0, -2), "world_size must be at least 1, got -2"),
        ((10, 1, 2, 2), r"rank must be in \[0, world_size\) = \[0, 2\), got 2"),
        ((10, 1, -1, 2), r"rank must be in \[0, world_size\) = \[0, 2\), got -1"),
        ((10.0, 1, 0, 1), "size must be an integer"),
        ((10, 1.5, 0, 1), "local_batch_size must be an integer"),
        ((10, 1, "0", 1), "rank must be an integer"),
        ((10, 1, 0, None), "world_size must be an integer"),
    ],
)
def test_bad_arguments(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        Partition(*arguments, drop_last=True)
    assert isinstance(caught.value, ValueError)


def test_data_set_smaller_than_a_global_batch_is_refused() -> None:
    Partition(12, 4, 0, 3, True).require_full_batch()
    for drop_last in (False, True):
        with pytest.raises(ArgumentError, match=r"at least one global batch of 12 samples .*, it holds 11"):
            Partition(11, 4, 0, 3, drop_last).require_full_batch()


@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_and_offsets_outside_the_epoch(drop_last: bool) -> None:
    partition = Partition(100, 5, 0, 2, drop_last)
    assert partition.num_batches(100) == 0
    for offset in (-1, 101):
        with pytest.raises(OutOfRangeError, match=rf"offset {offset} is outside \[0, 100\]"):
            partition.num_batches(offset)
        with pytest.raises(OutOfRangeError, match=rf"offset {offset} is outside \[0, 100\]"):
            partition.batch_positions(offset, 0)
    for offset, step, steps in ((0, -1, 10), (0, 10, 10), (100, 0, 0), (90, 1, 1)):
        for method in (partition.span, partition.batch_positions):
            with pytest.raises(OutOfRangeError, match=rf"step {step} is outside \[0, {steps}\)"):
                method(offset, step)
    with pytest.raises(ArgumentError, match="step must be an integer"):
        partition.span(0, 1.0)  # type: ignore[arg-type]
