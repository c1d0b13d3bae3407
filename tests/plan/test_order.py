"""The order of an epoch: a bijection for every size, the same for ever, and clear errors."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._plan.order import MAX_SIZE, FeistelOrder, Order, SequentialOrder, make_order
from guideloom.errors import ArgumentError, OutOfRangeError

# (size, seed, epoch), start, stride, indexes. Written by the oracle of tests/kernels/test_order_kernel.py. Never change
# them: who resumes a run with a newer release must get the rest of the same epoch.
GOLDEN = [
    ((1, 0, 0), 0, 1, [0]),
    ((2, 0, 0), 0, 1, [1, 0]),
    ((7, 1, 0), 0, 1, [6, 0, 2, 3, 4, 5, 1]),
    ((7, 1, 1), 0, 1, [2, 6, 0, 4, 3, 5, 1]),
    ((17, -1, 3), 0, 1, [8, 4, 1, 0, 14, 13, 3, 10, 7, 5, 9, 2, 11, 6, 12, 15, 16]),
    ((256, 0, 0), 0, 1, [251, 178, 80, 76, 94, 167, 88, 64, 164, 223, 72, 18]),
    ((257, 0, 0), 0, 1, [168, 52, 46, 79, 29, 53, 169, 179, 30, 194, 146, 205]),
    ((1000, 1, 2), 0, 1, [166, 208, 132, 679, 225, 791, 118, 959, 399, 909, 28, 931]),
    ((1000, 2, 1), 0, 1, [433, 690, 909, 385, 681, 24, 228, 666, 807, 619, 641, 768]),
    ((65537, 18446744073709551616, 1), 5, 8, [4142, 61205, 12154, 20806, 5178, 17382, 32639, 20882, 8115, 47605]),
    ((200000, 42, 7), 199990, 1, [79722, 182418, 129942, 36730, 146586, 25502, 156203, 62442, 95587, 49764]),
    (
        (1000000000, -1267650600228229401496703205376, 73786976294838206464),
        123456789,
        1000,
        [659745741, 394101303, 17158868, 555099859, 143671276, 386724779, 939826496, 513272779],
    ),
    ((2147483649, 12345, 0), 2147483645, 1, [1257737526, 2005198811, 1209622263, 1293892702]),
    (
        (4611686018427387903, 9, 9),
        2305843009213693952,
        288230376151711744,
        [
            3274871357240023075,
            1375235227231187923,
            836547109063904971,
            1825703525687287044,
            1705445325552209202,
            1782334602449036121,
        ],
    ),
    (
        (4611686018427387904, 2026, 11),
        4611686018427387899,
        1,
        [3700512974098681351, 810634072346447067, 3914888831720941830, 3482810811855304692, 2855872348087650637],
    ),
]

BIG = 2**62


def assert_is_permutation(order: FeistelOrder) -> None:
    positions = np.arange(order.size)
    indexes = order.positions_to_indexes(0, 1, order.size)
    assert (np.bincount(indexes, minlength=order.size) == 1).all()
    assert np.array_equal(order.inverse(indexes), positions)


@pytest.mark.parametrize(("parameters", "start", "stride", "indexes"), GOLDEN)
def test_golden_vectors(parameters: tuple[int, int, int], start: int, stride: int, indexes: list[int]) -> None:
    order = FeistelOrder(*parameters)
    assert order.name == "feistel-1"
    assert order.positions_to_indexes(start, stride, len(indexes)).tolist() == indexes
    positions = [start + i * stride for i in range(len(indexes))]
    assert order.at(positions).tolist() == indexes
    assert order.inverse(indexes).tolist() == positions


def test_bijection_for_every_size_up_to_5000() -> None:
    for size in range(1, 5001):
        assert_is_permutation(FeistelOrder(size, size % 7, size % 5))


@pytest.mark.parametrize("bits", [*range(13, 21), *(pytest.param(bits, marks=pytest.mark.slow) for bits in (21, 22))])
def test_bijection_around_powers_of_two(bits: int) -> None:
    for size in range(2**bits - 2, 2**bits + 3):
        assert_is_permutation(FeistelOrder(size, 3, bits))


@given(size=st.integers(1, BIG), seed=st.integers(), epoch=st.integers(0), data=st.data())
def test_range_at_and_inverse_agree_at_any_size(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    stride = data.draw(st.integers(1, max(1, size // 3)))
    count = data.draw(st.integers(0, min(300, (size - 1 - start) // stride + 1)))
    positions = [start + i * stride for i in range(count)]
    for order in (FeistelOrder(size, seed, epoch), SequentialOrder(size)):
        indexes = order.positions_to_indexes(start, stride, count)
        assert indexes.dtype == np.int64 and indexes.shape == (count,)
        assert all(0 <= index < size for index in indexes.tolist())
        assert len(set(indexes.tolist())) == count
        assert order.at(positions).tolist() == indexes.tolist()
        assert order.inverse(indexes).tolist() == positions


def test_sequential_order_is_the_order_of_the_data_set() -> None:
    order = SequentialOrder(10)
    assert order.name == "sequential"
    assert order.positions_to_indexes(1, 4, 3).tolist() == [1, 5, 9]
    assert order.at([9, 0, 3]).tolist() == order.inverse([9, 0, 3]).tolist() == [9, 0, 3]


def test_make_order() -> None:
    assert make_order(10, False, None, 3) == SequentialOrder(10, 0, 3)
    assert make_order(10, True, 5, 3) == FeistelOrder(10, 5, 3)
    with pytest.raises(ArgumentError, match="needs a seed"):
        make_order(10, True, None, 3)


@pytest.mark.parametrize("order", [FeistelOrder(0, 1, 1), SequentialOrder(0)])
def test_order_of_nothing(order: Order) -> None:
    for indexes in (order.positions_to_indexes(0, 1, 0), order.at([]), order.inverse([])):
        assert indexes.dtype == np.int64 and indexes.size == 0
    with pytest.raises(OutOfRangeError, match=r"position 0 is outside \[0, 0\)"):
        order.positions_to_indexes(0, 1, 1)


def test_seed_and_epoch_of_any_kind_of_integer() -> None:
    for seed in (0, -1, 2**64 + 1, -(2**64) - 1, 10**6000):  # the last is longer than Python prints in decimal
        assert_is_permutation(FeistelOrder(100, seed, abs(seed)))
    assert FeistelOrder(np.int32(100), np.int64(5), np.uint8(6)) == FeistelOrder(100, 5, 6)
    distinct = [(5, 0), (-5, 0), (0, 5), (5, 5), (2**64 + 5, 0), (0, 2**64 + 5), (0x51, 0), (5, 0x10), (5, 1)]
    assert len({tuple(FeistelOrder(100, *pair).at(range(100)).tolist()) for pair in distinct}) == len(distinct)


@pytest.mark.parametrize("order", [FeistelOrder(1000, -3, 2**70), SequentialOrder(1000)])
def test_orders_are_immutable_values(order: Order) -> None:
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order and hash(copy) == hash(order)
    assert copy.at([1, 2, 3]).tolist() == order.at([1, 2, 3]).tolist()
    with pytest.raises(AttributeError):
        order.size = 5  # type: ignore[misc]


def test_pickle_does_not_grow_with_the_size() -> None:
    assert len(pickle.dumps(FeistelOrder(BIG, 1, 1))) < 1000


@pytest.mark.parametrize("order", [FeistelOrder(50, 1, 2), SequentialOrder(50)])
@pytest.mark.parametrize("dtype", ["i1", "u1", "<i4", ">i4", "<i8", ">i8", "u8", "O"])
def test_positions_of_any_integer_dtype_shape_and_layout(order: Order, dtype: str) -> None:
    positions = np.arange(48, dtype=dtype).reshape(6, 8)
    before = positions.copy()
    expected = order.positions_to_indexes(0, 1, 48).reshape(6, 8)
    for view in (positions, positions[::2, ::-3], positions.T):
        result = order.at(view)
        assert result.dtype == np.int64
        assert np.array_equal(result, expected[view.astype(int) // 8, view.astype(int) % 8])
        assert np.array_equal(order.inverse(result), view)
    assert np.array_equal(positions, before)


@pytest.mark.parametrize("order", [FeistelOrder(50, 1, 2), SequentialOrder(50)])
@pytest.mark.parametrize("bad", [-1, 50, 2**31, 2**63 - 1, -(2**63), 2**63, 2**70, -(2**70)])
def test_positions_and_indexes_outside(order: Order, bad: int) -> None:
    with pytest.raises(OutOfRangeError, match=rf"position {bad} is outside \[0, 50\)"):
        order.at([3, bad] if abs(bad) < 2**62 else [bad])
    with pytest.raises(OutOfRangeError, match=rf"index {bad} is outside \[0, 50\)"):
        order.inverse([bad])


@pytest.mark.parametrize("order", [FeistelOrder(50, 1, 2), SequentialOrder(50)])
@pytest.mark.parametrize("bad", [[1.0], ["a"], [None], [True], [[1], [2.5]]])
def test_positions_that_are_no_integers(order: Order, bad: npt.ArrayLike) -> None:
    with pytest.raises(ArgumentError, match="expected integers"):
        order.at(bad)
    with pytest.raises(ArgumentError, match="expected integers"):
        order.inverse(bad)


@pytest.mark.parametrize("order", [FeistelOrder(50, 1, 2), SequentialOrder(50)])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0, 1), ArgumentError, "stride must be at least 1, got 0"),
        ((0, -1, 1), ArgumentError, "stride must be at least 1, got -1"),
        ((0, 1, -1), ArgumentError, "count must be at least 0, got -1"),
        ((0.0, 1, 1), ArgumentError, "start must be an integer"),
        ((0, 1.5, 1), ArgumentError, "stride must be an integer"),
        ((0, 1, "3"), ArgumentError, "count must be an integer"),
        ((-1, 1, 1), OutOfRangeError, "position -1 is outside"),
        ((0, 1, 51), OutOfRangeError, "position 50 is outside"),
        ((2, 16, 4), OutOfRangeError, "position 50 is outside"),
        ((2**80, 1, 1), OutOfRangeError, "outside"),
        ((0, 2**80, 2), OutOfRangeError, "outside"),
    ],
)
def test_bad_ranges(order: Order, arguments: tuple[int, int, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        order.positions_to_indexes(*arguments)


def test_range_of_one_element_may_have_any_stride() -> None:
    assert SequentialOrder(50).positions_to_indexes(49, 2**80, 1).tolist() == [49]
    assert SequentialOrder(50).positions_to_indexes(2**80, 1, 0).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0), r"size must be in \[0, 2\*\*62\], got -1"),
        ((MAX_SIZE + 1, 0, 0), r"size must be in \[0, 2\*\*62\]"),
        ((1.0, 0, 0), "size must be an integer"),
        ((1, None, 0), "seed must be an integer"),
        ((1, 0.5, 0), "seed must be an integer"),
        ((1, 0, -1), "epoch must be at least 0, got -1"),
        ((1, 0, "0"), "epoch must be an integer"),
    ],
)
def test_bad_parameters(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        FeistelOrder(*arguments)


@pytest.mark.parametrize("size", [-1, MAX_SIZE + 1, 1.0, None])
def test_bad_sizes_of_a_sequential_order(size: int) -> None:
    with pytest.raises(ArgumentError, match="size must be"):
        SequentialOrder(size)
