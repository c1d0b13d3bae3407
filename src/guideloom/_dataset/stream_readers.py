"""Readers of streams, with and without metadata: windows of a global stream, synchronous and for asyncio."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from guideloom._base.errors import InUseError, NotOpenError, OutOfRangeError
from guideloom._base.protocols import (
    IOReaderAbstract,
    StreamStorageAsyncReaderAbstract,
    StreamStorageFormat,
    StreamStorageSyncReaderAbstract,
    StreamWithMetaStorageFormat,
)
from guideloom._dataset.indexing import integer, item_index
from guideloom._read.files import FileSet
from guideloom._read.opening import folder_of, open_data_set, open_data_set_async
from guideloom._read.operations import AsyncFiles, Operation, run, run_async
from guideloom._read.spans import SpanOperations
from guideloom._read.streams import StreamOperations
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.identity import identify_published
from guideloom._storage.local import drive

StreamFormat: TypeAlias = StreamStorageFormat | StreamWithMetaStorageFormat
Operations: TypeAlias = StreamOperations | SpanOperations


class _StreamReader:
    """Counts, checks and operations: all that both readers share."""

    def __init__(
        self, directory: PurePath, storage_format: StreamFormat, backend: IOReaderAbstract, kind: Kind
    ) -> None:
        self._directory = directory
        self._format = storage_format
        self._backend = backend
        self._kind: Kind = kind
        self._operations: Operations | None = None

    def _set(self, catalog: Catalog) -> None:
        make: Any = StreamOperations if self._kind == "stream" else SpanOperations
        self._operations = make(catalog, self._format)

    @property
    def operations(self) -> Operations:
        """What reads windows; for the views in this package."""
        if self._operations is None:
            raise NotOpenError("this reader is not open: call open() first, or use `with`", path=self._directory)
        return self._operations

    @property
    def catalog(self) -> Catalog:
        """What the open data set is; for the views in this package."""
        return self.operations.catalog

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.catalog.num_shards

    @property
    def total_length(self) -> int:
        """Elements in all shards."""
        return self.catalog.total

    def _length(self, shard: int) -> int:
        return int(self.catalog.shard_counts[item_index(shard, self.num_shards, "shard")])

    def _read(self, global_index: int, global_length: int) -> Operation[Any]:
        operations = self.operations
        index, length = integer(global_index, "global_index"), integer(global_length, "global_length")
        if not 0 <= index < self.catalog.total:
            raise OutOfRangeError(f"global index {index} is outside [0, {self.catalog.total})", path=self._directory)
        if length < 0:
            raise OutOfRangeError(f"a window's length must be at least 0, got {length}", path=self._directory)
        plan = operations.prepare(np.array([index], np.int64), length)
        samples = yield from operations.samples(plan, 0, 1)  # type: ignore[arg-type]
        return samples[0]

    def __repr__(self) -> str:
        state = "closed" if self._operations is None else f"{self.num_shards} shards, {self.total_length} elements"
        return f"{type(self).__name__}({str(self._directory)!r}, {state})"


class StreamSyncReader(_StreamReader, StreamStorageSyncReaderAbstract):
    """Reads windows of a stream; any number of threads may call ``read`` at once."""

    _files: FileSet | None = None

    def open(self) -> None:
        """Open the data set: one folder listing and one manifest, every file's size checked."""
        if self._files is not None:
            raise InUseError("this reader is open already: close() it first", path=self._directory)
        catalog, files = open_data_set(self._directory, self._format, self._backend, self._kind)
        self._set(catalog)
        self._files = files

    def close(self) -> None:
        """Close all files; safe to call again."""
        files, self._files, self._operations = self._files, None, None
        if files is not None:
            files.close()

    @property
    def files(self) -> FileSet:
        """The open files; for the views in this package."""
        if self._files is None:
            raise NotOpenError("this reader is not open: call open() first, or use `with`", path=self._directory)
        return self._files

    @property
    def identity(self) -> str:
        """Content and order of the data set; the published layout is read for it."""
        return read_identity(self.catalog, self._directory, self._backend)

    def length(self, shard: int) -> int:
        """Elements in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)

    def read(self, global_index: int, global_length: int) -> Any:
        """Read the window ``[global_index, global_index + global_length)`` of the global stream.

        It runs on into the next shard, and past the last element goes on at the first, as often as needed.

        Raises
        ------
        IndexError
            ``global_index`` outside ``[0, total_length)``, or a negative length.
        """
        return run(self._read(global_index, global_length), self.files)


class StreamAsyncReader(_StreamReader, StreamStorageAsyncReaderAbstract):
    """Reads windows of a stream with asyncio; any number of tasks may read at once."""

    _files: AsyncFiles | None = None

    async def open(self) -> None:
        """Open the data set; see :meth:`StreamSyncReader.open`."""
        if self._files is not None:
            raise InUseError("this reader is open already: close() it first", path=self._directory)
        catalog, self._files = await open_data_set_async(self._directory, self._format, self._backend, self._kind)
        self._set(catalog)

    async def close(self) -> None:
        """Close all files; safe to call again."""
        files, self._files, self._operations = self._files, None, None
        if files is not None:
            await files.close()

    @property
    def files(self) -> AsyncFiles:
        """The open files; for the views in this package."""
        if self._files is None:
            raise NotOpenError("this reader is not open: await open() first, or use `async with`", path=self._directory)
        return self._files

    async def length(self, shard: int) -> int:
        """Elements in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)

    async def read(self, global_index: int, global_length: int) -> Any:
        """Read a window; see :meth:`StreamSyncReader.read`."""
        return await run_async(self._read(global_index, global_length), self.files)


def read_identity(catalog: Catalog, directory: PurePath, backend: IOReaderAbstract) -> str:
    """Return a data set's identity, reading for it when the catalog does not hold it."""
    if catalog.identity is not None:
        return catalog.identity
    return drive(identify_published(catalog), folder_of(directory, backend).answer)
