"""Readers of documents by global index, synchronous and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, OutOfRangeError
from guideloom._base.protocols import (
    DocumentStorageAsyncReaderAbstract,
    DocumentStorageFormat,
    DocumentStorageSyncReaderAbstract,
)
from guideloom._dataset.indexing import item_index
from guideloom._dataset.opened import AsyncOpened, FilesT, Opened, SyncOpened
from guideloom._read.documents import DocumentOperations
from guideloom._read.fileset import FileSet
from guideloom._read.operations import AsyncFiles, Operation, run, run_async
from guideloom._storage.catalog import Catalog

Indexes: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]


class _DocumentOpened(Opened[DocumentOperations, FilesT]):
    def _operations_on(self, catalog: Catalog) -> DocumentOperations:
        return DocumentOperations(catalog, cast(DocumentStorageFormat, self._format))

    def _read_many(self, operations: DocumentOperations, indexes: Indexes) -> Operation[list[Any]]:
        plan = operations.prepare(self._checked(indexes, operations.catalog.total))
        return (yield from operations.samples(plan, 0, plan.num_documents))

    def _checked(self, indexes: Indexes, total: int) -> npt.NDArray[np.int64]:
        if isinstance(indexes, np.ndarray):
            if indexes.ndim != 1 or (indexes.size and indexes.dtype.kind not in "iu"):
                raise ArgumentError(
                    f"expected a 1-D array of integers, found shape {indexes.shape} of {indexes.dtype}",
                    path=self._directory,
                )
            # Compare before converting: a uint64 above the int64 range must not wrap to a valid index.
            bad = indexes[(indexes < 0) | (indexes >= total)] if indexes.size else indexes
            if bad.size:
                raise OutOfRangeError(f"document index {bad[0]} is outside [0, {total})", path=self._directory)
            return np.ascontiguousarray(indexes, np.int64)
        return np.array([item_index(index, total, "document", self._directory) for index in indexes], np.int64)


class DocumentSyncReader(_DocumentOpened[FileSet], SyncOpened[DocumentOperations], DocumentStorageSyncReaderAbstract):
    """Reads documents; any number of threads may read at once."""

    def read(self, global_index: int) -> Any:
        """Read one document; ``IndexError`` out of range."""
        operations, files = self.opened
        index = item_index(global_index, operations.catalog.total, "document", self._directory)
        place = operations.place_one(index)
        if place is None:
            return run(self._read_many(operations, [index]), files)[0]
        # Without a plan: to make its arrays would take longer than to read the document.
        segment, file, begin, size = place
        buffer = np.empty(size, np.uint8)
        if size:
            column = np.array((file, begin, 0, size), np.int64)
            files.gather(column[:1], column[1:2], column[2:3], column[3:], 0, 1, buffer)
        try:
            return operations.format.unpack(buffer.data, int(operations.catalog.shard[segment]))
        except Exception as error:
            operations.name_document(error, index)
            raise

    def read_many(self, indexes: Indexes) -> list[Any]:
        """Read documents in request order, in two gathers whatever their number.

        Any order, repeats allowed, empty allowed; ``IndexError`` out of range.
        """
        operations, files = self.opened
        return run(self._read_many(operations, indexes), files)


class DocumentAsyncReader(
    _DocumentOpened[AsyncFiles], AsyncOpened[DocumentOperations], DocumentStorageAsyncReaderAbstract
):
    """Reads documents with asyncio; any number of tasks may read at once."""

    async def read(self, global_index: int) -> Any:
        """Read one document; ``IndexError`` out of range."""
        return (await self.read_many([global_index]))[0]

    async def read_many(self, indexes: Indexes) -> list[Any]:
        """Read documents in request order; see :meth:`DocumentSyncReader.read_many`."""
        operations, files = self.opened
        return await run_async(self._read_many(operations, indexes), files)
