"""Documents seen as a data set: item ``i`` is document ``i``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.dataset_protocols import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract
from guideloom._base.errors import ArgumentError, GuideLoomError, NotOpenError
from guideloom._base.protocols import (
    DocumentStorageAbstract,
    DocumentStorageAsyncReaderAbstract,
    DocumentStorageSyncReaderAbstract,
)
from guideloom._dataset.document_readers import DocumentSyncReader
from guideloom._dataset.indexing import item_index, slice_indexes
from guideloom._dataset.source import BatchSource, Empty, ItemwiseSource
from guideloom._dataset.views import AsyncView, SyncView
from guideloom._read.documents import DocumentPlan, buffer_for
from guideloom._read.files import BackendFileSet
from guideloom._read.operations import run
from guideloom._read.readahead import MAX_AHEAD_RUNS
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]


class DocumentDataset(DatasetAbstract):
    """Documents by global index.

    Parameters
    ----------
    storage : DocumentStorage, or your own DocumentStorageAbstract
    """

    def __init__(self, storage: DocumentStorageAbstract) -> None:
        if not isinstance(storage, DocumentStorageAbstract):
            raise ArgumentError(
                f"expected a DocumentStorage, found {type(storage).__name__}: streams are a StreamDataset"
            )
        self.storage = storage

    def sync_reader(self) -> DocumentDatasetSyncReader:
        """Return a reader, not yet open."""
        return DocumentDatasetSyncReader(self)

    def async_reader(self) -> DocumentDatasetAsyncReader:
        """Return an asyncio reader, not yet open."""
        return DocumentDatasetAsyncReader(self)

    def __getitem__(self, index: object) -> NoReturn:
        raise NotOpenError("a data set opens nothing itself: use `with dataset.sync_reader() as reader: reader[index]`")

    def __repr__(self) -> str:
        return f"DocumentDataset({self.storage!r})"


class DocumentDatasetSyncReader(SyncView[DocumentStorageSyncReaderAbstract], DatasetSyncReaderAbstract):
    """Documents of an open data set; any number of threads may read at once."""

    def __init__(self, dataset: DocumentDataset) -> None:
        super().__init__(dataset.storage.sync_reader)
        self._dataset = dataset

    def _source_on(self, reader: DocumentStorageSyncReaderAbstract) -> BatchSource:
        return DocumentSource(reader) if isinstance(reader, DocumentSyncReader) else ItemwiseSource(self)

    def _count(self, reader: DocumentStorageSyncReaderAbstract) -> int:
        return reader.total_length

    def __getitem__(self, index: int | slice, /) -> Any:
        reader, _, size = self._require_open()
        if isinstance(index, slice):
            return list(reader.read_many(slice_indexes(index, size)))
        return reader.read(item_index(index, size, "document"))

    def __getitems__(self, indexes: Sequence[int], /) -> list[Any]:
        """Read documents in request order, see ``read_many`` of the storage's reader."""
        return list(self._require_open()[0].read_many(indexes))

    def __repr__(self) -> str:
        opened = self._opened
        state = "closed" if opened is None else f"{opened[2]} documents"
        return f"DocumentDatasetSyncReader({self._dataset!r}, {state})"


class DocumentDatasetAsyncReader(AsyncView[DocumentStorageAsyncReaderAbstract], DatasetAsyncReaderAbstract):
    """Documents of an open data set, for asyncio."""

    def __init__(self, dataset: DocumentDataset) -> None:
        super().__init__(dataset.storage.async_reader)

    def __len__(self) -> int:
        return self._require_open().total_length

    def __getitem__(self, index: int | slice, /) -> Awaitable[Any]:
        reader = self._require_open()
        size = reader.total_length
        if isinstance(index, slice):
            return _items(reader, slice_indexes(index, size))
        return reader.read(item_index(index, size, "document"))


async def _items(reader: DocumentStorageAsyncReaderAbstract, indexes: I64) -> Sequence[Any]:
    return list(await reader.read_many(indexes))


class DocumentSource(BatchSource):
    """Batched access to one of our own open document sets.

    The offsets of all documents of a plan, which holds those of many batches, are looked up in one gather. Only the
    very first batch looks up its own, so that it does not wait for the others' on slow storage. A small data set's
    offsets are kept in memory after some batches.
    """

    def __init__(self, reader: DocumentSyncReader) -> None:
        self._reader = reader
        self._operations, self._files = reader.opened
        # A user's reader is asked for one range after the other: there a batch must not wait for another's offsets.
        self._looks_far = not isinstance(self._files, BackendFileSet)
        self._started = False
        # The plan that is being read, and up to which document its bytes were asked for ahead.
        self._ahead: tuple[DocumentPlan | None, int] = (None, 0)

    @property
    def size(self) -> int:
        return self._operations.catalog.total

    @property
    def identity(self) -> str:
        return self._reader.identity

    @property
    def snapshot(self) -> Catalog:
        return self._operations.catalog

    @property
    def has_arrays(self) -> bool:
        return self._operations.ragged_dtype is not None

    @property
    def desk(self) -> I64:
        return self._files.desk

    def prepare(self, indexes: I64) -> DocumentPlan:
        return self._operations.prepare(indexes)

    def samples(self, prepared: DocumentPlan, lo: int, hi: int, empty: Empty = np.empty) -> list[Any]:
        asked = self._look_ahead(prepared, lo, hi, ragged=False)
        at = prepared.placement
        if at is not None and not at.ragged and lo < hi:
            # The same without an operation, whose machinery takes some 5 % of a small batch's time.
            buffer, shift = buffer_for(at, lo, hi, empty)
            self._files.gather(at.file, at.src, at.dst, at.nbytes, lo, hi, buffer, shift, asked)
            return self._operations.unpacked(prepared, at, lo, hi, buffer, shift)
        return run(self._operations.samples(prepared, lo, hi, asked, empty), self._files)

    def arrays(self, prepared: DocumentPlan, lo: int, hi: int, empty: Empty) -> Any:
        asked = self._look_ahead(prepared, lo, hi, ragged=True)
        at = prepared.placement
        if at is not None and at.ragged and lo < hi:
            batch, out, shift = self._operations.ragged_for(at, lo, hi, empty)
            self._files.gather(at.file, at.src, at.dst, at.nbytes, lo, hi, out, shift, asked)
            return batch
        return run(self._operations.arrays(prepared, lo, hi, empty, asked), self._files)

    def _look_ahead(self, plan: DocumentPlan, lo: int, hi: int, ragged: bool) -> bool:
        """Look up where all payloads of a plan lie, and ask for those that come next if reads wait for storage.

        Returns whether those of ``[lo, hi)`` were asked for. Two threads at once may ask for some of them twice.
        """
        if plan.placement is None:
            if self._started and self._looks_far and hi - lo < plan.num_documents:
                self._look_up_all(plan, ragged)
            self._started = True
        placement = plan.placement
        if placement is None or placement.ragged is not ragged or not self._files.readahead.cold:
            return False
        reading, asked = self._ahead
        begin = max(lo, asked) if reading is plan else lo
        # No further than there is room for; but what this batch needs, in any case.
        room = int(placement.dst[hi]) + self._files.readahead.max_bytes
        far = int(np.searchsorted(placement.dst, room, side="right")) - 1
        end = max(hi, min(plan.num_documents, hi + MAX_AHEAD_RUNS, far))
        if end > begin:
            self._ahead = (plan, end)
            self._files.ahead(placement.file, placement.src, placement.nbytes, begin, end)
        return True

    def _look_up_all(self, plan: DocumentPlan, ragged: bool) -> None:
        """Look up all documents of a plan, for the good of later batches.

        What cannot be read belongs to the batch that needs it: that one looks it up again, and raises it. The lock is
        then kept, so that the batches before it are not held up by more trials.
        """
        if not plan.looking_up.acquire(blocking=False):
            return
        try:
            plan.placement = run(self._operations.look_up(plan, 0, plan.num_documents, ragged), self._files)
        except (GuideLoomError, OSError):
            return
        plan.looking_up.release()
