"""The conformance class passes for good backends, and each kind of fault makes a test of it fail."""

from __future__ import annotations

import asyncio
import inspect
import io
import mmap
import threading
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest

from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import (
    BackendConformance,
    BackendWrapper,
    CountingBackend,
    FaultBackend,
    MinimalBackend,
    conformance,
)
from guideloom.types import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract


class TestSeekIO(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return SeekIO()


class TestPosixPreadIO(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return PosixPreadIO()


class TestPosixPreadIOWithAdvice(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return PosixPreadIO(advice=True)


class TestMmapIO(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return MmapIO()


class TestMinimalBackend(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return MinimalBackend()


class TestCountingBackend(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return CountingBackend(PosixPreadIO(), concurrent_reads=True)


class TestFaultBackendWithoutFaults(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return FaultBackend(MinimalBackend())


# --- faulty backends, each of which some test must catch -----------------------------------------


class _Reader(IOSyncReaderAbstract):
    """A correct reader by plain file calls, to be broken by its subclasses."""

    def __init__(self, path: PurePath) -> None:
        self.path = Path(path)
        self.file: io.BufferedReader | None = None

    def open(self) -> None:
        self.file = self.path.open("rb")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def filesize(self) -> int:
        return self.path.stat().st_size

    def read(self, offset: int, size: int) -> Any:
        assert self.file is not None
        if offset < 0 or offset + size > self.filesize():
            raise IndexError("outside")
        self.file.seek(offset)
        return bytearray(self.file.read(size))


class _GivesBytes(_Reader):
    def read(self, offset: int, size: int) -> Any:
        return bytes(super().read(offset, size))


class _ShortWithoutError(_Reader):
    def read(self, offset: int, size: int) -> Any:
        assert self.file is not None
        if offset < 0:
            raise IndexError("negative")
        self.file.seek(offset)
        return bytearray(self.file.read(size))


class _NegativeFromTheEnd(_Reader):
    def read(self, offset: int, size: int) -> Any:
        return super().read(offset % self.filesize() if offset < 0 else offset, size)


class _OtherErrorForShortReads(_Reader):
    def read(self, offset: int, size: int) -> Any:
        try:
            return super().read(offset, size)
        except IndexError as error:
            raise EOFError from error


class _OneBuffer(_Reader):
    buffer = bytearray(300_000)

    def read(self, offset: int, size: int) -> Any:
        data = super().read(offset, size)
        self.buffer[:size] = data
        return memoryview(self.buffer)[:size]


class _MapThatCannotClose(_Reader):
    map: mmap.mmap | None = None

    def open(self) -> None:
        super().open()
        assert self.file is not None
        if self.filesize():
            self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        super().close()
        if self.map is not None:
            self.map.close()
            self.map = None

    def read(self, offset: int, size: int) -> Any:
        super().read(offset, size)
        return memoryview(self.map or b"")[offset : offset + size] if size else bytearray()


class _EmptyMap(_Reader):
    def open(self) -> None:
        super().open()
        assert self.file is not None
        try:
            mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ).close()
        except ValueError:
            self.close()
            raise


class _MissingIsAnotherError(_Reader):
    def open(self) -> None:
        if not self.path.exists():
            raise ValueError("no such file")
        super().open()


class _MissingHasNoBytes(_Reader):
    def open(self) -> None:
        if self.path.exists():
            super().open()

    def filesize(self) -> int:
        return super().filesize() if self.path.exists() else 0


class _CloseOnlyOnce(_Reader):
    def close(self) -> None:
        assert self.file is not None
        super().close()


class _OldSize(_Reader):
    size: int | None = None

    def filesize(self) -> int:
        self.size = super().filesize() if self.size is None else self.size
        return self.size


class _WritesBeside(_Reader):
    def read_into(self, offset: int, out: memoryview) -> None:
        if offset < 0:
            raise IndexError("negative")
        super().read_into(offset, out)
        assert isinstance(out.obj, bytearray)
        out.obj[-1] = 0


class _SharedPosition(_Reader):
    files: dict[Path, Any] = {}
    concurrent_reads = True

    def read(self, offset: int, size: int) -> Any:
        assert self.file is not None
        if offset < 0 or offset + size > self.filesize():
            raise IndexError("outside")
        self.file.seek(offset)
        return bytearray(b"".join(self.file.read(1) for _ in range(min(size, 4_096)))) + self.file.read(
            max(0, size - 4_096)
        )


class _OfOneThread(_Reader):
    """As a connection to a database may be."""

    def open(self) -> None:
        self.thread = threading.get_ident()
        super().open()

    def read(self, offset: int, size: int) -> Any:
        if threading.get_ident() != self.thread:
            raise ValueError("another thread")
        return super().read(offset, size)


class _Backend(MinimalBackend):
    def __init__(self, reader: type[_Reader]) -> None:
        self.reader = reader

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return self.reader


class _BrokenAsync(MinimalBackend):
    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        inner = super().async_reader()

        def make(path: PurePath) -> IOAsyncReaderAbstract:
            reader = inner(path)
            read = reader.read

            async def shifted(offset: int, size: int) -> Any:
                return await read(offset - 1 if offset else 0, size)

            reader.read = shifted  # type: ignore[method-assign]
            return reader

        return make


class _AsyncReader(IOAsyncReaderAbstract):
    """A correct reader, to be broken by its subclasses."""

    def __init__(self, path: PurePath) -> None:
        self.sync = _Reader(path)

    async def open(self) -> None:
        self.sync.open()

    async def close(self) -> None:
        self.sync.close()

    async def filesize(self) -> int:
        return self.sync.filesize()

    async def read(self, offset: int, size: int) -> Any:
        await asyncio.sleep(0)
        return self.sync.read(offset, size)


class _KeepsItsLock(_AsyncReader):
    def __init__(self, path: PurePath) -> None:
        super().__init__(path)
        self.lock = asyncio.Lock()

    async def read(self, offset: int, size: int) -> Any:
        await self.lock.acquire()
        data = await super().read(offset, size)
        self.lock.release()
        return data


class _MapsEmptyFiles(_AsyncReader):
    async def open(self) -> None:
        await super().open()
        assert self.sync.file is not None
        try:
            mmap.mmap(self.sync.file.fileno(), 0, access=mmap.ACCESS_READ).close()
        except ValueError:
            self.sync.close()
            raise


class _ClosesOnlyOnce(_AsyncReader):
    async def close(self) -> None:
        assert self.sync.file is not None
        await super().close()


class _KeepsItsLoop(_AsyncReader):
    loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()
        await super().open()


class _OpensOnceInALoop(_AsyncReader):
    loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        assert self.loop is not asyncio.get_running_loop()
        self.loop = asyncio.get_running_loop()
        await super().open()


class _AsyncBackend(MinimalBackend):
    def __init__(self, reader: type[_AsyncReader]) -> None:
        self.reader = reader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return self.reader


class _Unbroken(_AsyncBackend):
    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return _Reader


class TestTheReadersThatOthersBreak(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return _Unbroken(_AsyncReader)


class _NotStatic(MinimalBackend):
    def is_supported(self) -> bool:  # type: ignore[override]
        return True


class _NotPicklable(BackendWrapper):
    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("cannot pickle this")


class _NotSupported(MinimalBackend):
    @staticmethod
    def is_supported() -> bool:
        return False


FAULTY: dict[str, tuple[Callable[[], IOReaderAbstract], str]] = {
    "bytes": (lambda: _Backend(_GivesBytes), "test_reads_every_range"),
    "short": (lambda: _Backend(_ShortWithoutError), "test_short_reads"),
    "negative": (lambda: _Backend(_NegativeFromTheEnd), "test_short_reads"),
    "other error": (lambda: _Backend(_OtherErrorForShortReads), "test_short_reads"),
    "one buffer": (lambda: _Backend(_OneBuffer), "test_a_result_is"),
    "map": (lambda: _Backend(_MapThatCannotClose), "test_a_result_is"),
    "empty map": (lambda: _Backend(_EmptyMap), "test_reads_nothing"),
    "missing": (lambda: _Backend(_MissingIsAnotherError), "test_a_missing_file"),
    "missing is empty": (lambda: _Backend(_MissingHasNoBytes), "test_a_missing_file"),
    "close once": (lambda: _Backend(_CloseOnlyOnce), "test_a_reader_can_be_opened_again"),
    "old size": (lambda: _Backend(_OldSize), "test_a_reader_can_be_opened_again"),
    "writes beside": (lambda: _Backend(_WritesBeside), "test_read_into"),
    "shared position": (lambda: _Backend(_SharedPosition), "test_many_threads"),
    "of one thread": (lambda: _Backend(_OfOneThread), "test_one_thread_opens"),
    "async": (_BrokenAsync, "test_async_reads_the_same"),
    "async keeps its lock": (lambda: _AsyncBackend(_KeepsItsLock), "test_async_reads_that_are_cancelled"),
    "async close once": (lambda: _AsyncBackend(_ClosesOnlyOnce), "test_async_reader_can_be_opened_again"),
    "async one loop": (lambda: _AsyncBackend(_KeepsItsLoop), "test_async_reader_can_be_opened_again"),
    "async once a loop": (lambda: _AsyncBackend(_OpensOnceInALoop), "test_async_reader_can_be_opened_again"),
    "async empty map": (lambda: _AsyncBackend(_MapsEmptyFiles), "test_async_reads_nothing"),
    "not static": (_NotStatic, "test_is_supported"),
    "not supported": (_NotSupported, "test_is_supported"),
    "not picklable": (_NotPicklable, "test_a_pickled"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_backend_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "HANGS_AFTER_S", 0.2)
    make, catcher = FAULTY[name]

    class Suite(BackendConformance):
        def make_backend(self) -> IOReaderAbstract:
            return make()

    (method,) = [method for key, method in inspect.getmembers(Suite()) if key.startswith(catcher)]
    arguments = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(method).parameters else {}
    with pytest.raises((AssertionError, BufferError, TypeError, ValueError)):
        method(**arguments)


def test_the_class_needs_its_backend() -> None:
    with pytest.raises(TypeError, match="make_backend"):
        BackendConformance()  # type: ignore[abstract]
