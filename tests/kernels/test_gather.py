"""Gathers by every file set give the bytes that slicing gives, and refuse what lies outside."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guideloom._base.errors import CorruptDataError, MissingShardError, NotOpenError
from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract
from guideloom._kernels import gather as gather_module
from guideloom._kernels.gather import gather_mapped, populate_cached
from guideloom._kernels.jit import jit_disabled
from guideloom._kernels.status import STATUS_SIZE
from guideloom._read.files import open_file_set
from guideloom._read.fileset import FileSet, FileTable, PooledFileSet
from guideloom.io import MmapIO, PosixPreadIO, SeekIO


class PlainReader(IOSyncReaderAbstract):
    """A user's reader: the documented methods and no more; it would break under two threads at once."""

    def __init__(self, path: PurePath) -> None:
        self.path = path

    def open(self) -> None:
        self.file = open(self.path, "rb")  # noqa: SIM115
        self.busy = False

    def close(self) -> None:
        self.file.close()

    def filesize(self) -> int:
        return os.stat(self.path).st_size

    def read(self, offset: int, size: int) -> bytearray:
        assert not self.busy, "two threads in one reader"
        self.busy = True
        try:
            self.file.seek(offset)
            data = bytearray(self.file.read(size))
        finally:
            self.busy = False
        if offset < 0 or len(data) != size:
            raise IndexError(f"short read: {len(data)} of {size}")
        return data


class PlainIO(IOReaderAbstract):
    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return PlainReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        raise OSError("no asyncio here")

    def __repr__(self) -> str:
        return "PlainIO()"  # names tests, which are to have the same names in each process


BACKENDS = [SeekIO(), PosixPreadIO(), PosixPreadIO(advice=True), MmapIO(), PlainIO()]


def make(directory: Path, contents: list[bytes], backend: IOReaderAbstract, capacity: int | None = None) -> FileSet:
    paths: list[PurePath] = []
    for number, content in enumerate(contents):
        path = directory / f"{number}.bin"
        path.write_bytes(content)
        paths.append(path)
    sizes = np.array([len(content) for content in contents], np.int64)
    return open_file_set(backend, FileTable(paths, sizes, np.arange(len(contents)) + 40), capacity)


def columns(runs: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    file, src, nbytes = np.array(runs, np.int64).reshape(-1, 3).T.copy()
    dst = np.concatenate([[0], np.cumsum(nbytes)])[:-1].astype(np.int64)
    return file, src, dst, nbytes


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("capacity", [1, 3, None])
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_gather_equals_slicing(
    tmp_path: Path, backend: IOReaderAbstract, capacity: int | None, data: st.DataObject
) -> None:
    contents = [bytes(np.random.default_rng(n).integers(0, 256, n * 37, dtype=np.uint8)) for n in range(6)]
    runs = []
    for _ in range(data.draw(st.integers(0, 12))):
        file = data.draw(st.integers(0, 5))
        src = data.draw(st.integers(0, len(contents[file])))
        runs.append((file, src, data.draw(st.integers(0, len(contents[file]) - src))))
    file, src, dst, nbytes = columns(runs)
    files = make(tmp_path, contents, backend, capacity)
    lo = data.draw(st.integers(0, len(runs)))
    hi = data.draw(st.integers(lo, len(runs)))
    expected = b"".join(contents[f][s : s + n] for f, s, n in runs[lo:hi])
    out = np.full(len(expected), 0xEE, np.uint8)
    shift = int(dst[lo]) if lo < len(runs) else 0
    files.gather(file, src, dst, nbytes, lo, hi, out, shift)
    assert out.tobytes() == expected
    if isinstance(files, PooledFileSet):
        assert files.num_open <= (capacity or 99)
    files.close()
    files.close()
    with pytest.raises(NotOpenError):
        files.gather(file, src, dst, nbytes, lo, hi, out, shift)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_shortened_file_is_an_error_with_its_place(tmp_path: Path, backend: IOReaderAbstract) -> None:
    files = make(tmp_path, [b"x" * 100], backend)
    os.truncate(tmp_path / "0.bin", 50)
    out = np.zeros(20, np.uint8)
    with pytest.raises(CorruptDataError, match=r"0\.bin.*shard 40") as caught:
        files.gather(*columns([(0, 40, 20)]), 0, 1, out)
    assert caught.value.shard == 40
    files.close()


@pytest.mark.parametrize("backend", [PosixPreadIO(), SeekIO()], ids=repr)
def test_file_shortened_while_open_is_an_error_where_bytes_are_read(tmp_path: Path, backend: IOReaderAbstract) -> None:
    files = make(tmp_path, [b"x" * 100], backend)
    out = np.zeros(20, np.uint8)
    files.gather(*columns([(0, 40, 20)]), 0, 1, out)
    os.truncate(tmp_path / "0.bin", 50)
    with pytest.raises(CorruptDataError, match="expected 20 bytes, found 10") as caught:
        files.gather(*columns([(0, 40, 20)]), 0, 1, out)
    assert (caught.value.path, caught.value.shard, caught.value.offset) == (str(tmp_path / "0.bin"), 40, 40)
    files.close()


def test_a_backend_that_fills_less_than_it_was_asked_for_is_not_believed(tmp_path: Path) -> None:
    class Into(PlainReader):
        def read_into(self, offset: int, out: memoryview) -> int:  # type: ignore[override]
            self.file.seek(offset)
            return self.file.readinto(out)

    class IntoIO(PlainIO):
        def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
            return Into

    files = make(tmp_path, [b"x" * 100], IntoIO())
    out = np.zeros(20, np.uint8)
    files.gather(*columns([(0, 80, 20)]), 0, 1, out)
    assert out.tobytes() == b"x" * 20
    os.truncate(tmp_path / "0.bin", 90)
    with pytest.raises(CorruptDataError, match=r"could not give 20 bytes: read_into\(\) filled 10"):
        files.gather(*columns([(0, 80, 20)]), 0, 1, out)
    files.close()


def test_a_reader_around_another_gives_its_own_bytes(tmp_path: Path) -> None:
    class Upper:
        def __init__(self, path: PurePath) -> None:
            self.inner = SeekIO().sync_reader()(path)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def read(self, offset: int, size: int) -> bytes:
            return bytes(self.inner.read(offset, size)).upper()

    class UpperIO(PlainIO):
        def sync_reader(self) -> Any:
            return Upper

    files: Any = make(tmp_path, [b"abcdefgh"], UpperIO())
    out = np.zeros(5, np.uint8)
    files.gather(*columns([(0, 2, 5)]), 0, 1, out)
    assert out.tobytes() == b"CDEFG"
    # The other may be read by several threads at once; that this one may, nobody said.
    assert SeekIO().sync_reader()(tmp_path).concurrent_reads and files._handles[0].lock is not None
    files.close()


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_missing_file_is_an_error_with_its_place(tmp_path: Path, backend: IOReaderAbstract) -> None:
    files = make(tmp_path, [b"x" * 100], backend)
    (tmp_path / "0.bin").unlink()
    with pytest.raises(MissingShardError, match=r"0\.bin"):
        files.gather(*columns([(0, 40, 20)]), 0, 1, np.zeros(20, np.uint8))
    files.close()


@pytest.mark.parametrize("backend", [PosixPreadIO(), MmapIO()], ids=repr)
def test_ranges_outside_file_or_buffer_are_refused(tmp_path: Path, backend: IOReaderAbstract) -> None:
    files = make(tmp_path, [b"x" * 100], backend)
    one = np.ones(1, np.int64)
    zero = one * 0
    for src, dst, n in [(-1, 0, 5), (96, 0, 5), (2**62, 0, 5), (0, -1, 5), (0, 16, 5), (0, 0, 21), (0, 0, -3)]:
        guarded = np.full(60, 7, np.uint8)
        with pytest.raises((CorruptDataError, OSError)):
            files.gather(zero, one * src, one * dst, one * n, 0, 1, guarded[20:40])
        assert (guarded[:20] == 7).all()
        assert (guarded[40:] == 7).all()
    files.close()


def test_errno_reaches_the_caller(tmp_path: Path) -> None:
    files = make(tmp_path, [b"x" * 100], PosixPreadIO())
    assert isinstance(files, PooledFileSet)
    out = np.zeros(20, np.uint8)
    files.gather(*columns([(0, 40, 20)]), 0, 1, out)
    directory = os.open(tmp_path, os.O_RDONLY)
    kept = int(files.values[0])
    files.values[0] = directory
    with pytest.raises(IsADirectoryError, match="20 bytes at byte offset 40"):
        files.gather(*columns([(0, 40, 20)]), 0, 1, out)
    files.values[0] = kept
    os.close(directory)
    files.close()


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_threads_share_few_descriptors(tmp_path: Path, backend: IOReaderAbstract) -> None:
    contents = [bytes([n]) * 50 for n in range(24)]
    files = make(tmp_path, contents, backend, capacity=4)
    rng = np.random.default_rng(0)
    failures: list[str] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, 24, 400)
        runs = [(int(f), int(f) % 7, 20) for f in order]
        out = np.zeros(20 * len(runs), np.uint8)
        files.gather(*columns(runs), 0, len(runs), out)
        if not (out.reshape(-1, 20) == order[:, None]).all():
            failures.append("wrong bytes")

    threads = [threading.Thread(target=work, args=(int(rng.integers(1 << 30)),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    files.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_files_work_on_both_sides_of_a_fork(tmp_path: Path, backend: IOReaderAbstract) -> None:
    files = make(tmp_path, [b"abc" * 30], backend)
    out = np.zeros(3, np.uint8)
    files.gather(*columns([(0, 3, 3)]), 0, 1, out)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = np.zeros(3, np.uint8)
            files.gather(*columns([(0, 6, 3)]), 0, 1, mine)
            files.close()
            code = 0 if mine.tobytes() == b"abc" else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    files.gather(*columns([(0, 6, 3)]), 0, 1, out)
    assert out.tobytes() == b"abc"
    files.close()


@pytest.mark.parametrize("name", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_kernels_run_other_ways(name: str) -> None:
    """The gather, window and span tests pass as plain Python and with bounds checked."""
    here = Path(__file__).parent
    tests = [
        f"{here / 'test_gather.py'}::test_gather_equals_slicing",
        str(here / "test_spans.py"),
        str(here.parent / "plan" / "test_windows.py"),
    ]
    environment = {**os.environ, name: "1", "GUIDELOOM_KERNEL_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *tests],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.skipif(jit_disabled(), reason="plain Python does not write behind an array")
def test_a_status_too_short_for_what_the_system_writes_is_refused() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="too short"):
        gather_mapped(
            none, none, none, none, none, none, 0, 0, np.zeros(0, np.uint8), 0, np.zeros(STATUS_SIZE - 1, np.int64)
        )


@pytest.mark.parametrize("at_once", [1 << 16, 300, 299, 7, 1])
@pytest.mark.parametrize("cached", [range(300), [0, *range(101, 148), 150, 299], []], ids=["all", "some", "none"])
def test_the_pages_of_a_map_that_are_in_the_page_cache_are_made_at_once(
    tmp_path: Path, cached: Sequence[int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those and no others: what it says that it made is in the page table, and what is not cached was not read."""
    monkeypatch.setattr(gather_module, "_PAGES_AT_ONCE", at_once)
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(300 * page)  # holes, which nobody read, are in no cache
        for number in cached:
            os.pwrite(file.fileno(), bytes(page), number * page)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area:
            view = np.frombuffer(area, np.uint8)
            address = view.ctypes.data
            resident = (ctypes.c_uint8 * 300)()
            assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(300 * page), resident) == 0
            assert [number for number in range(300) if resident[number] & 1] == list(cached)
            # MADV_POPULATE_READ, which older systems refuse; of no pages, so that it makes none.
            can = libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(0), 22) == 0
            assert pages_made(address, 300) == []
            assert populate_cached(address, 300 * page) == (len(cached) * page if can else 0)
            assert pages_made(address, 300) == (list(cached) if can else [])
            assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(300 * page), resident) == 0
            assert [number for number in range(300) if resident[number] & 1] == list(cached)
            del view


def pages_made(address: int, number: int) -> list[int]:
    """Which of so many pages from an address on are in this process's page table."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        entries = np.frombuffer(os.pread(file.fileno(), 8 * number, address // mmap.PAGESIZE * 8), np.uint64)
    return np.flatnonzero(entries >> np.uint64(63)).tolist()
