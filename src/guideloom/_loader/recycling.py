"""Memory for batches out of the memory of batches that are gone.

Where large pieces come and go, the C library may give them back to the system, and take them again page by page for the
next batch: that can take longer than to read the batch. Whether it does depends on what else the process allocates.
"""

from __future__ import annotations

import ctypes
import math
import operator
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 1 << 17
"""Less is left to the C library, which keeps small pieces."""

MAX_SIZES = 16
"""Of so many sizes memory is kept; for one more, that of the size that was not asked for longest is given up."""

MAX_KEPT, MAX_KEPT_BYTES = 16, 1 << 28
"""Pieces of one size, and bytes of all, that are kept for use again, those in use among them; two of a size anyway."""

_STEPS = 8
_UINT8 = np.dtype(np.uint8)


class Recycler:
    """Gives arrays whose memory comes back when nothing refers to it any more.

    That is: neither the array nor a view of it, of NumPy, of torch or of Python, nor what ``base`` of these leads to.
    ``empty`` may be called from any thread. What is in use and what is kept is together never more than what was in use
    at once before.
    """

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}
        self._num_asked = 0
        # The last one, and what it was for: a batch is like the one before.
        self._last: tuple[tuple[int, ...], np.dtype[Any] | None, _Shelf] = ((), None, _Shelf(1))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised C-contiguous array, as ``np.empty``."""
        known, known_dtype, shelf = self._last
        if shape != known or dtype is not known_dtype:
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes < LEAST_BYTES or dtype.hasobject:
                return np.empty(shape, dtype)
            shelf = self._shelf(_rounded(nbytes))
            self._last = shape, dtype, shelf
        piece = shelf.take()
        if piece is None:
            self._give_up(shelf.size)
            num = len(shelf.loans)
            if num >= MAX_KEPT or (num > 1 and self._bytes + shelf.size > MAX_KEPT_BYTES):
                return np.empty(shape, dtype)
            piece = np.empty(shelf.size, np.uint8).data
        # Whoever keeps the memory alive, be it by way of ``base`` to its end, keeps the cover: it is made anew for each
        # array, and once it is gone the piece is free. It holds the piece, so that an array may outlive all of this.
        # What is watched is a mark that only the cover holds: to weak references a cover in a cycle is gone before the
        # finalisers of that cycle run, which may still use it; not so an array, which the collector does not know.
        mark: Any = np.ndarray(shelf.size, _UINT8, piece)
        cover: Any = shelf.cover.from_buffer(mark)
        loan = _Loan(mark)
        loan.piece = piece
        shelf.loans.append(loan)
        return np.ndarray(shape, dtype, cover)

    @property
    def _bytes(self) -> int:
        return sum(shelf.size * len(shelf.loans) for shelf in list(self._shelves.values()))

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, and not in use."""
        return sum(shelf.size for shelf in list(self._shelves.values()) for loan in shelf.loans[:] if loan() is None)

    def _shelf(self, size: int) -> _Shelf:
        shelf = self._shelves.get(size)
        if shelf is None:
            while len(self._shelves) >= MAX_SIZES:
                old = min(list(self._shelves.values()), key=_last_asked)
                self._shelves.pop(old.size, None)
            shelf = self._shelves.setdefault(size, _Shelf(size))
        self._num_asked = shelf.asked = self._num_asked + 1
        return shelf

    def _give_up(self, nbytes: int) -> None:
        """Let go of as much as is about to be allocated, where so much is kept of other sizes, and free.

        So what is kept adapts to sizes that change, and is never added to what is in use.
        """
        for shelf in sorted(self._shelves.values(), key=_last_asked):
            while nbytes > 0 and shelf.take() is not None:
                nbytes -= shelf.size


class _Loan(weakref.ref[Any]):
    """A piece, in use as long as the mark is there that its cover holds.

    No callback says when it is gone: what a signal's handler raises would be lost in one.
    """

    __slots__ = ("piece",)
    piece: memoryview


class _Shelf:
    """The pieces of one size that are kept, free or in use.

    Lists grow and shrink atomically, so a piece is taken by one thread only.
    """

    __slots__ = ("asked", "cover", "loans", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.cover = ctypes.c_uint8 * size
        self.loans: list[_Loan] = []
        self.asked = 0

    def take(self) -> memoryview | None:
        """Return the free piece that was lent last, which may still be in the processor's cache."""
        for loan in self.loans[::-1]:
            if loan() is None:
                try:
                    self.loans.remove(loan)
                except ValueError:
                    # Another thread was faster.
                    continue
                return loan.piece
        return None


_last_asked = operator.attrgetter("asked")


def _rounded(nbytes: int) -> int:
    """Round up, by an eighth at most, so that batches of about the same size share their memory."""
    step = max(1, (1 << nbytes.bit_length() >> 1) // _STEPS)
    return -(-nbytes // step) * step
