"""A user's backend that opens nothing by itself: that a file is missing it says when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentPickleFormat, DocumentStorage, StreamNumpyFormat, StreamStorage
from guideloom._read.files import BackendFileSet
from guideloom._read.fileset import FileTable
from guideloom._read.opening import AsyncBackendFolder, BackendFolder
from guideloom._storage.requests import ReadRange
from guideloom.errors import CorruptDataError, DamagedRecordError, DataSetNotFoundError, MissingShardError
from guideloom.testing import BackendConformance, IdStreamFormat, make_stream
from guideloom.types import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract


class LazyReader(IOSyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self.path = Path(path)

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def filesize(self) -> int:
        return self.path.stat().st_size

    def read(self, offset: int, size: int) -> bytearray:
        with self.path.open("rb") as file:
            data = bytearray(file.read())
        if offset < 0 or offset + size > len(data):
            raise IndexError(f"{size} bytes from {offset} are not in {self.path}")
        return data[offset : offset + size]


class LazyAsyncReader(IOAsyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self.reader = LazyReader(path)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def filesize(self) -> int:
        return self.reader.filesize()

    async def read(self, offset: int, size: int) -> bytearray:
        return self.reader.read(offset, size)


class Lazy(IOReaderAbstract):
    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return LazyReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return LazyAsyncReader


class TestLazy(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return Lazy()


class Careless(Lazy):
    """Its readers give less than they were asked for, and do not say so."""

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return CarelessReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return CarelessAsyncReader


class CarelessReader(LazyReader):
    def read(self, offset: int, size: int) -> bytearray:
        return super().read(offset, size - 1)


class CarelessAsyncReader(LazyAsyncReader):
    async def read(self, offset: int, size: int) -> bytearray:
        return self.reader.read(offset, size - 1)


def streams(folder: Path) -> StreamStorage:
    return StreamStorage(folder, StreamNumpyFormat(np.dtype([("token", "<u2")])), Lazy())


def documents(folder: Path) -> DocumentStorage:
    return DocumentStorage(folder, DocumentPickleFormat(), Lazy())


def write_two_shards(storage: Any) -> None:
    with storage.sync_writer() as writer:
        for shard in range(2):
            writer.append(shard, {"token": [shard]})


def read_all(storage: Any, way: str, before_read: Callable[[], object] = lambda: None) -> list[Any]:
    """Read the tokens of a data set, stream or documents, from the second one on."""

    def arguments(reader: Any) -> list[tuple[int, ...]]:
        return [(1, 2)] if isinstance(storage, StreamStorage) else [(1,), (0,)]

    def tokens(samples: list[Any]) -> list[int]:
        return [int(token) for sample in samples for token in sample["token"]]

    async def main() -> list[int]:
        async with storage.async_reader() as reader:
            before_read()
            return tokens([await reader.read(*each) for each in arguments(reader)])

    if way == "async":
        return asyncio.run(main())
    with storage.sync_reader() as reader:
        before_read()
        return tokens([reader.read(*each) for each in arguments(reader)])


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("make", [streams, documents])
def test_it_reads_what_is_there(make: Callable[[Path], Any], way: str, tmp_path: Path) -> None:
    storage = make(tmp_path / "data")
    write_two_shards(storage)
    (tmp_path / "data" / "manifest.json").unlink()
    assert read_all(storage, way) == [1, 0]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("make", [streams, documents])
def test_no_data_set_is_told_as_such(make: Callable[[Path], Any], way: str, tmp_path: Path) -> None:
    with pytest.raises(DataSetNotFoundError):
        read_all(make(tmp_path / "data"), way)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("make", [streams, documents])
def test_a_file_that_goes_while_the_data_set_is_open_is_named(
    make: Callable[[Path], Any], way: str, tmp_path: Path
) -> None:
    storage = make(tmp_path / "data")
    write_two_shards(storage)
    (gone,) = (tmp_path / "data").glob("0000001-*.elements.bin" if make is streams else "0000001-*.payload.bin")
    with pytest.raises(MissingShardError) as caught:
        read_all(storage, way, gone.unlink)
    assert caught.value.path == str(gone)
    assert caught.value.shard == 1


def test_a_backend_that_gives_too_little_of_a_sound_manifest_is_named(tmp_path: Path) -> None:
    with streams(tmp_path).sync_writer() as writer:
        writer.append(0, {"token": [1, 2, 3]})
    size = (tmp_path / "manifest.json").stat().st_size
    said = rf"backend could not give {size} bytes.* read\(\) gave {size - 1} bytes .*manifest\.json"
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), Careless())
    with pytest.raises(CorruptDataError, match=said):
        storage.sync_reader().open()
    with pytest.raises(CorruptDataError, match=said):
        asyncio.run(storage.async_reader().open())


class Knowing(Lazy):
    """Its readers find out themselves that data is damaged."""

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return KnowingReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return KnowingAsyncReader


class KnowingReader(LazyReader):
    def read(self, offset: int, size: int) -> bytearray:
        if self.path.name.endswith(".elements.bin"):
            raise CorruptDataError("the store has lost a replica", path=self.path, offset=offset)
        return super().read(offset, size)


class KnowingAsyncReader(LazyAsyncReader):
    def __init__(self, path: PurePath) -> None:
        self.reader = KnowingReader(path)


@pytest.mark.parametrize("way", ["sync", "async", "of a range", "of a range, async"])
def test_what_a_backend_says_in_our_own_words_is_left_as_it_is(tmp_path: Path, way: str) -> None:
    write_two_shards(streams(tmp_path))
    request = ReadRange(next(tmp_path.glob("0000000-*.elements.bin")).name, 0, 2)
    with pytest.raises(CorruptDataError, match=r"^the store has lost a replica \["):
        if way == "of a range":
            BackendFolder(tmp_path, Knowing()).answer(request)
        elif way == "of a range, async":
            asyncio.run(AsyncBackendFolder(tmp_path, Knowing()).answer(request))
        else:
            read_all(StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), Knowing()), way)


class Huge(Lazy):
    """Says of every file that it has a tebibyte, of which none may be asked for."""

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return HugeReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return HugeAsyncReader


class HugeReader(LazyReader):
    def filesize(self) -> int:
        return super().filesize() << 40

    def read(self, offset: int, size: int) -> bytearray:
        raise AssertionError(f"{size} bytes were asked for")


class HugeAsyncReader(LazyAsyncReader):
    def __init__(self, path: PurePath) -> None:
        self.reader = HugeReader(path)


def test_a_manifest_of_a_size_that_none_has_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_two_shards(streams(tmp_path))
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), Huge())
    said = r"expected at most \d+ bytes, found \d{15}; restore the file from a copy .*manifest\.json"
    with pytest.raises(DamagedRecordError, match=said):
        storage.sync_reader().open()
    with pytest.raises(DamagedRecordError, match=said):
        asyncio.run(storage.async_reader().open())


@pytest.mark.parametrize("given", [0, 3, 4, 5])
def test_a_reader_that_derives_from_nothing_of_ours_must_give_what_was_asked_for(given: int) -> None:
    class Reader:
        def open(self) -> None:
            pass

        def close(self) -> None:
            pass

        def read(self, offset: int, size: int) -> bytes:
            return b"abcdefgh"[offset : offset + given]

    reader: Any = Reader()
    files = BackendFileSet(FileTable([PurePath("x")], np.array([8]), np.array([7])), 4, lambda path: reader)
    out = np.zeros(4, np.uint8)
    one = np.zeros(1, np.int64)
    if given == 4:
        files.gather(one, one + 2, one, one + 4, 0, 1, out)
        assert out.tobytes() == b"cdef"
    else:
        with pytest.raises(CorruptDataError, match=rf"could not give 4 bytes: read\(\) gave {given} bytes") as caught:
            files.gather(one, one + 2, one, one + 4, 0, 1, out)
        assert (str(caught.value.path), caught.value.shard, caught.value.offset) == ("x", 7, 2)
        assert not out.any()
    files.close()


class OpenedReader(LazyReader):
    opened = False

    def open(self) -> None:
        self.opened = True

    @property
    def concurrent_reads(self) -> bool:  # type: ignore[override]
        if not self.opened:
            raise RuntimeError("only a connection that is open knows")
        return True


class Opened(Lazy):
    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return OpenedReader


def test_a_reader_is_asked_about_threads_when_it_is_open(tmp_path: Path) -> None:
    make_stream(tmp_path, (4,) * 3)
    with StreamStorage(tmp_path, IdStreamFormat(np.dtype("<i8")), Opened()).sync_reader() as reader:
        assert reader.read(0, 12).elements.tolist() == list(range(12))
