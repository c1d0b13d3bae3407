"""``verify=True`` on a storage: a changed byte is an error that names its file, by every backend; never wrong data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import (
    DocumentDataset,
    DocumentStorage,
    StatefulDataLoader,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom.errors import ArgumentError, CorruptDataError, MissingShardError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import (
    CountingBackend,
    IdDocumentFormat,
    IdSpanFormat,
    MinimalBackend,
    make_documents,
    make_spans,
)
from guideloom.types import IOReaderAbstract

DTYPE = np.dtype([("token", "<u2"), ("weight", "<f4")])
BACKENDS: dict[str, Callable[[], IOReaderAbstract]] = {
    "seek": SeekIO,
    "pread": PosixPreadIO,
    "mmap": MmapIO,
    "user": lambda: CountingBackend(PosixPreadIO()),
    "minimal": MinimalBackend,
}


def stream(folder: Path, backend: IOReaderAbstract) -> Any:
    return StreamStorage(folder, StreamNumpyFormat(DTYPE), backend, verify=True)


def documents(folder: Path, backend: IOReaderAbstract) -> Any:
    return DocumentStorage(folder, IdDocumentFormat(), backend, verify=True)


def spans(folder: Path, backend: IOReaderAbstract) -> Any:
    return StreamWithMetaStorage(folder, IdSpanFormat(), backend, verify=True)


def make(kind: str, folder: Path) -> Callable[[Path, IOReaderAbstract], Any]:
    if kind == "stream":
        with stream(folder, SeekIO()).sync_writer() as writer:
            for shard in range(2):
                writer.append(shard, {"token": np.arange(70), "weight": np.ones(70)})
        return stream
    if kind == "document":
        make_documents(folder, [5, 4])
        return documents
    make_spans(folder, [[7, 1, 9], [3, 3]])
    return spans


def read_all(storage: Any) -> Any:
    with storage.sync_reader() as reader:
        if hasattr(reader, "read_many"):
            return reader.read_many(range(reader.total_length))
        return reader.read(0, reader.total_length)


async def read_all_async(storage: Any) -> Any:
    async with storage.async_reader() as reader:
        if hasattr(reader, "read_many"):
            return await reader.read_many(range(reader.total_length))
        return await reader.read(0, reader.total_length)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["stream", "document", "stream_with_meta"])
def test_a_changed_byte_is_an_error(kind: str, backend: str, tmp_path: Path) -> None:
    of = make(kind, tmp_path)
    read_all(of(tmp_path, BACKENDS[backend]()))
    asyncio.run(read_all_async(of(tmp_path, BACKENDS[backend]())))
    for path in sorted(tmp_path.glob("*.bin")):
        good = path.read_bytes()
        for place in {0, len(good) // 2, len(good) - 1} if good else set():
            path.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
            with pytest.raises(CorruptDataError, match=path.name) as caught:
                read_all(of(tmp_path, BACKENDS[backend]()))
            assert caught.value.offset == 0  # the block
            with pytest.raises(CorruptDataError, match=path.name):
                asyncio.run(read_all_async(of(tmp_path, BACKENDS[backend]())))
        path.write_bytes(good)
    read_all(of(tmp_path, BACKENDS[backend]()))


@pytest.mark.parametrize("backend", ["seek", "pread", "user", "minimal"])
@pytest.mark.parametrize("kind", ["stream", "document", "stream_with_meta"])
def test_a_file_that_is_gone_or_shorter_since_it_was_opened(kind: str, backend: str, tmp_path: Path) -> None:
    of = make(kind, tmp_path)

    def read_after(damage: Callable[[Path], Any], path: Path) -> Any:
        with of(tmp_path, BACKENDS[backend]()).sync_reader() as reader:
            damage(path)
            return reader.read_many(range(9)) if kind == "document" else reader.read(0, reader.total_length)

    async def read_after_async(damage: Callable[[Path], Any], path: Path) -> Any:
        async with of(tmp_path, BACKENDS[backend]()).async_reader() as reader:
            damage(path)
            return await (reader.read_many(range(9)) if kind == "document" else reader.read(0, reader.total_length))

    for path in sorted(tmp_path.glob("*.bin")):
        good = path.read_bytes()
        for damage, error in ((Path.unlink, MissingShardError), (shorten, CorruptDataError)):
            with pytest.raises(error, match=path.name):
                read_after(damage, path)
            path.write_bytes(good)
            with pytest.raises(error, match=path.name):
                asyncio.run(read_after_async(damage, path))
            path.write_bytes(good)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"mmap"}))
def test_a_file_that_ends_early_does_not_end_a_loop(backend: str, verify: bool, tmp_path: Path) -> None:
    make_documents(tmp_path, [9])
    storage = DocumentStorage(tmp_path, IdDocumentFormat(), BACKENDS[backend](), verify=verify)
    with DocumentDataset(storage).sync_reader() as reader:
        shorten(next(tmp_path.glob("*.payload.bin")))
        seen: list[int] = []
        with pytest.raises(CorruptDataError):
            seen.extend(document.id for document in reader)  # by __getitem__, until an IndexError
        assert seen == ([] if verify or backend == "pread" else list(range(8)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_verifies(tmp_path: Path, num_workers: int) -> None:
    make("stream", tmp_path)
    bad = sorted(tmp_path.glob("*.bin"))[1]
    content = bytearray(bad.read_bytes())
    content[3] ^= 1
    bad.write_bytes(content)
    options: dict[str, Any] = {
        "sequence_length": 7,
        "device": "cpu",
        "num_workers": num_workers,
        "prefetch": num_workers,
    }
    with StatefulDataLoader.from_storage(stream(tmp_path, MmapIO()), None, **options) as loader:
        batches = iter(loader)
        for number in range(10):
            assert next(batches)["token"].tolist() == [list(range(7 * number, 7 * number + 7))]
        with pytest.raises(CorruptDataError, match=bad.name):
            next(batches)


def test_each_block_is_read_once_for_checking(tmp_path: Path) -> None:
    make("stream", tmp_path)
    backend = CountingBackend(PosixPreadIO())
    with stream(tmp_path, backend).sync_reader() as reader:
        for begin in range(0, 140, 10):
            reader.read(begin, 10)
        # Every window is one read, and each of the two files one more for its only block.
        assert backend.matching("*.bin").reads == 14 + 2


def test_the_published_layout_cannot_be_verified() -> None:
    folder = Path(__file__).parents[1] / "data" / "published-1.1" / "stream"
    dtype = np.dtype([("tokens", "<u2"), ("mask", "|b1"), ("weight", "<f4")])
    with pytest.raises(ArgumentError, match="guideloom upgrade"):
        StreamStorage(folder, StreamNumpyFormat(dtype), verify=True).sync_reader().open()
