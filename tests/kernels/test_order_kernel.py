"""The permutation: compiled kernel, NumPy twin and an oracle written from docs/order.md agree."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._kernels.order import permute, permute_numpy
from guideloom._kernels.status import DONE
from guideloom._plan.order import derive_keys

WORD = 2**64 - 1


def naive_index(size: int, seed: int, epoch: int, position: int) -> int:
    """The index at one position, step by step in Python integers."""
    sign = "-" if seed < 0 else ""
    message = "feistel-1:" + sign + hex(abs(seed))[2:] + ":" + hex(epoch)[2:]
    digest = hashlib.blake2b(message.encode()).digest()
    keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(8)]
    bits = 8
    while 2**bits < size:
        bits += 1
    high_bits = bits // 2
    low_bits = bits - high_bits
    x = position
    while True:
        high, low = divmod(x, 2**low_bits)
        for number, key in enumerate(keys):
            mixed = (low if number % 2 == 0 else high) ^ key
            mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & WORD
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & WORD
            mixed ^= mixed >> 31
            if number % 2 == 0:
                high ^= mixed >> (64 - high_bits)
            else:
                low ^= mixed >> (64 - low_bits)
        x = high * 2**low_bits + low
        if x < size:
            return x


def widths(size: int) -> tuple[int, int]:
    bits = max(8, (size - 1).bit_length())
    return bits // 2, bits - bits // 2


sizes = st.one_of(
    st.integers(1, 3000),
    st.builds(lambda k, d: max(1, min(2**62, 2**k + d)), st.integers(8, 62), st.integers(-2, 2)),
    st.integers(1, 2**62),
)


@given(
    size=sizes,
    seed=st.integers(-(2**80), 2**80),
    epoch=st.one_of(st.integers(0, 5), st.integers(0, 2**70)),
    data=st.data(),
)
def test_kernel_twin_and_oracle_agree(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
    expected = [naive_index(size, seed, epoch, position) for position in positions]
    keys = derive_keys(seed, epoch)
    for function in (permute, permute_numpy):
        values = np.array(positions, np.int64)
        assert function(values, keys, size, *widths(size), 0) == DONE
        assert values.tolist() == expected
        assert function(values, keys, size, *widths(size), 1) == DONE
        assert values.tolist() == positions


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("inverse", [0, 1])
def test_blocks_of_the_kernel_do_not_show(count: int, inverse: int) -> None:
    size = 1025  # nearly every second result is outside, so blocks drain unevenly
    values = np.arange(count, dtype=np.int64)
    twin = values.copy()
    keys = derive_keys(7, count)
    assert permute(values, keys, size, *widths(size), inverse) == DONE
    assert permute_numpy(twin, keys, size, *widths(size), inverse) == DONE
    assert values.tolist() == twin.tolist()


@pytest.mark.parametrize("function", [permute, permute_numpy])
@pytest.mark.parametrize("bad", [-1, 100, -(2**63), 2**63 - 1])
def test_first_value_outside_is_reported_and_nothing_changed(function, bad: int) -> None:
    values = np.array([5, 6, bad, 7, -1], np.int64)
    before = values.tolist()
    assert function(values, derive_keys(0, 0), 100, *widths(100), 0) == 2
    assert values.tolist() == before


def test_new_sizes_and_epochs_compile_nothing() -> None:
    compiled = permute.get()
    for size, epoch in ((3, 0), (70_000, 5), (2**62, 2**70)):
        permute(np.zeros(1, np.int64), derive_keys(1, epoch), size, *widths(size), 0)
    assert permute.get() is compiled
    assert len(getattr(compiled, "signatures", [None])) == 1


def test_threads_get_the_same_order_as_one() -> None:
    size = 50_000
    keys = derive_keys(3, 4)

    def part(begin: int) -> list[int]:
        values = np.arange(begin, begin + 5000, dtype=np.int64)
        permute(values, keys, size, *widths(size), 0)
        return values.tolist()

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(part, range(0, size, 5000)))
    whole = np.arange(size, dtype=np.int64)
    permute_numpy(whole, keys, size, *widths(size), 0)
    assert [index for indexes in parts for index in indexes] == whole.tolist()


SCRIPT = """
import json, sys
import numpy as np
from guideloom._kernels.order import permute
from guideloom._plan.order import FeistelOrder
order = FeistelOrder(1000, 11, 22)
indexes = order.positions_to_indexes(3, 7, 140)
assert order.inverse(indexes).tolist() == list(range(3, 3 + 7 * 140, 7))
print(json.dumps([indexes.tolist(), hasattr(permute.get(), "signatures"), "numba" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("variables", "compiled"),
    [({}, True), ({"NUMBA_DISABLE_JIT": "1"}, False), ({"NUMBA_BOUNDSCHECK": "1"}, True)],
    ids=["compiled", "plain", "bounds-checked"],
)
def test_three_ways_to_run_give_one_order(variables: dict[str, str], compiled: bool) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK")}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    result = subprocess.run(command, env=clean | variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    indexes, is_compiled, imported_numba = json.loads(result.stdout)
    assert indexes == [naive_index(1000, 11, 22, position) for position in range(3, 3 + 7 * 140, 7)]
    assert is_compiled == imported_numba == compiled
