"""What a format's ``unpack`` raises says which document, or which elements, it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from guideloom import (
    DocumentJsonFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom.errors import CorruptDataError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import CountingBackend

BAD = 4711


class Documents:
    """Numbers, one of which cannot be decoded."""

    def pack(self, data: int) -> bytes:
        return data.to_bytes(8, "little")

    def unpack(self, encoded: Any, shard: int) -> int:
        number = int.from_bytes(encoded, "little")
        if number == BAD:
            raise KeyError("no such number")
        return number


class Spans:
    """One span a record; payloads are decoded as ``Documents`` does it."""

    stream_dtype = np.dtype("<i4")

    def pack_spans(self, data: int) -> tuple[npt.NDArray[np.int32], list[int], list[bytes]]:
        return np.arange(3, dtype=np.int32), [3], [Documents().pack(data)]

    def unpack(self, stream: Any, shards: Any, index: Any, payloads: Any) -> list[int]:
        return [Documents().unpack(payload, 0) for payload in payloads]


def refuse_bad(**columns: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    if "token" in columns and BAD in columns["token"]:
        raise KeyError("no such number")
    return columns


def written(storage: Any) -> Any:
    """Two shards of five records; the number 3 of the second is bad: 8 in all."""
    with storage.sync_writer() as writer:
        for number in range(10):
            value = BAD if number == 8 else number
            record = {"token": [value] * 3} if isinstance(storage, StreamStorage) else value
            writer.append(number // 5, record)
    return storage


def notes_of(read: Callable[[], object]) -> list[str]:
    with pytest.raises(KeyError, match="no such number") as caught:
        read()
    # A worker process adds the traceback that it had.
    return [note for note in caught.value.__notes__ if "Traceback" not in note]


@pytest.mark.parametrize("backend", [SeekIO, PosixPreadIO, MmapIO, CountingBackend])
def test_documents(tmp_path: Path, backend: Callable[[], Any]) -> None:
    storage = written(DocumentStorage(tmp_path, Documents(), backend()))
    said = [f"while unpacking document 8 of {str(tmp_path)!r}"]
    with storage.sync_reader() as reader:
        assert notes_of(lambda: reader.read(8)) == said
        assert notes_of(lambda: reader.read_many([3, 7, 8, 0])) == said
        for _ in range(40):  # until the offsets are in memory, where one document has a way of its own
            assert reader.read(3) == 3
        assert notes_of(lambda: reader.read(8)) == said

    async def read_async() -> None:
        async with storage.async_reader() as reader:
            await reader.read(8)

    assert notes_of(lambda: asyncio.run(read_async())) == said


@pytest.mark.parametrize("ways", [{}, {"prefetch": 3}, {"num_workers": 1, "prefetch": 1, "parallel_method": "process"}])
@pytest.mark.parametrize("start", [0, 4])
def test_documents_in_a_loader(tmp_path: Path, ways: dict[str, Any], start: int) -> None:
    """The document's number is that of the data set, wherever in the epoch, the plan and the batch it stands."""
    storage = written(DocumentStorage(tmp_path, Documents()))

    def read() -> None:
        with StatefulDataLoader.from_storage(storage, list, local_batch_size=2, device="cpu", **ways) as loader:
            state = {**loader.state_dict(), "observation_offset": start}
            loader.load_state_dict(state)
            for _ in loader:
                pass

    assert notes_of(read) == [f"while unpacking document 8 of {str(tmp_path)!r}"]


@pytest.mark.parametrize("backend", [SeekIO, CountingBackend])  # of a user's, each batch looks up its own offsets
def test_shuffled_documents_in_a_loader(tmp_path: Path, backend: Callable[[], Any]) -> None:
    storage = written(DocumentStorage(tmp_path, Documents(), backend()))

    def read(seed: int) -> None:
        options: dict[str, Any] = {"local_batch_size": 3, "drop_last": False, "shuffle": True, "shuffle_seed": seed}
        with StatefulDataLoader.from_storage(storage, list, device="cpu", **options) as loader:
            for _ in loader:
                pass

    for seed in range(5):
        assert notes_of(lambda seed=seed: read(seed)) == [f"while unpacking document 8 of {str(tmp_path)!r}"]


def test_a_shipped_format(tmp_path: Path) -> None:
    """It is told the shard only, and says that; the note says which document."""
    storage = DocumentStorage(tmp_path, DocumentJsonFormat())
    with storage.sync_writer() as writer:
        for number in range(3):
            writer.append(0, number)
    payload = next(tmp_path.glob("*.payload.bin"))
    payload.write_bytes(b"0{2")
    with storage.sync_reader() as reader, pytest.raises(CorruptDataError, match="JSON in UTF-8") as caught:
        reader.read_many([0, 1, 2])
    assert caught.value.__notes__ == [f"while unpacking document 1 of {str(tmp_path)!r}"]


def test_windows(tmp_path: Path) -> None:
    """Elements 24 to 27 are bad; the reads go over the shards' seam, and past the end."""
    fmt = StreamNumpyFormat([("token", "<i4")], data_type=refuse_bad)
    storage = written(StreamStorage(tmp_path, fmt))

    def said(length: int, begin: int) -> list[str]:
        where = f"{length} elements from element {begin} of {str(tmp_path)!r}"
        return [f"while unpacking the window of {where}"]

    with storage.sync_reader() as reader:
        assert notes_of(lambda: reader.read(13, 12)) == said(12, 13)
        assert notes_of(lambda: reader.read(28, 30)) == said(30, 28)

    def read() -> None:
        with StatefulDataLoader.from_storage(storage, list, sequence_length=5, local_batch_size=2) as loader:
            for _ in loader:
                pass

    assert notes_of(read) == said(5, 20)


def test_spans(tmp_path: Path) -> None:
    storage = written(StreamWithMetaStorage(tmp_path, Spans()))
    with storage.sync_reader() as reader:
        note = f"while unpacking the window of 12 elements from element 13 of {str(tmp_path)!r}"
        assert notes_of(lambda: reader.read(13, 12)) == [note]

    def read() -> None:
        with StatefulDataLoader.from_storage(storage, list, sequence_length=5, local_batch_size=2) as loader:
            for _ in loader:
                pass

    assert notes_of(read) == [f"while unpacking the window of 5 elements from element 20 of {str(tmp_path)!r}"]
