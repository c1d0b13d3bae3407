"""Gathers that waiting threads help with: the same bytes, the same errors, and nobody works on one that is over."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from guideloom._kernels.desk import gather_helped, new_desk
from guideloom._kernels.gather import gather_mapped, gather_pread
from guideloom._kernels.spin import hand_over
from guideloom._kernels.status import ACTIVE, BUSY, OPEN, REST, STATUS_SIZE, WATCHERS

FILE_SIZES = [400_000, 70_000, 250_001]
MOST_TURNS = 1 << 60
ONE_MS = 1_000_000
# Where other work has the processors, few helpers come in time: then it takes more plans until some were helped with.
ENOUGH_HELP, MOST_PLANS = 3, 20_000


class Helpers:
    """Threads that wait at a desk until told to end."""

    def __init__(self, desk: np.ndarray, number: int) -> None:
        self.helped = 0
        self._ended = False
        self._desk = desk
        self._mutex = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(number)]

    def _run(self) -> None:
        nobody, mine = np.zeros(1, np.int64), np.zeros(1, np.int64)
        while not self._ended:
            helped = hand_over(nobody, mine, MOST_TURNS, ONE_MS, self._desk, words())
            with self._mutex:
                self.helped += helped

    def __enter__(self) -> Helpers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for number, size in enumerate(FILE_SIZES):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(rng.bytes(size))
    return paths


@contextmanager
def descriptors(paths: list[Path]) -> Iterator[np.ndarray]:
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    try:
        yield np.array(fds, np.int64)
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def addresses(paths: list[Path]) -> Iterator[np.ndarray]:
    views = []
    for path in paths:
        with path.open("rb") as file:
            views.append(np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8))
    yield np.array([view.__array_interface__["data"][0] for view in views], np.int64)


def plan(rng: np.random.Generator, wild: bool) -> tuple[np.ndarray, ...]:
    """Runs laid out one behind the other; some of a ``wild`` plan are not in their file, or in none."""
    num = int(rng.integers(0, 60))
    file = rng.integers(0, len(FILE_SIZES), num)
    size = np.array(FILE_SIZES)[file]
    nbytes = rng.integers(0, np.minimum(size, 12_000) + 1)
    src = rng.integers(0, size - nbytes + 1)
    dst = np.cumsum(nbytes) - nbytes
    if wild and num and rng.random() < 0.5:
        bad = int(rng.integers(num))
        which = int(rng.integers(3))
        if which == 0:
            file[bad] = rng.choice([-1, len(FILE_SIZES)])
        elif which == 1:
            src[bad] = size[bad] - nbytes[bad] + 1
        else:
            dst[bad] += 1 << 40
        nbytes[bad] = max(nbytes[bad], 1)
    return tuple(np.ascontiguousarray(column, np.int64) for column in (file, src, dst, nbytes))


def words() -> np.ndarray:
    return np.zeros(STATUS_SIZE, np.int64)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_the_same_bytes_and_the_same_errors_as_alone(files: list[Path], is_mapped: bool) -> None:
    desk, rng = new_desk(), np.random.default_rng(1)
    sizes = np.array(FILE_SIZES, np.int64)
    opened = addresses if is_mapped else descriptors
    failures = 0
    with opened(files) as handles, Helpers(desk, 2) as helpers:
        for number in range(MOST_PLANS):
            if number >= 400 and helpers.helped >= ENOUGH_HELP:
                break
            file, src, dst, nbytes = plan(rng, wild=True)
            room = int(nbytes.sum())
            lo = int(rng.integers(0, file.size + 1)) if rng.random() < 0.2 else 0
            shift = int(dst[lo]) if lo < file.size and dst[lo] < room else 0
            wanted, found = np.full(room, 7, np.uint8), np.full(room, 7, np.uint8)
            alone, together = words(), words()
            runs = (file, src, dst, nbytes, lo, file.size)
            if is_mapped:
                stopped = gather_mapped(handles, sizes, *runs, wanted, shift, alone)
            else:
                stopped = gather_pread(handles, *runs, wanted, shift, alone)
            found_stopped = gather_helped(desk, is_mapped, handles, sizes, *runs, found, shift, together)
            assert max(found_stopped, -1) == max(stopped, -1)
            assert together[:3].tolist() == alone[:3].tolist()
            if stopped < 0:
                assert np.array_equal(found, wanted)
            failures += stopped >= 0
    assert failures > 20
    assert helpers.helped >= ENOUGH_HELP
    assert desk[[OPEN, ACTIVE, WATCHERS, BUSY]].tolist() == [0, 0, 0, 0]


def test_two_threads_gather_at_one_desk(files: list[Path]) -> None:
    """One of them finds the desk taken, and goes on alone."""
    desk, sizes = new_desk(), np.array(FILE_SIZES, np.int64)
    wrong: list[int] = []

    def work(handles: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for number in range(300):
            file, src, dst, nbytes = plan(rng, wild=False)
            wanted, found = np.zeros((2, int(nbytes.sum())), np.uint8)
            runs = (file, src, dst, nbytes, 0, file.size)
            gather_mapped(handles, sizes, *runs, wanted, 0, words())
            if gather_helped(desk, True, handles, sizes, *runs, found, 0, words()) >= 0 or (found != wanted).any():
                wrong.append(number)

    with addresses(files) as handles, Helpers(desk, 1):
        threads = [threading.Thread(target=work, args=(handles, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def gather_all(desk: np.ndarray, handles: np.ndarray) -> None:
    """Gather 256 KiB in 32 runs, by descriptors."""
    src = np.arange(32, dtype=np.int64) * 8192
    out = np.zeros(1 << 18, np.uint8)
    same = np.full(32, 8192, np.int64)
    stopped = gather_helped(
        desk, False, handles, handles, np.zeros(32, np.int64), src, src, same, 0, 32, out, 0, words()
    )
    assert stopped < 0
    assert out[:: 1 << 14].any()


def test_a_taken_desk_stays_taken(files: list[Path]) -> None:
    desk = new_desk()
    desk[BUSY] = 1
    with descriptors(files) as handles:
        gather_all(desk, handles)
    assert desk[BUSY] == 1
    assert not desk[OPEN]


def test_a_desk_whose_helpers_were_slow_rests(files: list[Path]) -> None:
    desk = new_desk()
    desk[REST] = 2
    with descriptors(files) as handles:
        gather_all(desk, handles)
        assert desk[[REST, BUSY]].tolist() == [1, 0]
        gather_all(desk, handles)
        # The second is done alone, too; from then on all are laid out, which is seen by what stays written there.
        assert desk[REST] == 0
        before = desk.copy()
        gather_all(desk, handles)
    assert (desk != before).any()
    assert not before[OPEN]


def test_what_is_read_with_help_counts_as_read(files: list[Path]) -> None:
    """No helper: the thread itself does every run, and gives the desk back."""
    desk = new_desk()
    with descriptors(files) as handles:
        gather_all(desk, handles)
    assert desk[[OPEN, ACTIVE, WATCHERS, BUSY]].tolist() == [0, 0, 0, 0]
