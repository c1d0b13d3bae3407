"""What a user's backend may give for bytes: any bytearray, and memoryviews of any kind of bytes."""

from __future__ import annotations

import asyncio
import ctypes
from array import array
from collections.abc import Callable
from pathlib import Path, PurePath

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage
from guideloom.testing import BackendWrapper, MinimalBackend
from guideloom.types import StorageBufferTypes

TOKENS = StreamNumpyFormat(np.dtype([("token", "<u2")]))

BUFFERS: dict[str, Callable[[bytes], StorageBufferTypes]] = {
    "bytes": memoryview,
    "characters": lambda data: memoryview(data).cast("c"),
    "signed": lambda data: memoryview(array("b", data)),
    "ctypes": lambda data: memoryview((ctypes.c_ubyte * len(data)).from_buffer_copy(data)),
    "numpy": lambda data: memoryview(np.frombuffer(data, np.int8)),
}


class Giving(BackendWrapper):
    def __init__(self, give: Callable[[bytes], StorageBufferTypes]) -> None:
        super().__init__(MinimalBackend())
        self.give = give

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        return self.give(bytes(data))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", BUFFERS)
def test_bytes_of_any_kind_are_taken(name: str, verify: bool, tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path / "data", TOKENS, Giving(BUFFERS[name]), verify=verify)
    with storage.sync_writer() as writer:
        writer.append(0, {"token": [1, 2, 60_000, 65_535]})

    async def read() -> list[int]:
        async with storage.async_reader() as reader:
            values: list[int] = (await reader.read(1, 3))["token"].tolist()
            return values

    with storage.sync_reader() as reader:
        assert reader.read(1, 3)["token"].tolist() == [2, 60_000, 65_535]
    assert asyncio.run(read()) == [2, 60_000, 65_535]
