"""What a user writes against ``guideloom.types``, annotated in full; mypy --strict must accept every line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from guideloom import (
    DocumentDataset,
    DocumentJsonFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom.errors import GuideLoomError, StateMismatchError
from guideloom.io import PosixPreadIO
from guideloom.types import (
    DocumentStorageFormat,
    IOAsyncReaderAbstract,
    IOReaderAbstract,
    IOSyncReaderAbstract,
    StatefulDataLoaderStateDict,
    StorageBufferTypes,
    StreamStorageFormat,
    StreamWithMetaStorageFormat,
    UserBufferTypes,
    Vector,
)


class TextFormat:
    """A document format."""

    def pack(self, data: str) -> bytes:
        return data.encode()

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> str:
        return bytes(encoded).decode()


class Tokens:
    """A stream format."""

    def __init__(self) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype("<u2")

    def pack(self, data: Sequence[int]) -> Vector:
        return np.array(data, self.stream_dtype)

    def unpack(
        self, stream: npt.NDArray[Any], shard_lengths: npt.NDArray[np.int64], shards: npt.NDArray[np.int64]
    ) -> list[int]:
        return [int(token) for token in stream]


class Sources:
    """A format of a stream with metadata."""

    def __init__(self) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype("<u2")

    def size(self, data: Mapping[str, list[int]]) -> int:
        return sum(map(len, data.values()))

    def pack(
        self, data: Mapping[str, list[int]]
    ) -> Generator[tuple[str, UserBufferTypes | None], None, npt.NDArray[np.uint16]]:
        tokens: list[int] = []
        for source, values in data.items():
            for place, token in enumerate(values):
                yield source, None if place else source.encode()
                tokens.append(token)
        return np.array(tokens, "<u2")

    def unpack(
        self,
        stream: npt.NDArray[Any],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> tuple[int, list[str]]:
        return len(stream), [bytes(payload).decode() for payload in document_data]


class MemoryFile(IOSyncReaderAbstract):
    """One file of a backend."""

    def __init__(self, path: PurePath) -> None:
        self._path = Path(path)
        self._data = bytearray()

    def open(self) -> None:
        self._data = bytearray(self._path.read_bytes())

    def close(self) -> None:
        self._data = bytearray()

    def filesize(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytearray:
        return self._data[offset : offset + size]


class AsyncMemoryFile(IOAsyncReaderAbstract):
    """One file of a backend, for asyncio."""

    def __init__(self, path: PurePath) -> None:
        self._file = MemoryFile(path)

    async def open(self) -> None:
        self._file.open()

    async def close(self) -> None:
        self._file.close()

    async def filesize(self) -> int:
        return self._file.filesize()

    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        return self._file.read(offset, size)


class MemoryIO(IOReaderAbstract):
    """A backend."""

    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return MemoryFile

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return AsyncMemoryFile


text_format: DocumentStorageFormat = TextFormat()
token_format: StreamStorageFormat = Tokens()
source_format: StreamWithMetaStorageFormat = Sources()


def collate(samples: list[list[int]]) -> torch.Tensor:
    return torch.tensor(samples)


def storages(root: Path) -> None:
    with DocumentStorage(root / "texts", TextFormat(), MemoryIO()).sync_writer() as writer:
        writer.append(0, "one")
        writer.append(0, "two")
    documents = DocumentDataset(DocumentStorage(root / "texts", text_format, PosixPreadIO()))
    with documents.sync_reader() as reader:
        first: str = reader[0]
        others: Sequence[str] = reader[1:]
        assert [first, *others] == ["one", "two"]
    with StreamWithMetaStorage(root / "sources", source_format).sync_writer(mode="create") as spans:
        spans.append(0, {"a": [1, 2], "b": [3]})
    with StreamWithMetaStorage(root / "sources", Sources()).sync_reader() as windows:
        assert windows.read(0, windows.total_length) == (3, ["a", "b"])
    asyncio.run(asynchronous(DocumentStorage(root / "texts", text_format, MemoryIO())))
    DocumentStorage(root / "json", DocumentJsonFormat())


async def asynchronous(storage: DocumentStorage) -> None:
    async with DocumentDataset(storage).async_reader() as reader:
        text: str = await reader[1]
        assert text == "two"


def train(root: Path, steps: int) -> StatefulDataLoaderStateDict:
    storage = StreamStorage(root / "tokens", token_format, MemoryIO())
    with storage.sync_writer() as writer:
        writer.append(0, list(range(64)))
    state: StatefulDataLoaderStateDict
    with StatefulDataLoader(
        StreamDataset(storage, 4), collate, local_batch_size=2, shuffle=True, shuffle_seed=1
    ) as loader:
        for step, batch in enumerate(loader):
            tokens: torch.Tensor = batch
            assert tokens.shape == (2, 4)
            if step + 1 == steps:
                break
        state = loader.state_dict()
    return state


def resume(root: Path, state: StatefulDataLoaderStateDict) -> None:
    storage = StreamStorage(root / "tokens", Tokens())
    with StatefulDataLoader.from_storage(
        storage, collate, sequence_length=4, local_batch_size=2, shuffle=True, shuffle_seed=1
    ) as loader:
        try:
            loader.load_state_dict(state)
        except StateMismatchError as error:
            raise SystemExit(f"{error.key}: {error.expected} is not {error.found}") from error
        except GuideLoomError as error:
            raise SystemExit(error.message) from error
        assert len(next(iter(loader))) == 2


def fields(root: Path) -> None:
    columns = StreamNumpyFormat(np.dtype([("token", "<u2"), ("weight", "<f4")]))
    storage = StreamStorage(root / "columns", columns)
    dataset = StreamDataset(storage, sequence_length=8, overlap=1, dtype={"token": "int64"})
    loader = StatefulDataLoader(dataset, None, device="cpu", num_workers=1, prefetch=2, parallel_method="thread")
    size: int = loader.global_batch_size
    assert size == 1


if __name__ == "__main__":
    import sys

    folder = Path(sys.argv[1])
    storages(folder)
    resume(folder, train(folder, 3))
    fields(folder)
