"""Memory of batches that are gone: used again, but never while anything refers to it."""

from __future__ import annotations

import ctypes
import gc
import pickle
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guideloom._loader import recycling
from guideloom._loader.recycling import LEAST_BYTES, MAX_KEPT, MAX_SIZES, Recycler, _rounded

I4 = np.dtype("<i4")
SHAPE = (4, LEAST_BYTES // 4)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_comes_back_when_its_array_is_gone() -> None:
    recycler = Recycler()
    array = recycler.empty(SHAPE, I4)
    assert (array.shape, array.dtype) == (SHAPE, I4)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    first = address(array)
    other = recycler.empty(SHAPE, I4)
    assert address(other) != first
    del array
    assert address(recycler.empty(SHAPE, I4)) == first


VIEWS: list[Callable[[np.ndarray], Any]] = [
    lambda array: array[1:, ::2],
    lambda array: array.reshape(-1).view(np.uint8)[5:],
    lambda array: array.view(np.recarray),
    lambda array: np.lib.stride_tricks.as_strided(array, (3,), (4,)),
    lambda array: memoryview(array)[2:],
    lambda array: np.frombuffer(memoryview(array.reshape(-1).view(np.uint8))[8:], np.int32),
    lambda array: torch.from_numpy(array),
    lambda array: torch.from_numpy(array)[1],
    lambda array: torch.from_numpy(array).view(torch.uint8).numpy()[3:],
    lambda array: torch.from_dlpack(array),
    lambda array: list(array),
    lambda array: array.T.flat,
    lambda array: ends_of(array[1:])[-1],
    lambda array: memoryview(ends_of(array)[-1]),
    lambda array: ctypes.c_uint8.from_buffer(array, 8),
    lambda array: np.ndarray((3,), I4, array.data),
    lambda array: pickle.PickleBuffer(array),
    lambda array: pickled_apart(array),
    lambda array: torch.from_numpy(array).untyped_storage(),
    lambda array: torch.empty(0, dtype=torch.int32).set_(torch.from_numpy(array).untyped_storage(), 8, (3,), (1,)),
    lambda array: torch.frombuffer(memoryview(array)[1:], dtype=torch.int32),
    lambda array: torch.as_strided(torch.from_numpy(array).detach()[1:], (3,), (2,)),
    lambda array: (torch.from_numpy(array).float().requires_grad_() * torch.from_numpy(array)).sum().grad_fn,
    lambda array: np.from_dlpack(torch.from_numpy(array)[2:]),
    lambda array: Interface(array[1:]),
    lambda array: in_a_cycle(array[1:]),
    lambda array: (row for row in array),
    lambda array: struct.iter_unpack("<i", array.data.cast("B")),
]


def ends_of(array: np.ndarray) -> list[Any]:
    """What ``base`` leads to, step by step."""
    ends: list[Any] = [array]
    while getattr(ends[-1], "base", None) is not None:
        ends.append(ends[-1].base)
    return ends


def pickled_apart(array: np.ndarray) -> np.ndarray:
    """A copy that is none: its bytes went out of band, and came back as they were."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    kept: np.ndarray = pickle.loads(data, buffers=buffers)
    assert np.shares_memory(kept, array)
    return kept


class Interface:
    """Says where the array is, and keeps it, as the protocol asks."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


def in_a_cycle(array: np.ndarray) -> list[Any]:
    cycle: list[Any] = [array]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_memory_stays_while_a_view_of_it_is_left(view: int) -> None:
    recycler = Recycler()
    array = recycler.empty(SHAPE, I4)
    array[...] = 1
    at = address(array)
    kept = VIEWS[view](array)
    if kept is array:
        pytest.fail("not a view")
    started = next(kept) if isinstance(kept, types.GeneratorType) else None
    del array
    later = [recycler.empty(SHAPE, I4) for _ in range(4)]
    assert at not in [address(other) for other in later]
    for other in later:
        other[...] = 2
    assert set((ctypes.c_int32 * (SHAPE[0] * SHAPE[1])).from_address(at)) == {1}
    del kept, started
    gc.collect()
    assert address(recycler.empty(SHAPE, I4)) == at


def test_memory_stays_while_finalisers_of_a_cycle_may_use_it() -> None:
    """Also its last owner itself, which the collector knows, and takes for gone before the finalisers run."""
    recycler = Recycler()
    found: list[Any] = []

    class Late:
        def __init__(self, owner: Any) -> None:
            self.owner, self.myself = owner, self

        def __del__(self) -> None:
            array = recycler.empty(SHAPE, I4)
            array[...] = 2
            found.extend((self.owner, array))

    array = recycler.empty(SHAPE, I4)
    array[...] = 1
    at = address(array)
    late = Late(ends_of(array)[-1])
    assert gc.is_tracked(late.owner)
    del array, late
    gc.collect()
    assert set((ctypes.c_int32 * (SHAPE[0] * SHAPE[1])).from_buffer(found[0])) == {1}
    assert address(found[1]) != at
    found.clear()
    gc.collect()
    assert at in [address(kept) for kept in [recycler.empty(SHAPE, I4) for _ in range(2)]]


def test_small_arrays_and_objects_are_ordinary_ones() -> None:
    recycler = Recycler()
    assert recycler.empty((3,), I4).flags.owndata
    assert recycler.empty((LEAST_BYTES // 4,), I4).flags.owndata is False
    assert recycler.empty((LEAST_BYTES,), np.dtype(object)).base is None


def test_about_the_same_size_is_the_same_memory() -> None:
    recycler = Recycler()
    size = 4 * LEAST_BYTES
    at = address(recycler.empty((size - 1000,), np.dtype(np.uint8)))
    array = recycler.empty((size - 3, 1), np.dtype(np.int8))
    assert (address(array), array.shape) == (at, (size - 3, 1))


def test_only_some_memory_is_kept() -> None:
    recycler = Recycler()
    arrays = [recycler.empty(SHAPE, I4) for _ in range(3 * MAX_KEPT)]
    old = {address(array) for array in arrays}
    del arrays
    assert recycler.kept_bytes == MAX_KEPT * 4 * LEAST_BYTES
    again = [recycler.empty(SHAPE, I4) for _ in range(MAX_KEPT)]
    assert {address(array) for array in again} <= old


def test_only_some_sizes_are_kept() -> None:
    recycler = Recycler()
    held = recycler.empty((LEAST_BYTES,), np.dtype(np.uint8))
    shelf = recycler._shelf(LEAST_BYTES)
    for power in range(3 * MAX_SIZES):
        recycler.empty((LEAST_BYTES + 40_000 * power,), np.dtype(np.uint8))
        assert len(recycler._shelves) <= MAX_SIZES
    assert shelf is not recycler._shelf(LEAST_BYTES)
    assert held.size == LEAST_BYTES


def test_the_size_that_is_asked_for_stays() -> None:
    recycler = Recycler()
    at = address(recycler.empty(SHAPE, I4))
    for power in range(3 * MAX_SIZES):
        recycler._shelf(10 * LEAST_BYTES * (power + 1))
        assert address(recycler.empty(SHAPE, I4)) == at


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=80))
def test_no_more_memory_than_was_in_use_at_once(steps: list[tuple[int, int]]) -> None:
    """Sizes that change from batch to batch must not each keep memory of their own."""
    recycler = Recycler()
    held: list[np.ndarray] = []
    most = 0
    for number, keeps in steps:
        del held[keeps:]
        held.insert(0, recycler.empty((LEAST_BYTES + 20_000 * number,), np.dtype(np.uint8)))
        lent = sum(_rounded(array.nbytes) for array in held)
        assert lent <= sum(array.nbytes for array in held) * 1.125
        most = max(most, lent)
        assert lent + recycler.kept_bytes <= most


def test_what_is_kept_is_bounded_over_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "MAX_KEPT_BYTES", 20 * LEAST_BYTES)
    recycler = Recycler()
    arrays = [recycler.empty((LEAST_BYTES * (1 + number % 3),), np.dtype(np.uint8)) for number in range(24)]
    assert recycler.kept_bytes == 0
    del arrays
    # Two of each size in any case, and no third one beyond the bound.
    assert 12 * LEAST_BYTES <= recycler.kept_bytes <= 20 * LEAST_BYTES


def test_a_recycler_that_is_gone_keeps_nothing() -> None:
    recycler = Recycler()
    array, other = recycler.empty(SHAPE, I4), recycler.empty(SHAPE, I4)
    owners = [weakref.ref(loan.piece.obj) for loan in recycler._shelf(4 * LEAST_BYTES).loans]
    del array
    gc.disable()
    try:
        del recycler
        assert sorted(owner() is None for owner in owners) == [False, True]
        del other
        assert [owner() for owner in owners] == [None, None]
    finally:
        gc.enable()


def test_what_a_signal_raises_while_batches_end_is_not_lost() -> None:
    """Python loses what is raised in a callback: nothing of ours may run when an array is gone."""
    recycler = Recycler()
    array = recycler.empty(SHAPE, I4)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del array
    finally:
        sys.setprofile(None)
    assert called == []


def test_what_is_lent_outlives_the_recycler() -> None:
    recycler = Recycler()
    array = recycler.empty(SHAPE, I4)
    array[...] = 5
    del recycler
    view = array[1]
    del array
    assert (view == 5).all()


def test_threads_never_get_the_same_memory() -> None:
    recycler = Recycler()
    wrong: list[int] = []

    def work(mark: int) -> None:
        rng = np.random.default_rng(mark)
        held: list[np.ndarray] = []
        for _ in range(400):
            array = recycler.empty((LEAST_BYTES // 4 + int(rng.integers(2)) * LEAST_BYTES, 4), np.dtype(np.uint8))
            array[...] = mark
            held.append(array[1:])
            del array
            if len(held) > int(rng.integers(1, 4)):
                old = held.pop(int(rng.integers(len(held))))
                if old.min() != mark or old.max() != mark:
                    wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_who_is_beaten_to_a_piece_by_another_thread_takes_the_next() -> None:
    class Contested(list[Any]):
        """Of two threads that saw the same free piece, the other one is always the faster the first time."""

        beaten = 0

        def remove(self, loan: Any) -> None:
            super().remove(loan)
            if not self.beaten:
                self.beaten = 1
                raise ValueError("not in the list")

    recycler = Recycler()
    held = [recycler.empty(SHAPE, I4), recycler.empty(SHAPE, I4)]
    held.clear()
    shelf = recycler._last[2]
    first, second = (loan.piece for loan in shelf.loans)
    shelf.loans = contested = Contested(shelf.loans)
    assert shelf.take() is first
    assert contested.beaten and not contested and second is not first
