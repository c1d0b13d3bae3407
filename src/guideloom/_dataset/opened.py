"""What the readers of all storages share: opening, closing, counts, identity; synchronous and for asyncio."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Generic, TypeVar

from guideloom._base.errors import ArgumentError, InUseError, NotOpenError
from guideloom._base.protocols import IOReaderAbstract, StorageFormat
from guideloom._dataset.indexing import item_index
from guideloom._read.documents import DocumentOperations
from guideloom._read.fileset import FileSet
from guideloom._read.opening import folder_of, open_data_set, open_data_set_async, open_files
from guideloom._read.operations import AsyncFiles
from guideloom._read.spans import SpanOperations
from guideloom._read.streams import StreamOperations
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.identity import identify_published
from guideloom._storage.local import drive

OperationsT = TypeVar("OperationsT", StreamOperations | SpanOperations, DocumentOperations)


class Opened(Generic[OperationsT]):
    """A reader of a data set, open or not: its counts, and the operations on it.

    Parameters
    ----------
    directory, storage_format, backend
        As the storage has them.
    kind : Kind
    verify : bool
        Check each block of data when it is first touched.
    """

    def __init__(
        self,
        directory: PurePath,
        storage_format: StorageFormat,
        backend: IOReaderAbstract,
        kind: Kind,
        verify: bool = False,
    ) -> None:
        self._directory = directory
        self._format = storage_format
        self._backend = backend
        self._kind: Kind = kind
        self._verify = verify
        self._operations: OperationsT | None = None

    def _operations_on(self, catalog: Catalog) -> OperationsT:
        raise NotImplementedError

    @property
    def operations(self) -> OperationsT:
        """What reads; for the views in this package."""
        if self._operations is None:
            raise self._not_open()
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
        """Elements or documents in all shards."""
        return self.catalog.total

    def _length(self, shard: int) -> int:
        return int(self.catalog.shard_counts[item_index(shard, self.num_shards, "shard")])

    def _not_open(self) -> NotOpenError:
        return NotOpenError("this reader is not open: call open() first, or use it in a `with`", path=self._directory)

    def _open_already(self) -> InUseError:
        return InUseError("this reader is open already: close() it first", path=self._directory)

    def __repr__(self) -> str:
        state = "closed"
        if self._operations is not None:
            what = "documents" if self._kind == "document" else "elements"
            state = f"{self.num_shards} shards, {self.total_length} {what}"
        return f"{type(self).__name__}({str(self._directory)!r}, {state})"


class SyncOpened(Opened[OperationsT]):
    """The synchronous half."""

    _files: FileSet | None = None

    def open(self) -> None:
        """Open the data set: one folder listing and one manifest, every file's size checked."""
        if self._files is not None:
            raise self._open_already()
        catalog, files = open_data_set(self._directory, self._format, self._backend, self._kind, self._verify)
        self._operations = self._operations_on(catalog)
        self._files = files

    def open_again(self, catalog: Catalog) -> None:
        """Open what another reader of this data set has open, whatever was committed since: nothing is looked up."""
        if self._files is not None:
            raise self._open_already()
        self._files = open_files(self._directory, catalog, self._backend, self._verify)
        self._operations = self._operations_on(catalog)

    def close(self) -> None:
        """Close all files; safe to call again, and while other threads read: the last of them closes."""
        files, self._files, self._operations = self._files, None, None
        if files is not None:
            files.close()

    @property
    def files(self) -> FileSet:
        """The open files; for the views in this package."""
        if self._files is None:
            raise self._not_open()
        return self._files

    @property
    def identity(self) -> str:
        """Content and order of the data set, whatever its path; the published layout is read for it."""
        if self.catalog.identity is not None:
            return self.catalog.identity
        return drive(identify_published(self.catalog), folder_of(self._directory, self._backend).answer)

    def length(self, shard: int) -> int:
        """Elements or documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)


def open_snapshot(reader: Any, catalog: Catalog) -> None:
    """Open a storage's reader on what another reader of the same storage has open.

    Raises
    ------
    ArgumentError
        The reader is not one of ours.
    """
    if not isinstance(reader, SyncOpened):
        raise ArgumentError(f"expected a reader of GuideLoom's own, found {type(reader).__name__}")
    reader.open_again(catalog)


class AsyncOpened(Opened[OperationsT]):
    """The asyncio half."""

    _files: AsyncFiles | None = None

    async def open(self) -> None:
        """Open the data set; as the synchronous reader does."""
        if self._files is not None:
            raise self._open_already()
        catalog, files = await open_data_set_async(
            self._directory, self._format, self._backend, self._kind, self._verify
        )
        self._operations = self._operations_on(catalog)
        self._files = files

    async def close(self) -> None:
        """Close all files; safe to call again."""
        files, self._files, self._operations = self._files, None, None
        if files is not None:
            await files.close()

    @property
    def files(self) -> AsyncFiles:
        """The open files; for the views in this package."""
        if self._files is None:
            raise self._not_open()
        return self._files

    async def length(self, shard: int) -> int:
        """Elements or documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)
