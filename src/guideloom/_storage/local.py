"""Answers requests from a local folder, and drives the generators that make them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from guideloom._base.errors import (
    CorruptDataError,
    DamagedRecordError,
    DataSetNotFoundError,
    ForeignDataError,
    MissingShardError,
)
from guideloom._storage.names import RECORD_SUFFIX
from guideloom._storage.requests import FileSize, ListFolder, ReadFile, ReadRange, Request

ResultT = TypeVar("ResultT")

_GONE = (errno.ENOENT, errno.ENOTDIR)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class LocalFolder:
    """Answers requests from a folder of the local file system.

    Parameters
    ----------
    directory : pathlib.Path
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._prefix = os.fspath(directory)

    def answer(self, request: Request) -> Any:
        """Answer one request; see :mod:`guideloom._storage.requests`."""
        match request:
            case ListFolder():
                return self.listing()
            case ReadFile(name, limit_bytes):
                return self.read_file(name, limit_bytes)
            case FileSize(name):
                return self.file_size(name)
            case ReadRange(name, offset_bytes, size_bytes):
                return self.read_range(name, offset_bytes, size_bytes)

    def listing(self) -> dict[str, int]:
        """Name and size in bytes of each regular file; -1 for commit records, whose size says nothing.

        Raises
        ------
        DataSetNotFoundError
            No such folder.
        ForeignDataError
            A file in place of the folder.
        PermissionError
        """
        found = {}
        try:
            with os.scandir(self._prefix) as entries:
                for entry in entries:
                    if entry.name.endswith(RECORD_SUFFIX):
                        found[entry.name] = -1
                    elif entry.is_file():
                        try:
                            found[entry.name] = entry.stat().st_size
                        except FileNotFoundError:
                            continue
        except FileNotFoundError:
            raise DataSetNotFoundError("no data set: the folder does not exist", path=self._directory) from None
        except NotADirectoryError:
            raise ForeignDataError("expected a data set's folder, found a file", path=self._directory) from None
        return found

    def read_file(self, name: str, limit_bytes: int) -> bytes | None:
        """The whole file, None when it does not exist."""
        path = os.path.join(self._prefix, name)
        try:
            # A pipe of that name must not block, nor a folder give another error than a damaged record.
            with open(path, "rb", buffering=0, opener=_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedRecordError("expected a regular file, found something else", path=path)
                size = status.st_size
                if size > limit_bytes:
                    raise DamagedRecordError(f"expected at most {limit_bytes} bytes, found {size}", path=path)
                return _read_exactly(file.fileno(), 0, size, path)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno == errno.EISDIR:
                raise DamagedRecordError("expected a regular file, found a folder", path=path) from error
            raise

    def file_size(self, name: str) -> int | None:
        """Size in bytes, None when there is no such file."""
        try:
            return os.stat(os.path.join(self._prefix, name)).st_size
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def read_range(self, name: str, offset_bytes: int, size_bytes: int) -> bytes:
        """Exactly ``size_bytes`` bytes from ``offset_bytes``."""
        path = os.path.join(self._prefix, name)
        try:
            with open(path, "rb", buffering=0) as file:
                return _read_exactly(file.fileno(), offset_bytes, size_bytes, path)
        except FileNotFoundError:
            raise MissingShardError("a file of a committed shard is gone: restore it from a copy", path=path) from None


def _read_exactly(descriptor: int, offset: int, size: int, path: str) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    chunks = []
    left = size
    while left:
        chunk = os.read(descriptor, min(left, 1 << 30))
        if not chunk:
            raise CorruptDataError(
                f"expected {size} bytes from byte {offset}, found {size - left}", path=path, offset=offset + size - left
            )
        chunks.append(chunk)
        left -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def drive(generator: Generator[Request, Any, ResultT], answer: Callable[[Request], Any]) -> ResultT:
    """Run a generator of requests to its end, and return its result; an error of ``answer`` ends both."""
    try:
        request = next(generator)
        while True:
            request = generator.send(answer(request))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        generator.close()


async def drive_async(
    generator: Generator[Request, Any, ResultT], answer: Callable[[Request], Awaitable[Any]]
) -> ResultT:
    """Run a generator of requests to its end, each answered by a coroutine."""
    try:
        request = next(generator)
        while True:
            request = generator.send(await answer(request))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        generator.close()
