"""The order of an epoch: which sample stands at which position, as a pure function of (size, seed, epoch).

``docs/order.md`` describes the permutation so that another implementation can reproduce it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import as_int
from guideloom._base.errors import ArgumentError, OutOfRangeError
from guideloom._kernels.order import NUM_ROUNDS, permute
from guideloom._kernels.status import DONE

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

MAX_SIZE = 2**62
"""Largest number of samples of an order."""

_MIN_BITS = 8  # With fewer, the halves are too narrow for eight rounds to mix well: docs/order.md has the numbers.


class Order(Protocol):
    """A bijection between positions in an epoch and sample indexes, both in ``[0, size)``.

    Objects are immutable and picklable, and may be used from several threads at once.
    """

    @property
    def size(self) -> int:
        """Number of samples N."""
        ...

    @property
    def name(self) -> str:
        """Name of the algorithm, with its version; it belongs in a state."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the order, and of what is drawn for its samples."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        ...

    def positions_to_indexes(self, start: int, stride: int, count: int) -> I64:
        """Return the indexes of the samples at positions ``start, start + stride, ...``.

        Parameters
        ----------
        start : int
            At least 0.
        stride : int
            At least 1.
        count : int
            At least 0; the last position must be below ``size``.

        Returns
        -------
        int64[count]

        Raises
        ------
        ArgumentError
            ``stride`` or ``count`` is too small.
        OutOfRangeError
            A position is outside ``[0, size)``.
        """
        ...

    def at(self, positions: npt.ArrayLike) -> I64:
        """Return the index of the sample at each of ``positions`` (integers, any shape; the result has the same shape).

        Raises
        ------
        ArgumentError
            ``positions`` are not integers.
        OutOfRangeError
            A position is outside ``[0, size)``.
        """
        ...

    def inverse(self, indexes: npt.ArrayLike) -> I64:
        """Return the position of each sample of ``indexes``: ``inverse(at(p)) == p``. Errors as in :meth:`at`."""
        ...


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """Samples in the order of the data set: position ``p`` is sample ``p``.

    Parameters
    ----------
    size : int
        Number of samples, in ``[0, 2**62]``.
    seed : int
        Any integer, of any length and sign; for what is drawn for samples, the order does not depend on it.
    epoch : int
        At least 0, of any length; likewise.

    Raises
    ------
    ArgumentError
        An argument is no integer, or out of range.
    """

    size: int
    seed: int = 0
    epoch: int = 0

    name: ClassVar[str] = "sequential"

    def __post_init__(self) -> None:
        for name, value in zip(("size", "seed", "epoch"), _checked(self.size, self.seed, self.epoch), strict=True):
            object.__setattr__(self, name, value)

    def positions_to_indexes(self, start: int, stride: int, count: int) -> I64:
        """See :meth:`Order.positions_to_indexes`. O(count)."""
        return positions_between(start, stride, count, self.size)

    def at(self, positions: npt.ArrayLike) -> I64:
        """See :meth:`Order.at`. O(n)."""
        values = _as_int64(positions, self.size, "position")
        outside = np.flatnonzero((values < 0) | (values >= self.size))
        if outside.size:
            raise _outside(values.flat[outside[0]], self.size, "position")
        return values

    def inverse(self, indexes: npt.ArrayLike) -> I64:
        """See :meth:`Order.inverse`. O(n)."""
        values = _as_int64(indexes, self.size, "index")
        outside = np.flatnonzero((values < 0) | (values >= self.size))
        if outside.size:
            raise _outside(values.flat[outside[0]], self.size, "index")
        return values


@dataclass(frozen=True, slots=True)
class FeistelOrder:
    """A pseudo-random permutation that depends on ``size``, ``seed`` and ``epoch`` only.

    Parameters
    ----------
    size : int
        Number of samples, in ``[0, 2**62]``.
    seed : int
        Any integer, of any length and sign.
    epoch : int
        At least 0, of any length.

    Raises
    ------
    ArgumentError
        An argument is no integer, or out of range.

    Notes
    -----
    Making one costs a hash, whatever the size. An element costs 1 to 2 passes through the network on average
    (``256 / size`` below 128 samples), and memory is O(1) beside the result. It is for shuffling, not for secrets.
    """

    size: int
    seed: int
    epoch: int
    _keys: U64 = field(init=False, repr=False, compare=False)
    _high_bits: int = field(init=False, repr=False, compare=False)
    _low_bits: int = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "feistel-1"

    def __post_init__(self) -> None:
        size, seed, epoch = _checked(self.size, self.seed, self.epoch)
        bits = max(_MIN_BITS, (size - 1).bit_length() if size else 0)
        for name, value in (
            ("size", size),
            ("seed", seed),
            ("epoch", epoch),
            ("_keys", derive_keys(seed, epoch)),
            ("_high_bits", bits // 2),
            ("_low_bits", bits - bits // 2),
        ):
            object.__setattr__(self, name, value)

    def positions_to_indexes(self, start: int, stride: int, count: int) -> I64:
        """See :meth:`Order.positions_to_indexes`. O(count)."""
        return self._permute(positions_between(start, stride, count, self.size), 0, "position")

    def at(self, positions: npt.ArrayLike) -> I64:
        """See :meth:`Order.at`. O(n)."""
        return self._permute(_as_int64(positions, self.size, "position"), 0, "position")

    def inverse(self, indexes: npt.ArrayLike) -> I64:
        """See :meth:`Order.inverse`. O(n)."""
        return self._permute(_as_int64(indexes, self.size, "index"), 1, "index")

    def _permute(self, values: I64, inverse: int, what: str) -> I64:
        flat = values.reshape(-1)
        bad = permute(flat, self._keys, self.size, self._high_bits, self._low_bits, inverse)
        if bad != DONE:
            raise _outside(flat[bad], self.size, what)
        return values


def make_order(size: int, shuffle: bool, seed: int | None, epoch: int) -> Order:
    """Return the order of one epoch.

    Parameters
    ----------
    size : int
        Number of samples.
    shuffle : bool
        False: the order of the data set in every epoch; ``seed`` and ``epoch`` are for what is drawn for samples.
    seed : int or None
        None is for ``shuffle=False`` only, and 0 there.
    epoch : int
        At least 0.

    Raises
    ------
    ArgumentError
        An argument is no integer, or out of range; or there is no seed to shuffle with.
    """
    if not shuffle:
        return SequentialOrder(size, 0 if seed is None else seed, epoch)
    if seed is None:
        raise ArgumentError("shuffle=True needs a seed, got None: pass an integer")
    return FeistelOrder(size, seed, epoch)


def derive_keys(seed: int, epoch: int) -> U64:
    """Return the round keys, uint64[NUM_ROUNDS]: one BLAKE2b digest of version, seed and epoch."""
    # Hexadecimal, because Python refuses to print very long integers in decimal.
    text = f"{FeistelOrder.name}:{seed:x}:{epoch:x}"
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8 * NUM_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _checked(size: int, seed: int, epoch: int) -> tuple[int, int, int]:
    size, seed, epoch = as_int(size, "size"), as_int(seed, "seed"), as_int(epoch, "epoch")
    if not 0 <= size <= MAX_SIZE:
        raise ArgumentError(f"size must be in [0, 2**62], got {size}")
    if epoch < 0:
        raise ArgumentError(f"epoch must be at least 0, got {epoch}: count epochs from 0")
    return size, seed, epoch


def _outside(value: int, size: int, what: str) -> OutOfRangeError:
    return OutOfRangeError(f"{what} {int(value)} is outside [0, {size}), the samples of this order")


def positions_between(start: int, stride: int, count: int, size: int) -> I64:
    """Return ``start, start + stride, ...``, int64[count], all in ``[0, size)``; errors as of a range of an order."""
    start, stride, count = as_int(start, "start"), as_int(stride, "stride"), as_int(count, "count")
    if stride < 1:
        raise ArgumentError(f"stride must be at least 1, got {stride}")
    if count < 0:
        raise ArgumentError(f"count must be at least 0, got {count}")
    if count == 0:
        return np.empty(0, np.int64)
    last = start + (count - 1) * stride
    if start < 0 or last >= size:
        raise _outside(start if start < 0 else last, size, "position")
    if last < 2**53 and count > 1:
        return np.arange(start, last + 1, stride, dtype=np.int64)
    # np.arange finds its length in floating point, which may be one off beyond 2**53.
    return start + np.arange(count, dtype=np.int64) * min(stride, MAX_SIZE)


def _as_int64(values: npt.ArrayLike, size: int, what: str) -> I64:
    """Return a C-contiguous int64 copy."""
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind == "O" and all(isinstance(value, int) for value in array.flat):
        # Python integers that do not fit 64 bits.
        for value in array.flat:
            if not 0 <= value < size:
                raise _outside(value, size, what)
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"expected integers, got an array of {array.dtype}: convert it to int64")
    if array.dtype.kind == "u" and int(array.max()) >= size:
        raise _outside(int(array.max()), size, what)
    return np.array(array, np.int64, order="C")
