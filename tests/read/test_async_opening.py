"""Asyncio readers that are opened by several tasks at once, whose opening is cancelled, or whose backend fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from guideloom import StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.errors import CorruptDataError, InUseError
from guideloom.io import PosixPreadIO
from guideloom.testing import BackendWrapper, Fault, FaultBackend, MinimalBackend
from guideloom.types import IOAsyncReaderAbstract, IOReaderAbstract

TOKENS = StreamNumpyFormat(np.dtype([("token", "<u2")]))


class Store(BackendWrapper):
    """Knows which readers are open: from the start of an ``open`` that comes to its end, to the end of a ``close``."""

    def __init__(self) -> None:
        super().__init__(MinimalBackend())
        self.num_open = 0

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        make = super().async_reader()
        return lambda path: Reader(self, make(path))


class Reader(IOAsyncReaderAbstract):
    def __init__(self, store: Store, inner: IOAsyncReaderAbstract) -> None:
        self.store = store
        self.inner = inner

    async def open(self) -> None:
        await asyncio.sleep(0)
        await self.inner.open()
        self.store.num_open += 1

    async def close(self) -> None:
        await asyncio.sleep(0)
        await self.inner.close()
        self.store.num_open -= 1

    async def filesize(self) -> int:
        await asyncio.sleep(0)
        return await self.inner.filesize()

    async def read(self, offset: int, size: int) -> Any:
        await asyncio.sleep(0)
        return await self.inner.read(offset, size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with StreamStorage(tmp_path / "data", TOKENS).sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"token": np.arange(4) + 4 * shard})
    return tmp_path / "data"


def test_an_opening_that_is_cancelled_at_any_step_leaves_no_file_open(folder: Path) -> None:
    store = Store()
    storage = StreamStorage(folder, TOKENS, store)

    async def cancel_after(steps: int) -> bool:
        reader = storage.async_reader()
        opening = asyncio.ensure_future(reader.open())
        for _ in range(steps):
            await asyncio.sleep(0)
        if opening.done():
            await reader.close()
            return False
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        for _ in range(8):  # What was shielded goes on by itself.
            await asyncio.sleep(0)
        assert store.num_open == 0, f"cancelled after {steps} steps"
        async with reader:
            assert (await reader.read(3, 2))["token"].tolist() == [3, 4]
        assert store.num_open == 0
        return True

    steps = 0
    while asyncio.run(cancel_after(steps)):
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("backend", [Store(), PosixPreadIO()], ids=["user's", "own"])
@pytest.mark.parametrize("of_dataset", [False, True])
def test_of_tasks_that_open_one_reader_at_once_one_does(
    folder: Path, backend: IOReaderAbstract, of_dataset: bool
) -> None:
    storage = StreamStorage(folder, TOKENS, backend)

    async def main() -> None:
        reader: Any = StreamDataset(storage, 4).async_reader() if of_dataset else storage.async_reader()
        results = await asyncio.gather(*(reader.open() for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in sorted(results, key=bool)] == [type(None), InUseError, InUseError]
        item = await (reader[1] if of_dataset else reader.read(4, 4))
        assert item["token"].tolist() == [4, 5, 6, 7]
        await reader.close()

    asyncio.run(main())
    assert not isinstance(backend, Store) or backend.num_open == 0


@pytest.mark.parametrize("error", [ValueError("odd"), IndexError("odd"), OSError(5, "odd"), CorruptDataError("odd")])
def test_what_a_backend_s_read_raises_arrives_alike(folder: Path, error: Exception) -> None:
    def storage() -> StreamStorage:
        return StreamStorage(folder, TOKENS, FaultBackend(None, Fault(error, match="*.elements.bin")))

    async def read() -> None:
        async with storage().async_reader() as reader:
            await reader.read(0, 3)

    with pytest.raises((ValueError, OSError), match="odd") as asynchronous:
        asyncio.run(read())
    with storage().sync_reader() as reader, pytest.raises((ValueError, OSError), match="odd") as synchronous:
        reader.read(0, 3)
    assert type(asynchronous.value) is type(synchronous.value)
    assert str(asynchronous.value) == str(synchronous.value)
