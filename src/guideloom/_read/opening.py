"""Opening a data set for reading: its catalog, and its files behind a backend.

A local folder read by our own backends is listed; anything else is asked for by name, through the backend alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, overload

import numpy as np

from guideloom._base.errors import (
    CorruptDataError,
    DamagedRecordError,
    DataSetError,
    MissingShardError,
)
from guideloom._base.protocols import IOReaderAbstract, StorageFormat
from guideloom._base.threads import map_in_threads
from guideloom._format.naming import format_name
from guideloom._read.files import is_own_backend, is_own_error, lets_several_in, open_file_set
from guideloom._read.fileset import FileSet, FileTable, default_capacity
from guideloom._read.operations import AsyncBackendFiles, AsyncFiles, ThreadedFiles
from guideloom._storage.blocks import BlockChecker
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.local import LocalFolder, drive, drive_async
from guideloom._storage.opening import open_catalog
from guideloom._storage.requests import (
    AboutFile,
    FileSize,
    FileSizes,
    ListDataSets,
    ListFolder,
    ReadFile,
    ReadRange,
    Request,
)

# Of a store whose every answer takes 20 ms, the sizes of 2,000 files one after the other would take most of a minute.
_SIZES_AT_ONCE = 16


def _wanted_dtype(storage_format: StorageFormat) -> np.dtype[Any] | None:
    dtype = getattr(storage_format, "stream_dtype", None)
    return None if dtype is None else np.dtype(dtype)


def file_table(directory: PurePath, catalog: Catalog) -> FileTable:
    """Return paths, sizes and shards of a catalog's files."""
    shards = np.zeros(len(catalog.files), np.int64)
    for column in (catalog.elements_file, catalog.offsets_file, catalog.payload_file, catalog.table_file):
        there = column >= 0
        shards[column[there]] = catalog.shard[there]
    return FileTable(_Paths(directory, catalog.files), catalog.sizes, shards)


class _Paths(Sequence[PurePath]):
    """Paths of files in a folder, each made when it is asked for: a reader may never touch most of ten thousand."""

    def __init__(self, directory: PurePath, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> PurePath: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PurePath]: ...
    def __getitem__(self, index: int | slice) -> PurePath | Sequence[PurePath]:
        if isinstance(index, slice):
            return _Paths(self._directory, self._names[index])
        return self._directory / self._names[index]


class BackendFolder:
    """Answers requests through a user's backend: nothing but opening a path, its size, and reads."""

    def __init__(self, directory: PurePath, backend: IOReaderAbstract) -> None:
        self._directory = directory
        self._make = backend.sync_reader()
        self._threads = 1  # until a reader says that it lets several in

    def answer(self, request: Request) -> Any:
        """Answer one request."""
        if isinstance(request, ListFolder | ListDataSets):
            return None
        if isinstance(request, FileSizes):
            return self._sizes(request.names)
        try:
            return self._ask(request)
        except FileNotFoundError as error:
            # Of whatever step: a reader may open nothing before it is asked.
            return not_there(request, self._directory, error)

    def _sizes(self, names: Sequence[str]) -> list[int | None]:
        requests = map(FileSize, names)
        if self._threads == 1:
            return list(map(self.answer, requests))
        return map_in_threads(self.answer, requests, self._threads, "guideloom-sizes")

    def _ask(self, request: AboutFile) -> Any:
        reader = self._make(self._directory / request.name)
        reader.open()
        try:
            # Not before it is open: what it wraps may be what knows.
            self._threads = _SIZES_AT_ONCE if lets_several_in(reader) else 1
            if isinstance(request, ReadRange):
                with short_reads_named(request, self._directory):
                    data = bytes(reader.read(request.offset_bytes, request.size_bytes))
                return whole_range(data, request, self._directory)
            size = reader.filesize()
            if isinstance(request, FileSize):
                return size
            check_limit(request, size, self._directory)
            return whole_file(bytes(reader.read(0, size)), size, request, self._directory)
        finally:
            reader.close()


class AsyncBackendFolder:
    """Answers requests through a user's asyncio backend."""

    def __init__(self, directory: PurePath, backend: IOReaderAbstract) -> None:
        self._directory = directory
        self._make = backend.async_reader()

    async def answer(self, request: Request) -> Any:
        """Answer one request."""
        if isinstance(request, ListFolder | ListDataSets):
            return None
        if isinstance(request, FileSizes):
            return await self._sizes(request.names)
        try:
            return await self._ask(request)
        except FileNotFoundError as error:
            return not_there(request, self._directory, error)

    async def _sizes(self, names: Sequence[str]) -> list[int | None]:
        sizes: list[int | None] = [None] * len(names)
        waiting = enumerate(names)

        async def ask() -> None:
            try:
                for place, name in waiting:
                    sizes[place] = await self.answer(FileSize(name))
            finally:
                deque(waiting, maxlen=0)  # Where one fails, the others end what they have begun, and no more.

        ended = await asyncio.gather(*(ask() for _ in range(_SIZES_AT_ONCE)), return_exceptions=True)
        for error in filter(None, ended):
            raise error
        return sizes

    async def _ask(self, request: AboutFile) -> Any:
        reader = self._make(self._directory / request.name)
        await reader.open()
        try:
            if isinstance(request, ReadRange):
                with short_reads_named(request, self._directory):
                    data = bytes(await reader.read(request.offset_bytes, request.size_bytes))
                return whole_range(data, request, self._directory)
            size = await reader.filesize()
            if isinstance(request, FileSize):
                return size
            check_limit(request, size, self._directory)
            return whole_file(bytes(await reader.read(0, size)), size, request, self._directory)
        finally:
            # An opening that is cancelled must not leave a file half closed.
            await asyncio.shield(reader.close())


def not_there(request: AboutFile, directory: PurePath, error: FileNotFoundError) -> None:
    """Answer for a file that does not exist: None where it may be missing, else an error."""
    if isinstance(request, ReadRange):
        raise MissingShardError(
            "a file of a committed shard is gone: restore it from a copy", path=directory / request.name
        ) from error


@contextmanager
def short_reads_named(request: ReadRange, directory: PurePath) -> Iterator[None]:
    """Turn what a user's ``read`` raises where a file ends too early into our error: see :func:`is_own_error`."""
    try:
        yield
    except (ValueError, IndexError) as error:
        if is_own_error(error):
            raise
        raise _range_short(request, directory, str(error)) from error


def whole_range(data: bytes, request: ReadRange, directory: PurePath) -> bytes:
    """Return what was read, unless it is not all."""
    if len(data) != request.size_bytes:
        raise _range_short(request, directory, f"read() gave {len(data)} bytes")
    return data


def _range_short(request: ReadRange, directory: PurePath, why: str) -> CorruptDataError:
    return CorruptDataError(
        f"the backend could not give {request.size_bytes} bytes: {why}",
        path=directory / request.name,
        offset=request.offset_bytes,
    )


def whole_file(data: bytes, size: int, request: ReadFile, directory: PurePath) -> bytes:
    """Return what was read, unless it is not all: a sound record would look damaged, for what the backend did."""
    if len(data) != size:
        raise CorruptDataError(
            f"the backend could not give {size} bytes, as many as its filesize() says: read() gave {len(data)} bytes",
            path=directory / request.name,
        )
    return data


def check_limit(request: ReadFile, size: int, directory: PurePath) -> None:
    """Refuse a record or manifest of a size that none can have, before it is read."""
    if size > request.limit_bytes:
        raise DamagedRecordError(
            f"expected at most {request.limit_bytes} bytes, found {size}",
            remedy="restore the file from a copy",
            path=directory / request.name,
        )


def open_data_set(
    directory: PurePath,
    storage_format: StorageFormat,
    backend: IOReaderAbstract,
    kind: Kind,
    verify: bool = False,
) -> tuple[Catalog, FileSet]:
    """Open a data set: read what it is, check it, and return it with its files.

    ``verify``: each block of data is checked against its checksum when it is first touched.

    Raises
    ------
    DataSetError
        By cause: not there, foreign, another kind or dtype, newer, with holes, or damaged.
    """
    opening = open_catalog(kind, _wanted_dtype(storage_format), format_name(storage_format))
    try:
        found = drive(opening, folder_of(directory, backend).answer)
    except DataSetError as error:
        raise error.under(directory) from error.__cause__
    # Files are opened when they are first used: a relative path then means what it means now.
    catalog = replace(found, directory=Path(directory).absolute() if is_own_backend(backend) else directory)
    return catalog, open_files(catalog, backend, verify)


def open_files(catalog: Catalog, backend: IOReaderAbstract, verify: bool = False) -> FileSet:
    """Return the files of a data set that is open already; each one's size is checked when it is first used."""
    files = open_file_set(backend, file_table(catalog.directory, catalog))
    if verify:
        files.checker = block_checker(catalog, backend)
    return files


def block_checker(catalog: Catalog, backend: IOReaderAbstract) -> BlockChecker:
    """Return what checks the blocks of a data set, through the same backend."""
    answer = folder_of(catalog.directory, backend).answer
    return BlockChecker(
        catalog,
        lambda name, offset, size: answer(ReadRange(name, offset, size)),
        lambda name, limit: answer(ReadFile(name, limit)),
        str(catalog.directory),
    )


def folder_of(directory: PurePath, backend: IOReaderAbstract) -> LocalFolder | BackendFolder:
    """Return what answers requests about a directory."""
    return LocalFolder(Path(directory)) if is_own_backend(backend) else BackendFolder(directory, backend)


async def open_data_set_async(
    directory: PurePath,
    storage_format: StorageFormat,
    backend: IOReaderAbstract,
    kind: Kind,
    verify: bool = False,
) -> tuple[Catalog, AsyncFiles]:
    """Open a data set for asyncio; see :func:`open_data_set`."""
    if is_own_backend(backend):
        catalog, files = await asyncio.to_thread(open_data_set, directory, storage_format, backend, kind, verify)
        return catalog, ThreadedFiles(files)
    opening: Generator[Request, Any, Catalog] = open_catalog(
        kind, _wanted_dtype(storage_format), format_name(storage_format)
    )
    try:
        found = await drive_async(opening, AsyncBackendFolder(directory, backend).answer)
    except DataSetError as error:
        raise error.under(directory) from error.__cause__
    catalog = replace(found, directory=directory)
    table = file_table(directory, catalog)
    async_files = AsyncBackendFiles(table, default_capacity(), backend.async_reader())
    if verify:
        async_files.checker = block_checker(catalog, backend)
    return catalog, async_files
