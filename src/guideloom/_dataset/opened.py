"""What the readers of all storages share: opening, closing, counts, identity; synchronous and for asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
FilesT = TypeVar("FilesT", FileSet, AsyncFiles)


class Opened(ABC, Generic[OperationsT, FilesT]):
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
        self._opened: tuple[OperationsT, FilesT] | None = None

    @abstractmethod
    def _operations_on(self, catalog: Catalog) -> OperationsT:
        """Return what plans and reads."""

    @property
    def opened(self) -> tuple[OperationsT, FilesT]:
        """What plans and reads, and the files it reads from; for the views in this package.

        Take both at once: another thread may close the reader and open it again, on other data, at any moment.
        """
        opened = self._opened
        if opened is None:
            raise NotOpenError(
                "this reader is not open: call open() first, or use it in a `with`", path=self._directory
            )
        return opened

    @property
    def catalog(self) -> Catalog:
        """What the open data set is."""
        return self.opened[0].catalog

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.catalog.num_shards

    @property
    def total_length(self) -> int:
        """Elements or documents in all shards."""
        return self.catalog.total

    def _length(self, shard: int) -> int:
        catalog = self.catalog
        return int(catalog.shard_counts[item_index(shard, catalog.num_shards, "shard")])

    def _require_closed(self) -> None:
        if self._opened is not None:
            raise InUseError("this reader is open already: close() it first", path=self._directory)

    def __getstate__(self) -> dict[str, Any]:
        if self._opened is not None:
            raise not_picklable("reader")
        return self.__dict__

    def __repr__(self) -> str:
        opened, state = self._opened, "closed"
        if opened is not None:
            catalog, what = opened[0].catalog, "documents" if self._kind == "document" else "elements"
            state = f"{catalog.num_shards} shards, {catalog.total} {what}"
        return f"{type(self).__name__}({str(self._directory)!r}, {state})"


class SyncOpened(Opened[OperationsT, FileSet]):
    """The synchronous half."""

    def open(self) -> None:
        """Open the data set: one folder listing and one manifest, every file's size checked."""
        self._require_closed()
        catalog, files = open_data_set(self._directory, self._format, self._backend, self._kind, self._verify)
        self._opened = self._operations_on(catalog), files

    def open_again(self, catalog: Catalog) -> None:
        """Open what another reader of this data set has open, whatever was committed since: nothing is looked up."""
        self._require_closed()
        files = open_files(catalog, self._backend, self._verify)
        self._opened = self._operations_on(catalog), files

    def close(self) -> None:
        """Close all files; safe to call again, and while other threads read: the last of them closes."""
        opened = self._opened
        if opened is not None:
            # Closed first: should an interrupt end that, a further call goes on with it.
            opened[1].close()
            self._opened = None

    @property
    def identity(self) -> str:
        """Content and order of the data set, whatever its path; the published layout is read for it."""
        catalog = self.catalog
        if catalog.identity is not None:
            return catalog.identity
        return drive(identify_published(catalog), folder_of(catalog.directory, self._backend).answer)

    def length(self, shard: int) -> int:
        """Elements or documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)


def not_picklable(what: str) -> InUseError:
    """Return the error for a copy of something that is open."""
    return InUseError(
        f"an open {what} cannot be pickled or copied, its files belong to this process: give other processes the data "
        "set or the storage, and open one there"
    )


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


class AsyncOpened(Opened[OperationsT, AsyncFiles]):
    """The asyncio half."""

    async def open(self) -> None:
        """Open the data set; as the synchronous reader does."""
        self._require_closed()
        catalog, files = await open_data_set_async(
            self._directory, self._format, self._backend, self._kind, self._verify
        )
        self._require_closed()  # once more: another task may have opened it meanwhile
        self._opened = self._operations_on(catalog), files

    async def close(self) -> None:
        """Close all files; safe to call again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[1].close()

    async def length(self, shard: int) -> int:
        """Elements or documents in ``shard``; ``IndexError`` out of range."""
        return self._length(shard)
