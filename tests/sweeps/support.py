"""What the sweeps share: every backend by name, and one way to read through both kinds of reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import MinimalBackend
from guideloom.types import IOReaderAbstract

BACKENDS: dict[str, Callable[[], IOReaderAbstract]] = {
    "seek": SeekIO,
    "pread": PosixPreadIO,
    "advice": lambda: PosixPreadIO(advice=True),
    "mmap": MmapIO,
    "user": MinimalBackend,
}

MODES: list[dict[str, Any]] = [
    {},
    {"prefetch": 2},
    {"num_workers": 2, "prefetch": 2},
    {"num_workers": 2, "prefetch": 2, "parallel_method": "process"},
]
"""Ways of making batches, as options of the loader."""


def read_sync(storage: Any, requests: Iterable[tuple[Any, ...]], method: str = "read") -> list[Any]:
    """Call one method of a synchronous reader for each request."""
    with storage.sync_reader() as reader:
        return [getattr(reader, method)(*request) for request in requests]


def read_async(storage: Any, requests: Iterable[tuple[Any, ...]], method: str = "read") -> list[Any]:
    """Call one method of an asyncio reader for each request: all in flight at once."""

    async def main() -> list[Any]:
        async with storage.async_reader() as reader:
            return list(await asyncio.gather(*(getattr(reader, method)(*request) for request in requests)))

    return asyncio.run(main())


READ: dict[str, Callable[..., list[Any]]] = {"sync": read_sync, "async": read_async}
