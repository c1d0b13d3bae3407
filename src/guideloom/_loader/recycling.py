"""Memory for batches out of the memory of batches that are gone.

Where large pieces come and go, the C library may give them back to the system, and take them again page by page for the
next batch: that can take longer than to read the batch. Whether it does depends on what else the process allocates.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 1 << 17
"""Less is left to the C library, which keeps small pieces."""

MAX_SIZES = 16
"""Of so many sizes memory is kept; more: it begins anew."""

MAX_KEPT, MAX_KEPT_BYTES = 8, 1 << 28
"""Pieces that are kept of one size, and their bytes; two in any case."""

_STEPS = 8


class Recycler:
    """Gives arrays whose memory comes back when nothing refers to it any more.

    That is: neither the array nor a view of it, of NumPy, of torch or of Python. ``empty`` may be called from any
    thread.
    """

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}
        # The last one, and what it was for: a batch is like the one before.
        self._last: tuple[tuple[int, ...], np.dtype[Any] | None, _Shelf] = ((), None, _Shelf(0))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised C-contiguous array, as ``np.empty``."""
        known, known_dtype, shelf = self._last
        if shape != known or dtype is not known_dtype:
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes < LEAST_BYTES or dtype.hasobject:
                return np.empty(shape, dtype)
            shelf = self._shelf(_rounded(nbytes))
            self._last = shape, dtype, shelf
        try:
            piece = shelf.free.pop()
        except IndexError:
            piece = bytearray(shelf.size)
        # A view refers to the array at its root. With something beneath it that is no array, that is this one, which so
        # lives as long as any view does.
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, piece)
        loan = _Loan(array, shelf.give_back)
        loan.piece = piece
        shelf.lent[id(loan)] = loan
        return array

    def _shelf(self, size: int) -> _Shelf:
        shelf = self._shelves.get(size)
        if shelf is None:
            if len(self._shelves) >= MAX_SIZES:
                self._shelves = {}
            shelf = self._shelves.setdefault(size, _Shelf(size))
        return shelf


class _Loan(weakref.ref[npt.NDArray[Any]]):
    """A piece that is in use, until the array on it is gone."""

    __slots__ = ("piece",)
    piece: bytearray


class _Shelf:
    """The pieces of one size: those that are free, and those in use.

    Lists and dicts grow and shrink atomically, so a piece is taken by one thread only.
    """

    __slots__ = ("free", "give_back", "lent", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: list[bytearray] = []
        self.lent: dict[int, _Loan] = {}
        self.give_back = _giver_back(self.lent, self.free, max(2, min(MAX_KEPT, MAX_KEPT_BYTES // max(1, size))))


def _giver_back(lent: dict[int, _Loan], free: list[bytearray], most: int) -> Callable[[Any], None]:
    def give_back(loan: _Loan) -> None:
        del lent[id(loan)]
        if len(free) < most:
            free.append(loan.piece)

    return give_back


def _rounded(nbytes: int) -> int:
    """Round up, by an eighth at most, so that batches of about the same size share their memory."""
    step = max(1, (1 << nbytes.bit_length() >> 1) // _STEPS)
    return -(-nbytes // step) * step
