"""A backend of your own: here one that counts what it reads. An object store would look the same.

To test yours, give it to ``guideloom.testing.BackendConformance``, as its docstring shows; this one passes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from guideloom import StreamNumpyFormat, StreamStorage
from guideloom.types import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract, StorageBufferTypes


class Counts:
    """How many reads there were, and of how many bytes."""

    def __init__(self) -> None:
        self.num_reads = 0
        self.num_bytes = 0

    def __str__(self) -> str:
        return f"{self.num_reads} reads of {self.num_bytes} bytes"


class CountingReader(IOSyncReaderAbstract):
    """Reads one file, and counts."""

    def __init__(self, path: PurePath, counts: Counts) -> None:
        self._path = Path(path)
        self._counts = counts
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Open the file; a missing one is a ``FileNotFoundError``."""
        self._file = self._path.open("rb")

    def close(self) -> None:
        """Close the file; to call it again, or before ``open``, is no mistake."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def filesize(self) -> int:
        """Size in bytes."""
        return self._path.stat().st_size

    def read(self, offset: int, size: int) -> StorageBufferTypes:
        """Return exactly ``size`` bytes from ``offset``."""
        if self._file is None:
            raise RuntimeError(f"{self._path} is not open")
        if offset < 0:
            raise IndexError(f"negative offset {offset} in {self._path}")
        self._file.seek(offset)
        found = bytearray(self._file.read(size))
        if len(found) != size:
            raise IndexError(f"{self._path}: wanted {size} bytes from {offset}, found {len(found)}")
        self._counts.num_reads += 1
        self._counts.num_bytes += size
        return found


class CountingAsyncReader(IOAsyncReaderAbstract):
    """The same for asyncio; a real one would await its store."""

    def __init__(self, path: PurePath, counts: Counts) -> None:
        self._reader = CountingReader(path, counts)

    async def open(self) -> None:
        """Open the file."""
        await asyncio.to_thread(self._reader.open)

    async def close(self) -> None:
        """Close the file."""
        self._reader.close()

    async def filesize(self) -> int:
        """Size in bytes."""
        return self._reader.filesize()

    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        """Return exactly ``size`` bytes from ``offset``."""
        return self._reader.read(offset, size)


class CountingIO(IOReaderAbstract):
    """Makes the readers; these few methods are all that a backend has to have."""

    def __init__(self) -> None:
        self.counts = Counts()

    @staticmethod
    def is_supported() -> bool:
        """Works everywhere."""
        return True

    def sync_reader(self) -> Callable[[PurePath], CountingReader]:
        """Return a maker of readers."""
        return lambda path: CountingReader(path, self.counts)

    def async_reader(self) -> Callable[[PurePath], CountingAsyncReader]:
        """Return a maker of asyncio readers."""
        return lambda path: CountingAsyncReader(path, self.counts)


async def read_async(storage: StreamStorage) -> list[int]:
    """Read a window through asyncio."""
    async with storage.async_reader() as reader:
        window = await reader.read(98, 4)
    return [int(token) for token in window["tokens"]]


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    backend = CountingIO()
    storage = StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<i4")])), read_interface=backend)
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(100, dtype=np.int32)})
        writer.append(1, {"tokens": np.arange(100, 200, dtype=np.int32)})

    with storage.sync_reader() as reader:
        print("opening took", backend.counts)
        before = backend.counts.num_reads
        window = reader.read(98, 4)["tokens"].tolist()
        print("window", window, "of two shards took", backend.counts.num_reads - before, "reads")
    assert asyncio.run(read_async(storage)) == window
    print("with asyncio it is the same; in all", backend.counts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
