"""Readers of documents by global index, synchronous and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, InUseError, NotOpenError, OutOfRangeError
from guideloom._base.protocols import (
    DocumentStorageAsyncReaderAbstract,
    DocumentStorageFormat,
    DocumentStorageSyncReaderAbstract,
    IOReaderAbstract,
)
from guideloom._dataset.indexing import integer, item_index
from guideloom._dataset.stream_readers import read_identity
from guideloom._read.documents import DocumentOperations
from guideloom._read.files import FileSet
from guideloom._read.opening import open_data_set, open_data_set_async
from guideloom._read.operations import AsyncFiles, Operation, run, run_async
from guideloom._storage.catalog import Catalog


class _DocumentReader:
    """Counts, checks and operations: all that both readers share."""

    def __init__(self, directory: PurePath, storage_format: DocumentStorageFormat, backend: IOReaderAbstract) -> None:
        self._directory = directory
        self._format = storage_format
        self._backend = backend
        self._operations: DocumentOperations | None = None

    @property
    def operations(self) -> DocumentOperations:
        """What reads documents; for the views in this package."""
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
        """Documents in all shards."""
        return self.catalog.total

    def _length(self, shard: int) -> int:
        return int(self.catalog.shard_counts[item_index(shard, self.num_shards, "shard")])

    def _read_many(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Operation[list[Any]]:
        operations = self.operations
        wanted = self._checked(indexes)
        return (yield from operations.samples(wanted, 0, wanted.size))

    def _checked(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        total = self.catalog.total
        if isinstance(indexes, np.ndarray):
            if indexes.ndim != 1 or (indexes.size and indexes.dtype.kind not in "iu"):
                raise ArgumentError(
                    f"expected a 1-D array of integers, found shape {indexes.shape} of {indexes.dtype}", path=self._directory
                )
            # Compare before converting: a uint64 above the int64 range must not wrap to a valid index.
            bad = indexes[(indexes < 0) | (indexes >= total)] if indexes.size else indexes
            if bad.size:
                raise OutOfRangeError(f"document index {bad[0]} is outside [0, {total})", path=self._directory)
            return np.ascontiguousarray(indexes, np.int64)
        numbers = [integer(index, "document index") for index in indexes]
        for number in numbers:
            if not 0 <= number < total:
                raise OutOfRangeError(f"document index {number} is outside [0, {total})", path=self._directory)
        return np.array(numbers, np.int64)

    def __repr__(self) -> str:
        state = "closed" if self._operations is None else f"{self.num_shards} shards, {self.total_length} documents"
        return f"{type(self).__name__}({str(self._directory)!r}, {state})"


class DocumentSyncReader(_DocumentReader, DocumentStorageSyncReaderAbstract):
    """Reads documents; any number of threads may read at once."""

    _files: FileSet | None = None

    def open(self) -> None:
        """Open the data set: one folder listing and one manifest, every file's size checked."""
        if self._files is not None:
            raise InUseError("this reader is open already: close() it first", path=self._directory)
        catalog, self._files = open_data_set(self._directory, self._format, self._backend, "document")
        self._operations = DocumentOperations(catalog, self._format)

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
        """Documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)

    def read(self, global_index: int) -> Any:
        """Read one document; ``IndexError`` out of range."""
        return self.read_many([global_index])[0]

    def read_many(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Read documents in request order, in two gathers whatever their number.

        Any order, repeats allowed, empty allowed; ``IndexError`` out of range.
        """
        return run(self._read_many(indexes), self.files)


class DocumentAsyncReader(_DocumentReader, DocumentStorageAsyncReaderAbstract):
    """Reads documents with asyncio; any number of tasks may read at once."""

    _files: AsyncFiles | None = None

    async def open(self) -> None:
        """Open the data set; see :meth:`DocumentSyncReader.open`."""
        if self._files is not None:
            raise InUseError("this reader is open already: close() it first", path=self._directory)
        catalog, self._files = await open_data_set_async(self._directory, self._format, self._backend, "document")
        self._operations = DocumentOperations(catalog, self._format)

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
        """Documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)

    async def read(self, global_index: int) -> Any:
        """Read one document; ``IndexError`` out of range."""
        return (await self.read_many([global_index]))[0]

    async def read_many(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Read documents in request order; see :meth:`DocumentSyncReader.read_many`."""
        return await run_async(self._read_many(indexes), self.files)
