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

MAX_KEPT, MAX_KEPT_BYTES = 8, 1 << 28
"""Pieces that are kept of one size, and bytes of all sizes; two pieces of a size in any case."""

_STEPS = 8


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
        self._last: tuple[tuple[int, ...], np.dtype[Any] | None, _Shelf] = ((), None, _Shelf(1, self))

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
            piece = self._new(shelf)
        # Whoever keeps the memory alive, be it by way of ``base`` to its end, keeps the cover: it is made anew for each
        # array, and its end alone brings the piece back. It holds the piece, so that an array may outlive all of this.
        cover: Any = shelf.cover.from_buffer(piece)
        loan = _Loan(cover, shelf.give_back)
        loan.piece = piece
        shelf.lent[id(loan)] = loan
        return np.ndarray(shape, dtype, cover)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, and not in use."""
        return sum(shelf.size * len(shelf.free) for shelf in list(self._shelves.values()))

    def _shelf(self, size: int) -> _Shelf:
        shelf = self._shelves.get(size)
        if shelf is None:
            while len(self._shelves) >= MAX_SIZES:
                old = min(list(self._shelves.values()), key=_last_asked)
                self._shelves.pop(old.size, None)
                old.retire()
            shelf = self._shelves.setdefault(size, _Shelf(size, self))
        self._num_asked = shelf.asked = self._num_asked + 1
        return shelf

    def _new(self, wanted: _Shelf) -> memoryview:
        """Allocate a piece; as much as that of what is kept of other sizes goes.

        So the memory that is kept adapts to sizes that change, and is never added to what is in use.
        """
        missing = wanted.size
        for shelf in sorted(self._shelves.values(), key=_last_asked):
            while missing > 0 and shelf.give_up():
                missing -= shelf.size
        return np.empty(wanted.size, np.uint8).data


class _Loan(weakref.ref[Any]):
    """A piece that is in use, until the cover of it is gone."""

    __slots__ = ("piece",)
    piece: memoryview


class _Shelf:
    """The pieces of one size: those that are free, and those in use.

    Lists and dicts grow and shrink atomically, so a piece is taken by one thread only. No lock: a piece may come back
    at any point, even in the middle of another's return.
    """

    __slots__ = ("_most", "_recycler", "asked", "cover", "free", "lent", "size")

    def __init__(self, size: int, recycler: Recycler) -> None:
        self.size = size
        self.cover = ctypes.c_uint8 * size
        self.free: list[memoryview] = []
        self.lent: dict[int, _Loan] = {}
        self.asked = 0
        self._recycler = weakref.ref(recycler)
        self._most = MAX_KEPT

    def give_back(self, loan: _Loan) -> None:
        # Not there: an interrupt came before it was lent.
        if self.lent.pop(id(loan), None) is None or len(self.free) >= self._most:
            return
        recycler = self._recycler()
        if recycler is not None and (len(self.free) < 2 or recycler.kept_bytes + self.size <= MAX_KEPT_BYTES):
            self.free.append(loan.piece)

    def give_up(self) -> bool:
        """Let go of the piece that was free longest; whether there was one."""
        try:
            self.free.pop(0)
        except IndexError:
            return False
        return True

    def retire(self) -> None:
        """Keep nothing from now on."""
        self._most = 0
        self.free.clear()


_last_asked = operator.attrgetter("asked")


def _rounded(nbytes: int) -> int:
    """Round up, by an eighth at most, so that batches of about the same size share their memory."""
    step = max(1, (1 << nbytes.bit_length() >> 1) // _STEPS)
    return -(-nbytes // step) * step
