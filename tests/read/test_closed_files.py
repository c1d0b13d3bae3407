"""A reader of a file that is not open yet, or not any more, says so, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guideloom.errors import NotOpenError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO

BACKENDS = pytest.mark.parametrize("backend", [MmapIO(), PosixPreadIO(), SeekIO()], ids=repr)
CALLS = pytest.mark.parametrize(
    "call", [lambda reader: reader.filesize(), lambda reader: reader.read(0, 1)], ids=["filesize", "read"]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(b"content")
    return path


@BACKENDS
@CALLS
def test_before_open_and_after_close(backend: Any, call: Callable[[Any], Any], path: Path) -> None:
    reader = backend.sync_reader()(path)
    for _ in range(2):
        with pytest.raises(NotOpenError, match=r"call open\(\) first.*file\.bin"):
            call(reader)
        with reader:
            call(reader)
    with pytest.raises(NotOpenError):
        call(reader)


@BACKENDS
@CALLS
def test_before_open_and_after_close_in_a_loop(backend: Any, call: Callable[[Any], Any], path: Path) -> None:
    async def main() -> None:
        reader = backend.async_reader()(path)
        for _ in range(2):
            with pytest.raises(NotOpenError, match=r"call open\(\) first.*file\.bin"):
                await call(reader)
            async with reader:
                await call(reader)
        with pytest.raises(NotOpenError):
            await call(reader)

    asyncio.run(main())
