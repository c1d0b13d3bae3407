"""Whether the order of an epoch looks like chance: fixed seeds, thresholds that weak permutations fail.

``python tests/plan/test_order_statistics.py`` prints what was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest

from guideloom._plan.order import FeistelOrder
from guideloom._plan.partition import Partition

I64 = npt.NDArray[np.int64]
At = Callable[[I64], I64]
Family = Callable[[int, int, int], At]

NUM_SEEDS = 64
SAMPLES = 1 << 13  # positions a seed, when there are more
BUCKETS = 8
SIZES = [17, 1000, 2**20 - 1, 2**20, 2**20 + 1, 10**9]
LIMIT = 4.5  # standard deviations; one of a thousand measurements exceeds it by chance with probability 0.7 %
REJECTED = 10.0


def z_of_chi_square(statistic: float, degrees: float) -> float:
    """Standard score of a chi-square statistic (Wilson and Hilferty 1931)."""
    return ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))


class ChiSquare:
    """Sums up chi-square statistics of independent tables."""

    def __init__(self) -> None:
        self.statistic = 0.0
        self.degrees = 0.0

    def add(self, observed: npt.NDArray[np.int64], expected: npt.NDArray[np.float64], degrees: float) -> None:
        self.statistic += float(((observed - expected) ** 2 / expected).sum())
        self.degrees += degrees

    def add_table(self, a: I64, b: I64) -> I64:
        """Independence of two bucket numbers, given how often each occurs."""
        table = np.bincount(a * BUCKETS + b, minlength=BUCKETS * BUCKETS).reshape(BUCKETS, BUCKETS)
        expected = np.outer(table.sum(1), table.sum(0)) / a.size
        # Given the margins, the mean of the statistic is n / (n - 1) times that of chi-square.
        self.add(table, expected, (BUCKETS - 1) ** 2 * a.size / (a.size - 1))
        return table

    @property
    def z(self) -> float:
        return z_of_chi_square(self.statistic, self.degrees)


def examine(family: Family, size: int, num_seeds: int = NUM_SEEDS) -> dict[str, float]:
    """Standard scores of what is measured over the seeds; all are near 0 for chance."""
    rng = np.random.default_rng(20261129)
    lags = [1 << j for j in range((size - 1).bit_length() - 1)]
    where, pooled = ChiSquare(), np.zeros((BUCKETS, BUCKETS), np.int64)
    later, other = ChiSquare(), ChiSquare()
    near = {lag: ChiSquare() for lag in lags}
    steps = {lag: ChiSquare() for lag in lags}
    serial: dict[int, list[float]] = {lag: [] for lag in lags}
    displacement = []
    edges = np.array([-(-j * size // BUCKETS) for j in range(BUCKETS + 1)], dtype=np.int64)
    step_odds = np.diff(edges) - (np.arange(BUCKETS) == 0)  # a step of 0 does not occur
    step_odds = step_odds / step_odds.sum()

    def bucket(values: I64) -> I64:
        return np.searchsorted(edges, values, side="right") - 1

    for seed in range(num_seeds):
        at = family(size, seed, 0)
        if size <= SAMPLES:
            positions = np.arange(size)
        else:
            positions = np.unique(rng.integers(0, size, SAMPLES))
        indexes = at(positions)
        pooled += where.add_table(bucket(positions), bucket(indexes))
        later.add_table(bucket(indexes), bucket(family(size, seed, 1)(positions)))
        other.add_table(bucket(indexes), bucket(family(size, seed + 1, 0)(positions)))
        # |index - position| / size: mean 1/3, variance 1/18, up to terms of 1 / size; exact for a whole permutation.
        n = positions.size
        if n == size:
            mean, deviation = (size**2 - 1) / 3, math.sqrt((size + 1) * (2 * size**2 + 7) / 45)
        else:
            mean, deviation = n * size / 3, size * math.sqrt(n / 18)
        displacement.append((float(np.abs(indexes - positions).sum()) - mean) / deviation)
        for lag in lags:
            first = positions[positions < size - lag]
            a, b = at(first), at(first + lag)
            if size >= 1000:  # for fewer, that a != b biases both; pairs_of_few is exact
                near[lag].add_table(bucket(a), bucket(b))
                counts = np.bincount(bucket((b - a) % size), minlength=BUCKETS)
                steps[lag].add(counts, step_odds * first.size, BUCKETS - 1)
            x, y = (v / size - (size - 1) / (2 * size) for v in (a, b))
            variance = (size**2 - 1) / (12 * size**2)
            serial[lag].append((float((x * y).mean()) / variance + 1 / (size - 1)) * math.sqrt(first.size))
    together = ChiSquare()
    together.add(pooled, np.outer(pooled.sum(1), pooled.sum(0)) / pooled.sum(), (BUCKETS - 1) ** 2)
    scores = {
        "position -> bucket": where.z,
        "position -> bucket, pooled": together.z,
        "displacement": sum(displacement) / math.sqrt(num_seeds),
        "displacement, spread": z_of_chi_square(sum(d * d for d in displacement), num_seeds),
        "epoch and next epoch": later.z,
        "seed and next seed": other.z,
    }
    for lag in lags:
        if size >= 1000:
            scores[f"lag {lag}: bucket and bucket"] = near[lag].z
            scores[f"lag {lag}: step"] = steps[lag].z
        scores[f"lag {lag}: serial correlation"] = sum(serial[lag]) / math.sqrt(num_seeds)
        scores[f"lag {lag}: serial correlation, spread"] = z_of_chi_square(sum(s * s for s in serial[lag]), num_seeds)
    return scores


def feistel(size: int, seed: int, epoch: int) -> At:
    return FeistelOrder(size, seed, epoch).at


def affine(size: int, seed: int, epoch: int) -> At:
    """``a * x + c mod size``: a bijection that many programs take for a shuffle."""
    rng = np.random.default_rng([seed, epoch])
    factor = next(a for a in rng.integers(size // 4, size, 1000).tolist() if math.gcd(a, size) == 1)
    shift = int(rng.integers(size))
    return lambda positions: (positions * factor + shift) % size


def two_rounds(size: int, seed: int, epoch: int) -> At:
    """A Feistel network with perfect round functions, of two rounds only."""
    bits = max(8, (size - 1).bit_length())
    high_bits, low_bits = bits // 2, bits - bits // 2
    rng = np.random.default_rng([seed, epoch])
    of_low = rng.integers(0, 1 << high_bits, 1 << low_bits)
    of_high = rng.integers(0, 1 << low_bits, 1 << high_bits)

    def at(positions: I64) -> I64:
        x = positions.copy()
        walking = np.ones(x.size, bool)
        while walking.any():
            high, low = x[walking] >> low_bits, x[walking] & ((1 << low_bits) - 1)
            high ^= of_low[low]
            low ^= of_high[high]
            x[walking] = high << low_bits | low
            walking = x >= size
        return x

    return at


def same_each_epoch(size: int, seed: int, epoch: int) -> At:
    return feistel(size, seed, 0)


def seed_plus_epoch(size: int, seed: int, epoch: int) -> At:
    return feistel(size, seed + epoch, 0)


@pytest.mark.parametrize("size", SIZES)
def test_order_looks_like_chance(size: int) -> None:
    scores = examine(feistel, size)
    assert {name: z for name, z in scores.items() if abs(z) > LIMIT} == {}


@pytest.mark.parametrize("size", [1000, 2**20, 10**9])
@pytest.mark.parametrize("family", [affine, two_rounds, same_each_epoch])
def test_weak_orders_are_rejected(family: Family, size: int) -> None:
    assert max(abs(z) for z in examine(family, size, num_seeds=8).values()) > REJECTED


@pytest.mark.parametrize("family", [affine, two_rounds])
def test_weak_orders_of_few_samples_are_rejected(family: Family) -> None:
    assert max(abs(z) for z in pairs_of_few(family).values()) > REJECTED


def parts_of_an_epoch(family: Family, size: int, seed: int, world_size: int) -> dict[str, tuple[I64, I64]]:
    """For each delivered sample the part of the epoch that it came in, or its rank, and the shard that it lies in."""
    bounds = np.array(
        [0, size // 20, size // 7, size // 2, size // 2, size - 100]
    )  # large shards, a small one, an empty one
    ranks = [Partition(size, 16, rank, world_size, True) for rank in range(world_size)]
    batches = [
        np.stack([np.arange(start, start + stride * count, stride), np.full(count, rank)])
        for rank, partition in enumerate(ranks)
        for start, stride, count in (partition.batch_positions(0, step) for step in range(partition.num_batches()))
    ]
    positions, rank_of = np.concatenate(batches, axis=1)
    shards = np.searchsorted(bounds, family(size, seed, 0)(positions), side="right") - 1
    return {"decile": (positions * 10 // size, shards), "rank": (rank_of, shards)}


def evenness(family: Family, world_size: int, num_seeds: int = NUM_SEEDS, size: int = 20_011) -> dict[str, float]:
    """Standard scores of how the shards are spread over the deciles of an epoch, and over the ranks."""
    sums = {"decile": ChiSquare(), "rank": ChiSquare()}
    for seed in range(num_seeds):
        for name, (part, shard) in parts_of_an_epoch(family, size, seed, world_size).items():
            table = np.zeros((part.max() + 1, shard.max() + 1), np.int64)
            np.add.at(table, (part, shard), 1)
            table = table[:, table.any(axis=0)]
            expected = np.outer(table.sum(1), table.sum(0)) / part.size
            degrees = (table.shape[0] - 1) * (table.shape[1] - 1) * part.size / (part.size - 1)
            sums[name].add(table, expected, degrees)
    return {name: total.z for name, total in sums.items()}


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_each_decile_of_an_epoch_and_each_rank_sees_all_shards_alike(world_size: int) -> None:
    scores = evenness(feistel, world_size)
    assert {name: z for name, z in scores.items() if abs(z) > LIMIT} == {}


def shards_in_turn(size: int, seed: int, epoch: int) -> At:
    return lambda positions: positions


def one_shard_a_rank(size: int, seed: int, epoch: int) -> At:
    """Every second position from each half of the data, shuffled: two ranks never see each other's half."""
    half = size // 2
    return lambda positions: feistel(half, seed, epoch)(positions // 2 % half) + positions % 2 * half


@pytest.mark.parametrize(("family", "name"), [(shards_in_turn, "decile"), (one_shard_a_rank, "rank")])
def test_shards_in_turn_or_a_shard_a_rank_are_noticed(family: Family, name: str) -> None:
    assert evenness(family, 2, num_seeds=2)[name] > REJECTED


def pairs_of_few(family: Family, size: int = 17, epochs: int = 40) -> dict[str, float]:
    """Standard scores of how often each index, and each pair of indexes, stands at given positions."""
    orders = np.array([family(size, s, e)(np.arange(size)) for s in range(NUM_SEEDS) for e in range(epochs)])
    scores = {}
    for position in range(size):
        counts = np.bincount(orders[:, position], minlength=size)
        expected = len(orders) / size
        scores[f"{position}"] = z_of_chi_square(float(((counts - expected) ** 2).sum() / expected), size - 1)
        for other in range(position + 1, size):
            pair = orders[:, position] * size + orders[:, other]
            counts = np.bincount(pair, minlength=size * size)
            counts = counts[np.arange(size * size) % (size + 1) != 0]  # the two differ
            expected = len(orders) / (size * (size - 1))
            degrees = size * (size - 1) - 1
            scores[f"{position}, {other}"] = z_of_chi_square(
                float(((counts - expected) ** 2).sum() / expected), degrees
            )
    return scores


def test_pairs_of_few_samples_look_like_chance() -> None:
    scores = pairs_of_few(feistel)
    assert {name: z for name, z in scores.items() if abs(z) > LIMIT} == {}


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_permutation_of_few_samples_is_equally_likely(size: int) -> None:
    positions = np.arange(size)
    counts = Counter(
        tuple(FeistelOrder(size, seed, epoch).at(positions).tolist())
        for seed in range(NUM_SEEDS)
        for epoch in range(25)
    )
    number = math.factorial(size)
    expected = NUM_SEEDS * 25 / number
    assert counts.keys() == set(permutations(range(size)))
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert abs(z_of_chi_square(statistic, number - 1)) < LIMIT


def pair_deviation(high_bits: int, low_bits: int, rounds: int) -> float:
    """Largest relative error of the probability that two numbers with one difference get two images with another.

    Exact for independent random round functions: the difference of the halves is then a Markov chain, in which a half
    that a round changes becomes uniform, unless the other half is the same in both numbers.
    """
    shape = (1 << high_bits, 1 << low_bits)
    uniform = 1 / (shape[0] * shape[1] - 1)
    worst = 0.0
    for start in ((1, 0), (0, 1), (1, 1)):
        odds = np.zeros(shape)
        odds[start] = 1
        for number in range(rounds):
            if number % 2 == 0:
                odds[:, 1:] = odds[:, 1:].mean(axis=0, keepdims=True)
            else:
                odds[1:, :] = odds[1:, :].mean(axis=1, keepdims=True)
        worst = max(worst, float(np.abs(odds.reshape(-1)[1:] / uniform - 1).max()))
    return worst


@pytest.mark.parametrize("bits", range(8, 17))
def test_eight_rounds_make_pairs_uniform_and_four_do_not(bits: int) -> None:
    assert pair_deviation(bits // 2, bits - bits // 2, 8) < 0.01
    assert pair_deviation(bits // 2, bits - bits // 2, 4) > 0.9


def test_orders_of_small_seeds_and_epochs_all_differ() -> None:
    orders = {
        (seed, epoch): tuple(FeistelOrder(1000, seed, epoch).positions_to_indexes(0, 1, 1000).tolist())
        for seed in range(16)
        for epoch in range(16)
    }
    assert len(set(orders.values())) == 256
    assert orders[1, 2] != orders[2, 1]


def test_pairwise_comparison_of_orders_notices_seed_plus_epoch() -> None:
    positions = np.arange(1000)
    assert seed_plus_epoch(1000, 1, 2)(positions).tolist() == seed_plus_epoch(1000, 2, 1)(positions).tolist()


def report() -> None:
    for bits in (8, 9, 10, 12, 16):
        errors = ", ".join(
            f"{rounds}: {pair_deviation(bits // 2, bits - bits // 2, rounds):.1e}" for rounds in (4, 6, 8)
        )
        print(f"{bits} bits, largest relative error of a pair's probability after rounds {errors}")
    for size in SIZES:
        scores = examine(feistel, size)
        worst = max(scores, key=lambda name: abs(scores[name]))
        print(f"size {size}: {len(scores)} measurements, largest |z| {abs(scores[worst]):.2f} ({worst})")
        for name in ("position -> bucket", "displacement", "epoch and next epoch", "seed and next seed"):
            print(f"    {name}: {scores[name]:+.2f}")
        print(f"    lag 1: serial correlation: {scores['lag 1: serial correlation']:+.2f}")
    scores = pairs_of_few(feistel)
    print(f"size 17, indexes and pairs: {len(scores)} measurements, largest |z| {max(map(abs, scores.values())):.2f}")
    for family in (affine, two_rounds, same_each_epoch):
        for size in (1000, 2**20, 10**9):
            scores = examine(family, size, num_seeds=8)
            print(f"{family.__name__}, size {size}, 8 seeds: largest |z| {max(map(abs, scores.values())):.0f}")


if __name__ == "__main__":
    report()
