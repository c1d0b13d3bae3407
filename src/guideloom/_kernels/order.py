"""The Feistel permutation of an epoch, forward and inverse; ``docs/order.md`` is its normative description.

A number ``x`` of ``high_bits + low_bits`` bits is cut into ``high = x >> low_bits`` and ``low``, the rest. Rounds
change the halves by turns, ``high ^= F(low, keys[0])``, ``low ^= F(high, keys[1])``, and so on; ``F`` is the top bits
of the finaliser of SplitMix64 ("Mix13"). A result outside ``[0, size)`` goes through the rounds again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel
from guideloom._kernels.status import DONE

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

NUM_ROUNDS = 8
"""Rounds, and keys. ``docs/order.md`` says why eight."""

# Elements in flight at once: enough to hide the latency of the multiplications, few enough for the L1 cache.
_BLOCK = 128

_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_ONE = np.uint64(1)


def _mix(half: U64, key: np.uint64, shift: np.uint64) -> U64:
    mixed = half ^ key
    mixed ^= mixed >> _SHIFT_1
    mixed *= _MULTIPLIER_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _MULTIPLIER_2
    return mixed >> shift


def permute_numpy(values: I64, keys: U64, size: int, high_bits: int, low_bits: int, inverse: int) -> int:
    """Twin of :func:`permute`, vectorised in NumPy."""
    outside = np.flatnonzero((values < 0) | (values >= size))
    if outside.size:
        return int(outside[0])
    width = np.uint64(low_bits)
    mask = (_ONE << width) - _ONE
    high_shift, low_shift = np.uint64(64 - high_bits), np.uint64(64 - low_bits)
    slot = np.arange(values.size)
    x = values.astype(np.uint64)
    while slot.size:
        high, low = x >> width, x & mask
        if inverse:
            for r in range(NUM_ROUNDS - 1, 0, -2):
                low ^= _mix(high, keys[r], low_shift)
                high ^= _mix(low, keys[r - 1], high_shift)
        else:
            for r in range(0, NUM_ROUNDS, 2):
                high ^= _mix(low, keys[r], high_shift)
                low ^= _mix(high, keys[r + 1], low_shift)
        x = (high << width) | low
        inside = x < np.uint64(size)
        values[slot[inside]] = x[inside]
        slot, x = slot[~inside], x[~inside]
    return DONE


@kernel("int64(int64[::1], uint64[::1], int64, int64, int64, int64)", twin=permute_numpy)
def permute(values: I64, keys: U64, size: int, high_bits: int, low_bits: int, inverse: int) -> int:
    """Replace each of ``values`` by its image under the permutation of ``[0, size)``, or under its inverse.

    Parameters
    ----------
    values : int64[n]
        Changed in place.
    keys : uint64[NUM_ROUNDS]
    size : int
        In ``[0, 2**62]``, and at most ``2**(high_bits + low_bits)``.
    high_bits, low_bits : int
        Widths of the halves, each in ``[1, 31]``.
    inverse : int
        0 or 1.

    Returns
    -------
    int
        ``DONE``, or the place in ``values`` of the first that is outside ``[0, size)``; then nothing is changed.

    Notes
    -----
    O(n * 2**(high_bits + low_bits) / size) expected, O(1) memory. Elements are independent, one element is a chain of
    16 multiplications: a block of elements goes through each round together, so that the chains overlap.
    """
    for i in range(values.size):
        if values[i] < 0 or values[i] >= size:
            return i
    width = np.uint64(low_bits)
    mask = (_ONE << width) - _ONE
    limit = np.uint64(size)
    # The inverse is the same network with the halves exchanged and the keys from last to first: one loop does both.
    if inverse != 0:
        shift_a = np.uint64(64 - low_bits)
        shift_b = np.uint64(64 - high_bits)
    else:
        shift_a = np.uint64(64 - high_bits)
        shift_b = np.uint64(64 - low_bits)
    a = np.empty(_BLOCK, np.uint64)
    b = np.empty(_BLOCK, np.uint64)
    slot = np.empty(_BLOCK, np.int64)
    for begin in range(0, values.size, _BLOCK):
        pending = min(_BLOCK, values.size - begin)
        for j in range(pending):
            x = np.uint64(values[begin + j])
            if inverse != 0:
                a[j] = x & mask
                b[j] = x >> width
            else:
                a[j] = x >> width
                b[j] = x & mask
            slot[j] = begin + j
        while pending > 0:
            for r in range(0, NUM_ROUNDS, 2):
                if inverse != 0:
                    key_a = keys[NUM_ROUNDS - 1 - r]
                    key_b = keys[NUM_ROUNDS - 2 - r]
                else:
                    key_a = keys[r]
                    key_b = keys[r + 1]
                for j in range(pending):
                    mixed = b[j] ^ key_a
                    mixed ^= mixed >> _SHIFT_1
                    mixed *= _MULTIPLIER_1
                    mixed ^= mixed >> _SHIFT_2
                    mixed *= _MULTIPLIER_2
                    half = a[j] ^ (mixed >> shift_a)
                    a[j] = half
                    mixed = half ^ key_b
                    mixed ^= mixed >> _SHIFT_1
                    mixed *= _MULTIPLIER_1
                    mixed ^= mixed >> _SHIFT_2
                    mixed *= _MULTIPLIER_2
                    b[j] ^= mixed >> shift_b
            outside = 0
            for j in range(pending):
                half_a = a[j]
                half_b = b[j]
                place = slot[j]
                if inverse != 0:
                    x = (half_b << width) | half_a
                else:
                    x = (half_a << width) | half_b
                # Written even when outside: a slot's last write is inside, and a branch would often be mispredicted.
                values[place] = np.int64(x)
                a[outside] = half_a
                b[outside] = half_b
                slot[outside] = place
                outside += 1 if x >= limit else 0
            pending = outside
    return DONE
