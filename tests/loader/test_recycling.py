"""Memory of batches that are gone: used again, but never while anything refers to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guideloom._loader.recycling import LEAST_BYTES, MAX_KEPT, MAX_SIZES, Recycler

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
]


@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_memory_stays_while_a_view_of_it_is_left(view: int) -> None:
    recycler = Recycler()
    array = recycler.empty(SHAPE, I4)
    array[...] = 1
    at = address(array)
    kept = VIEWS[view](array)
    del array
    later = [recycler.empty(SHAPE, I4) for _ in range(4)]
    assert at not in [address(other) for other in later]
    for other in later:
        other[...] = 2
    first = kept[0] if isinstance(kept, list) else kept
    values = np.asarray(first if not isinstance(first, np.flatiter) else first[:8])
    assert set(np.frombuffer(values.tobytes(), np.uint8)[:64].tolist()) <= {0, 1}
    del kept, first, values
    assert address(recycler.empty(SHAPE, I4)) == at


def test_small_arrays_and_objects_are_ordinary_ones() -> None:
    recycler = Recycler()
    assert recycler.empty((3,), I4).base is None
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
    shelf = recycler._shelf(4 * LEAST_BYTES)
    assert len(shelf.free) == MAX_KEPT
    assert not shelf.lent
    again = [recycler.empty(SHAPE, I4) for _ in range(MAX_KEPT)]
    assert {address(array) for array in again} <= old


def test_only_some_sizes_are_kept() -> None:
    recycler = Recycler()
    for power in range(3 * MAX_SIZES):
        recycler.empty((LEAST_BYTES + 40_000 * power,), np.dtype(np.uint8))
        assert len(recycler._shelves) <= MAX_SIZES


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
