"""What every backend must do, as a class of tests to inherit from."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path, PurePath
from types import TracebackType

import numpy as np

from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract, StorageBufferTypes

SMALL = bytes(range(7, 7 + 19))

HANGS_AFTER_S = 60.0
"""What takes longer is taken to hang."""


def _large() -> bytes:
    # Not a multiple of a page or a block, and no two windows alike.
    return np.random.default_rng(20_000).integers(0, 256, 3 * 65_536 + 4_096 + 13, np.uint8).tobytes()


class _Raises(AbstractContextManager["_Raises"]):
    """Demands an exception of a class; in place of ``pytest.raises``, which this module must not need."""

    def __init__(self, expected: type[BaseException], what: str) -> None:
        self._expected = expected
        self._what = what

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exc_value is None:
            raise AssertionError(f"{self._what}: expected {self._expected.__name__}, nothing was raised")
        if not isinstance(exc_value, self._expected):
            raise AssertionError(
                f"{self._what}: expected {self._expected.__name__}, got {type(exc_value).__name__}: {exc_value}"
            ) from exc_value
        return True


class BackendConformance(ABC):
    """Inherit from this in a pytest module, say how to make the backend, and get its tests.

    A backend of another kind of store also overrides :meth:`place`. One that nobody will use with asyncio may have
    an ``async_reader`` that only raises: run its tests with ``-k "not async"`` then, and leave that word out of the
    names of your class and module, which would deselect all of them.

    Examples
    --------
    >>> from guideloom.io import SeekIO
    >>> class TestSeekIO(BackendConformance):
    ...     def make_backend(self):
    ...         return SeekIO()
    """

    @abstractmethod
    def make_backend(self) -> IOReaderAbstract:
        """Return the backend to test."""

    def place(self, folder: Path, name: str, content: bytes) -> PurePath:
        """Put a file where the backend can read it, and return the path that a reader takes.

        Parameters
        ----------
        folder : pathlib.Path
            A local folder of the test's own.
        name : str
        content : bytes
        """
        path = folder / name
        path.write_bytes(content)
        return path

    # --- the backend itself

    def test_is_supported_is_a_static_method(self) -> None:
        """``is_supported()`` can be asked before a backend is made."""
        cls = type(self.make_backend())
        assert isinstance(inspect.getattr_static(cls, "is_supported"), staticmethod), (
            f"{cls.__name__}.is_supported must be a staticmethod"
        )
        found = cls.is_supported()
        assert isinstance(found, bool), f"{cls.__name__}.is_supported() must give a bool, got {found!r}"
        assert found, f"{cls.__name__} says that it is not supported here, so nothing below was tested"

    def test_makes_readers_of_the_right_types(self, tmp_path: Path) -> None:
        """``sync_reader()`` gives a callable that takes a path."""
        reader = self.make_backend().sync_reader()(self.place(tmp_path, "a.bin", SMALL))
        assert isinstance(reader, IOSyncReaderAbstract), f"sync_reader() made a {type(reader).__name__}"

    def test_makes_async_readers_of_the_right_type(self, tmp_path: Path) -> None:
        """``async_reader()`` gives a callable that takes a path."""
        reader = self.make_backend().async_reader()(self.place(tmp_path, "a.bin", SMALL))
        assert isinstance(reader, IOAsyncReaderAbstract), f"async_reader() made a {type(reader).__name__}"

    def test_a_pickled_backend_reads_the_same(self, tmp_path: Path) -> None:
        """Process workers get a pickled backend."""
        path = self.place(tmp_path, "a.bin", SMALL)
        backend = pickle.loads(pickle.dumps(self.make_backend()))
        with backend.sync_reader()(path) as reader:
            assert bytes(reader.read(0, len(SMALL))) == SMALL

    # --- synchronous readers

    def test_filesize(self, tmp_path: Path) -> None:
        """Sizes are exact, the empty file included."""
        for size in (0, 1, 19, 4_095, 4_096, 4_097):
            path = self.place(tmp_path, f"{size}.bin", b"\x5a" * size)
            with self.make_backend().sync_reader()(path) as reader:
                assert reader.filesize() == size, f"filesize() of a file of {size} bytes gave {reader.filesize()}"

    def test_reads_every_range_of_a_small_file(self, tmp_path: Path) -> None:
        """Every offset and size, zero sizes and the end of the file included."""
        path = self.place(tmp_path, "a.bin", SMALL)
        with self.make_backend().sync_reader()(path) as reader:
            for offset in range(len(SMALL) + 1):
                for size in range(len(SMALL) + 1 - offset):
                    self._check(reader.read(offset, size), SMALL, offset, size)

    def test_reads_anywhere_in_a_larger_file(self, tmp_path: Path) -> None:
        """Ranges across pages, in no order."""
        content = _large()
        path = self.place(tmp_path, "a.bin", content)
        with self.make_backend().sync_reader()(path) as reader:
            for offset, size in _ranges(len(content)):
                self._check(reader.read(offset, size), content, offset, size)

    def test_reads_nothing_from_an_empty_file(self, tmp_path: Path) -> None:
        """An empty file opens, and has nothing to read."""
        path = self.place(tmp_path, "empty.bin", b"")
        with self.make_backend().sync_reader()(path) as reader:
            self._check(reader.read(0, 0), b"", 0, 0)
            with _Raises(IndexError, "read(0, 1) of an empty file"):
                reader.read(0, 1)

    def test_short_reads_and_negative_offsets_are_index_errors(self, tmp_path: Path) -> None:
        """A range outside the file is an ``IndexError``, never fewer bytes, and the reader goes on."""
        path = self.place(tmp_path, "a.bin", SMALL)
        n = len(SMALL)
        with self.make_backend().sync_reader()(path) as reader:
            for offset, size in (
                (0, n + 1),
                (n - 1, 2),
                (n, 1),
                (n + 5, 1),
                (2**40, 3),
                (-1, 1),
                (-n, n),
                (-(2**40), 1),
            ):
                with _Raises(IndexError, f"read({offset}, {size}) of {n} bytes"):
                    reader.read(offset, size)
            self._check(reader.read(3, 4), SMALL, 3, 4)

    def test_a_missing_file_is_file_not_found(self, tmp_path: Path) -> None:
        """``FileNotFoundError`` when the reader is made, opened, or asked for the first time."""
        path = self.place(tmp_path, "there.bin", SMALL).with_name("missing.bin")
        make = self.make_backend().sync_reader()
        with _Raises(FileNotFoundError, "filesize() of a missing file"), make(path) as reader:
            reader.filesize()
        with _Raises(FileNotFoundError, "read() of a missing file"), make(path) as reader:
            reader.read(0, 1)

    def test_a_result_is_the_caller_s(self, tmp_path: Path) -> None:
        """Later reads and ``close`` leave a result as it was: formats may hand out views of it."""
        path = self.place(tmp_path, "a.bin", SMALL)
        with closing(self.make_backend().sync_reader()(path)) as reader:
            reader.open()
            first = reader.read(0, 5)
            view = np.frombuffer(first, np.uint8)
            second = reader.read(5, 5)
            assert view.tobytes() == SMALL[:5], "a second read changed the result of the first"
        assert view.tobytes() + bytes(second) == SMALL[:10], "close() changed a result"

    def test_read_into_fills_exactly(self, tmp_path: Path) -> None:
        """``read_into`` writes all of ``out`` and nothing beside it."""
        content = _large()
        path = self.place(tmp_path, "a.bin", content)
        with self.make_backend().sync_reader()(path) as reader:
            for offset, size in _ranges(len(content)):
                buffer = bytearray(b"\xa5" * (size + 2))
                reader.read_into(offset, memoryview(buffer)[1 : size + 1])
                assert buffer[1:-1] == content[offset : offset + size], f"read_into({offset}) of {size} bytes is wrong"
                assert buffer[:1] + buffer[-1:] == b"\xa5\xa5", f"read_into({offset}) wrote beside its {size} bytes"
            with _Raises(IndexError, "read_into past the end"):
                reader.read_into(len(content) - 1, memoryview(bytearray(2)))
            with _Raises(IndexError, "read_into at a negative offset"):
                reader.read_into(-1, memoryview(bytearray(1)))

    def test_a_reader_can_be_opened_again(self, tmp_path: Path) -> None:
        """``close`` may be called twice and before ``open``; after it ``open`` works again and sees the file anew."""
        path = self.place(tmp_path, "a.bin", SMALL)
        with closing(self.make_backend().sync_reader()(path)) as reader:
            reader.close()
            for content in (SMALL, SMALL[::-1] + b"more"):
                self.place(tmp_path, "a.bin", content)
                reader.open()
                found = reader.filesize()
                assert found == len(content), f"opened again, filesize() gave {found} for {len(content)} bytes"
                self._check(reader.read(0, len(content)), content, 0, len(content))
                reader.close()
                reader.close()

    def test_readers_are_independent(self, tmp_path: Path) -> None:
        """Two readers of one backend, of one file or of two, do not disturb each other."""
        a, b = self.place(tmp_path, "a.bin", SMALL), self.place(tmp_path, "b.bin", SMALL[::-1])
        make = self.make_backend().sync_reader()
        with make(a) as first:
            with make(a) as again, make(b) as other:
                self._check(again.read(1, 3), SMALL, 1, 3)
                self._check(other.read(1, 3), SMALL[::-1], 1, 3)
            self._check(first.read(2, 9), SMALL, 2, 9)

    def test_names_with_odd_characters(self, tmp_path: Path) -> None:
        """Blanks, accents and percent signs in a path are part of the name."""
        path = self.place(tmp_path, "a b%20ü–漢 #1.bin", SMALL)
        with self.make_backend().sync_reader()(path) as reader:
            self._check(reader.read(0, len(SMALL)), SMALL, 0, len(SMALL))

    def test_many_threads(self, tmp_path: Path) -> None:
        """Threads with readers of their own; and with one between them, where it says ``concurrent_reads``."""
        content = _large()
        path = self.place(tmp_path, "a.bin", content)
        make = self.make_backend().sync_reader()

        def own() -> None:
            with make(path) as reader:
                for offset, size in _ranges(len(content)):
                    self._check(reader.read(offset, size), content, offset, size)

        _in_threads(own)
        with make(path) as shared:
            if shared.concurrent_reads:

                def together() -> None:
                    for offset, size in _ranges(len(content)):
                        self._check(shared.read(offset, size), content, offset, size)

                _in_threads(together)

    def test_one_thread_opens_others_read_another_closes(self, tmp_path: Path) -> None:
        """A reader is not bound to a thread: those of a loader take turns with it."""
        path = self.place(tmp_path, "a.bin", SMALL)
        reader = self.make_backend().sync_reader()(path)
        # All of them live to the end: the number of a thread that is gone may be given to the next.
        with ThreadPoolExecutor(1) as opens, ThreadPoolExecutor(1) as reads, ThreadPoolExecutor(1) as closes:
            opens.submit(reader.open).result()
            try:
                for offset in range(3):
                    self._check(reads.submit(reader.read, offset, 4).result(), SMALL, offset, 4)
            finally:
                closes.submit(reader.close).result()

    # --- asyncio readers

    def test_async_reads_the_same(self, tmp_path: Path) -> None:
        """Sizes and bytes are those of the synchronous reader, many reads in flight included."""
        content = _large()
        path = self.place(tmp_path, "a.bin", content)
        ranges = [*_ranges(len(content)), (0, 0), (len(content), 0)]

        async def main() -> None:
            async with self.make_backend().async_reader()(path) as reader:
                assert await reader.filesize() == len(content)
                for offset, size in ranges:
                    self._check(await reader.read(offset, size), content, offset, size)
                found = await asyncio.gather(*(reader.read(offset, size) for offset, size in ranges))
            for (offset, size), data in zip(ranges, found, strict=True):
                self._check(data, content, offset, size)

        asyncio.run(main())

    def test_async_reads_nothing_from_an_empty_file(self, tmp_path: Path) -> None:
        """An empty file opens, and has nothing to read."""
        path = self.place(tmp_path, "empty.bin", b"")

        async def main() -> None:
            async with self.make_backend().async_reader()(path) as reader:
                assert await reader.filesize() == 0
                self._check(await reader.read(0, 0), b"", 0, 0)
                with _Raises(IndexError, "await read(0, 1) of an empty file"):
                    await reader.read(0, 1)

        asyncio.run(main())

    def test_async_reads_that_are_cancelled_leave_the_reader_of_use(self, tmp_path: Path) -> None:
        """Wherever a read is cancelled, the next one gives its bytes, and ``close`` ends."""
        path = self.place(tmp_path, "a.bin", SMALL)

        async def main() -> None:
            async with self.make_backend().async_reader()(path) as reader:
                for steps in range(8):
                    reading = asyncio.ensure_future(reader.read(0, 7))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    self._check(await reader.read(3, 4), SMALL, 3, 4)

        try:
            asyncio.run(asyncio.wait_for(main(), HANGS_AFTER_S))
        except TimeoutError as error:
            raise AssertionError(f"after a cancelled read, read or close took {HANGS_AFTER_S} s") from error

    def test_async_errors_are_the_same(self, tmp_path: Path) -> None:
        """Ranges outside the file and missing files are the same errors."""
        path = self.place(tmp_path, "a.bin", SMALL)
        n = len(SMALL)

        async def main() -> None:
            make = self.make_backend().async_reader()
            async with make(path) as reader:
                for offset, size in ((0, n + 1), (n, 1), (2**40, 3), (-1, 1)):
                    with _Raises(IndexError, f"await read({offset}, {size}) of {n} bytes"):
                        await reader.read(offset, size)
                self._check(await reader.read(3, 4), SMALL, 3, 4)
            missing = path.with_name("missing.bin")
            with _Raises(FileNotFoundError, "await filesize() of a missing file"):
                async with make(missing) as reader:
                    await reader.filesize()
            with _Raises(FileNotFoundError, "await read() of a missing file"):
                async with make(missing) as reader:
                    await reader.read(0, 1)

        asyncio.run(main())

    def test_async_reader_can_be_opened_again(self, tmp_path: Path) -> None:
        """In the same loop and in another."""
        path = self.place(tmp_path, "a.bin", SMALL)
        reader = self.make_backend().async_reader()(path)

        async def once() -> None:
            await reader.open()
            self._check(await reader.read(0, len(SMALL)), SMALL, 0, len(SMALL))
            await reader.close()
            await reader.close()

        async def twice() -> None:
            await once()
            await once()

        asyncio.run(twice())
        asyncio.run(once())

    # --- helpers

    @staticmethod
    def _check(data: StorageBufferTypes, content: bytes, offset: int, size: int) -> None:
        what = f"read({offset}, {size})"
        assert isinstance(data, bytearray | memoryview), (
            f"{what} gave {type(data).__name__}, not bytearray or memoryview"
        )
        viewed = np.frombuffer(data, np.uint8)
        assert viewed.size == size == len(data), f"{what} gave {viewed.size} bytes"
        assert viewed.tobytes() == content[offset : offset + size], f"{what} gave other bytes than the file's"


def _ranges(size: int) -> list[tuple[int, int]]:
    """Fixed ranges ``(offset, size)`` that cross pages, in no order, the first and last byte included."""
    rng = np.random.default_rng(size)
    offsets = rng.integers(0, size, 40)
    lengths = rng.choice([0, 1, 7, 512, 4_096, 8_192, 65_536, size], 40)
    drawn = [(int(o), int(min(n, size - o))) for o, n in zip(offsets, lengths, strict=True)]
    return [(0, size), *drawn, (size - 1, 1), (0, 1), (4_095, 2), (size, 0)]


def _in_threads(work: Callable[[], None], count: int = 6) -> None:
    """Run ``work`` in threads that start together; the first failure of any is raised here."""
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(run) for _ in range(count)]:
            future.result()
