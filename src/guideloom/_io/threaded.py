"""An asyncio reader over a synchronous one: each call runs on a thread of the loop's pool."""

from __future__ import annotations

import asyncio

from guideloom._base.protocols import IOAsyncReaderAbstract, IOSyncReaderAbstract, StorageBufferTypes


class ThreadedAsyncReader(IOAsyncReaderAbstract):
    """The methods of a synchronous reader as coroutines.

    Parameters
    ----------
    reader : IOSyncReaderAbstract
        Not yet open; must allow concurrent reads.
    """

    def __init__(self, reader: IOSyncReaderAbstract) -> None:
        self._reader = reader

    async def open(self) -> None:
        await asyncio.to_thread(self._reader.open)

    async def close(self) -> None:
        await asyncio.to_thread(self._reader.close)

    async def filesize(self) -> int:
        return await asyncio.to_thread(self._reader.filesize)

    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        return await asyncio.to_thread(self._reader.read, offset, size)
