"""Seeds of positions: against the algorithm in Python's integers, and as a source of random numbers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._plan.order import FeistelOrder, SequentialOrder
from guideloom._plan.seeds import position_seeds
from guideloom.errors import OutOfRangeError

WORD = 2**64


def seed_of(seed: int, epoch: int, position: int) -> int:
    """As docs/order.md says."""
    digest = hashlib.blake2b(f"seeds-1:{seed:x}:{epoch:x}".encode(), digest_size=8).digest()
    z = (int.from_bytes(digest, "little") + (position + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


# Never to be changed: runs that were begun with them go on.
GOLDEN = [
    ((0, 0), 0, [13369947574275693529, 10118284679951280366, 6627377140682933536, 7282118330782502368]),
    ((1, 0), 0, [4966660504907638683, 10889144691080367098, 14060766532150954265, 1264305456795607733]),
    ((-255, 16), 2**40, [1419701747544233791, 9824203723354545422, 4306653998034091406, 11257549628682146233]),
]


@pytest.mark.parametrize(("key", "start", "seeds"), GOLDEN)
def test_golden_vectors(key: tuple[int, int], start: int, seeds: list[int]) -> None:
    assert position_seeds(FeistelOrder(2**62, *key), start, 1, len(seeds)).tolist() == seeds


@given(
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**70),
    start=st.integers(0, 2**61),
    stride=st.integers(1, 2**40),
    count=st.integers(0, 20),
    shuffled=st.booleans(),
)
def test_seeds_are_those_of_the_algorithm(
    seed: int, epoch: int, start: int, stride: int, count: int, shuffled: bool
) -> None:
    order = (FeistelOrder if shuffled else SequentialOrder)(2**62, seed, epoch)
    seeds = position_seeds(order, start, stride, count)
    assert seeds.dtype == np.uint64
    assert seeds.tolist() == [seed_of(seed, epoch, start + i * stride) for i in range(count)]


def test_seeds_of_neighbours_have_nothing_in_common() -> None:
    grids = [position_seeds(SequentialOrder(4096, seed, epoch), 0, 1, 4096) for seed in (0, 1) for epoch in (0, 1)]
    assert len({*np.concatenate(grids).tolist()}) == 4 * 4096
    bits = np.unpackbits(np.stack(grids).view(np.uint8), axis=-1).reshape(4, 4096, 64).astype(float)
    # Each bit is one in half of them, and differs from its neighbour's, in position, epoch and seed, in half of them;
    # of 64 such means of 4,096 coins the furthest is within 5 standard deviations.
    furthest = 5 * 0.5 / 4096**0.5
    assert abs(bits.mean(1) - 0.5).max() < furthest
    assert abs((bits[:, 1:] != bits[:, :-1]).mean(1) - 0.5).max() < furthest
    for other in (1, 2, 3):
        assert abs((bits[0] != bits[other]).mean(0) - 0.5).max() < furthest


def test_positions_outside_are_refused() -> None:
    with pytest.raises(OutOfRangeError, match="position 10 is outside"):
        position_seeds(SequentialOrder(10), 8, 2, 2)
