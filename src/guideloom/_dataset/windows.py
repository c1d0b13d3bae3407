"""A stream seen as windows of one length."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import as_int
from guideloom._base.dataset_protocols import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract
from guideloom._base.errors import ArgumentError, NotOpenError
from guideloom._base.protocols import (
    StreamStorageAbstract,
    StreamStorageAsyncReaderAbstract,
    StreamStorageSyncReaderAbstract,
)
from guideloom._dataset.indexing import item_index, slice_indexes
from guideloom._dataset.source import BatchSource, Empty, ItemwiseSource
from guideloom._dataset.stream_readers import Operations, StreamAsyncReader, StreamSyncReader
from guideloom._dataset.views import AsyncView, SyncView
from guideloom._plan.windows import WindowPlan
from guideloom._read.operations import run, run_async
from guideloom._read.streams import Straight, StreamOperations, WantedDtype, widened
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]
_UINT8 = np.dtype(np.uint8)

MAX_WINDOW_BYTES = (1 << 63) - 1


class StreamDataset(DatasetAbstract):
    """Windows of a stream; item ``i`` is ``[i * sequence_length, (i + 1) * sequence_length + overlap)``.

    Parameters
    ----------
    storage : StreamStorage, StreamWithMetaStorage, or your own StreamStorageAbstract
    sequence_length : int
        Elements from one window to the next, T.
    overlap : int, default 0
        Elements that a window shares with the next one. With 1 a window has T + 1 elements: inputs ``[:-1]`` and
        labels ``[1:]`` come out of one read, and every element but the first is a label exactly once. It may be T or
        more, as for evaluation by a sliding window: T stays the step, an element then lies in ``1 + overlap / T``
        windows on average, and an epoch reads that many times the data.
    dtype : dtype-like, or mapping field -> dtype-like, optional
        Wider dtype in which elements arrive (``<u2`` on disk, ``int64`` in the batch); must hold every value of the
        field. A single one is for the fields of its sort (``int64`` for integers, ``float64`` for floats), and is an
        error that names the field where it cannot hold one of them; other sorts, such as booleans, stay as they are.
        If no field is of its sort, it is for all numbers that it can hold. A mapping says it for each field.

    Notes
    -----
    ``len`` is ``(total - overlap) // sequence_length``; the trailing part is left out.
    """

    def __init__(
        self,
        storage: StreamStorageAbstract,
        sequence_length: int,
        *,
        overlap: int = 0,
        dtype: WantedDtype = None,
    ) -> None:
        self.storage = storage
        self.sequence_length = as_int(sequence_length, "sequence_length")
        self.overlap = as_int(overlap, "overlap")
        if self.sequence_length < 1:
            raise ArgumentError(f"sequence_length must be at least 1, got {self.sequence_length}")
        if self.overlap < 0:
            raise ArgumentError(f"overlap must be at least 0, got {self.overlap}")
        if not isinstance(storage, StreamStorageAbstract):
            raise ArgumentError(
                f"expected a StreamStorage or StreamWithMetaStorage, found {type(storage).__name__}: "
                "documents are a DocumentDataset"
            )
        self.dtype = dtype
        stream_dtype = getattr(getattr(storage, "storage_format", None), "stream_dtype", None)
        itemsize = max(1, stream_dtype.itemsize) if isinstance(stream_dtype, np.dtype) else 1
        if dtype is not None:
            if stream_dtype is None:
                raise ArgumentError(
                    f"dtype needs one of GuideLoom's own storages, found {type(storage).__name__}: leave it out, and "
                    "convert in collate_fn"
                )
            itemsize = max(itemsize, widened(np.dtype(stream_dtype), dtype).itemsize)
        if self.window_length > MAX_WINDOW_BYTES // itemsize:
            raise ArgumentError(
                f"sequence_length + overlap must be at most {MAX_WINDOW_BYTES // itemsize}, got {self.window_length}: "
                "more bytes than an address has room for"
            )

    @property
    def window_length(self) -> int:
        """Elements in a window: ``sequence_length + overlap``."""
        return self.sequence_length + self.overlap

    @property
    def view(self) -> dict[str, int | None]:
        """What a loader's state pins of this view."""
        return {"sequence_length": self.sequence_length, "overlap": self.overlap}

    def count(self, total: int) -> int:
        """Windows in a stream of ``total`` elements."""
        return max(0, total - self.overlap) // self.sequence_length

    def sync_reader(self) -> StreamDatasetSyncReader:
        """Return a reader, not yet open."""
        return StreamDatasetSyncReader(self)

    def async_reader(self) -> StreamDatasetAsyncReader:
        """Return an asyncio reader, not yet open."""
        return StreamDatasetAsyncReader(self)

    def __getitem__(self, index: object) -> NoReturn:
        raise NotOpenError("a data set opens nothing itself: use `with dataset.sync_reader() as reader: reader[index]`")

    def __repr__(self) -> str:
        return f"StreamDataset({self.storage!r}, {self.sequence_length}, overlap={self.overlap})"


class StreamDatasetSyncReader(SyncView[StreamStorageSyncReaderAbstract], DatasetSyncReaderAbstract):
    """The windows of an open stream; any number of threads may read at once."""

    def __init__(self, dataset: StreamDataset) -> None:
        super().__init__(dataset.storage.sync_reader)
        self._dataset = dataset

    def _source_on(self, reader: StreamStorageSyncReaderAbstract) -> BatchSource:
        if isinstance(reader, StreamSyncReader):
            return WindowSource(self._dataset, reader)
        return ItemwiseSource(self, self._dataset.view)

    def _count(self, reader: StreamStorageSyncReaderAbstract) -> int:
        return self._dataset.count(reader.total_length)

    def __getitem__(self, index: int | slice, /) -> Any:
        reader, source, size = self._require_open()
        if isinstance(index, slice):
            return self._items(reader, source, slice_indexes(index, size))
        return self._items(reader, source, np.array([item_index(index, size, "window")], np.int64))[0]

    def __getitems__(self, indexes: Sequence[int], /) -> list[Any]:
        """Read windows in request order, together, as a batch of the loader is read."""
        reader, source, size = self._require_open()
        checked = [item_index(index, size, "window") for index in indexes]
        return self._items(reader, source, np.array(checked, np.int64))

    def _items(self, reader: StreamStorageSyncReaderAbstract, source: BatchSource, indexes: I64) -> list[Any]:
        if isinstance(source, WindowSource):
            return source.samples(source.prepare(indexes), 0, indexes.size)
        step, length = self._dataset.sequence_length, self._dataset.window_length
        return [reader.read(index * step, length) for index in indexes.tolist()]

    def __repr__(self) -> str:
        opened = self._opened
        state = "closed" if opened is None else f"{opened[2]} windows"
        return f"StreamDatasetSyncReader({self._dataset!r}, {state})"


class StreamDatasetAsyncReader(AsyncView[StreamStorageAsyncReaderAbstract], DatasetAsyncReaderAbstract):
    """The windows of an open stream, for asyncio."""

    def __init__(self, dataset: StreamDataset) -> None:
        super().__init__(dataset.storage.async_reader)
        self._dataset = dataset
        # What is open, and the same in the data set's dtypes: it remembers span tables from read to read.
        self._operations: tuple[Operations, Operations] | None = None

    def __len__(self) -> int:
        return self._dataset.count(self._require_open().total_length)

    def __getitem__(self, index: int | slice, /) -> Awaitable[Any]:
        reader = self._require_open()
        size = self._dataset.count(reader.total_length)
        if isinstance(index, slice):
            return self._items(reader, slice_indexes(index, size))
        return self._item(reader, item_index(index, size, "window"))

    async def _item(self, reader: StreamStorageAsyncReaderAbstract, index: int) -> Any:
        return (await self._items(reader, np.array([index], np.int64)))[0]

    async def _items(self, reader: StreamStorageAsyncReaderAbstract, indexes: I64) -> Sequence[Any]:
        dataset = self._dataset
        step, length = dataset.sequence_length, dataset.window_length
        if isinstance(reader, StreamAsyncReader):
            on_disk, files = reader.opened
            known = self._operations
            if known is None or known[0] is not on_disk:
                self._operations = known = on_disk, on_disk.with_dtype(dataset.dtype)
            operations = known[1]
            plan = operations.prepare(indexes * step, length)
            return await run_async(operations.samples(plan, 0, indexes.size), files)
        return [await reader.read(index * step, length) for index in indexes.tolist()]


class WindowSource(BatchSource):
    """Batched access to the windows of one of our own open streams."""

    def __init__(self, dataset: StreamDataset, reader: StreamSyncReader) -> None:
        self._dataset = dataset
        self._reader = reader
        on_disk, self._files = reader.opened
        self._operations: Operations = on_disk.with_dtype(dataset.dtype)
        self._size = dataset.count(on_disk.catalog.total)
        plain = self._operations if isinstance(self._operations, StreamOperations) else None
        self._straight = None if plain is None else plain.straight
        self._unpacks_fields = plain is not None and plain.unpacks_fields
        # Plans, and up to which window the bytes of each were asked for ahead; the one asked for last comes first.
        self._asked: tuple[tuple[WindowPlan, int], ...] = ()
        self._following: tuple[WindowPlan, WindowPlan] | None = None

    @property
    def size(self) -> int:
        return self._size

    @property
    def identity(self) -> str:
        return self._reader.identity

    @property
    def snapshot(self) -> Catalog:
        return self._operations.catalog

    @property
    def view(self) -> dict[str, int | None]:
        return self._dataset.view

    @property
    def has_arrays(self) -> bool:
        return True

    def prepare(self, indexes: I64) -> WindowPlan:
        return self._operations.prepare(indexes * self._dataset.sequence_length, self._dataset.window_length)

    @property
    def waits(self) -> bool:
        return self._files.readahead.cold

    @property
    def desk(self) -> npt.NDArray[np.int64]:
        return self._files.desk

    def follow(self, prepared: WindowPlan, following: WindowPlan) -> None:
        self._following = (prepared, following)

    def samples(self, prepared: WindowPlan, lo: int, hi: int, empty: Empty = np.empty) -> list[Any]:
        asked = self._files.readahead.cold and self._ask_ahead(prepared, lo, hi)
        straight = self._straight
        if straight is None or not self._unpacks_fields:
            return run(self._operations.samples(prepared, lo, hi, asked, empty), self._files)
        name = straight.name
        return [{name: row} for row in self._gathered(straight, prepared, lo, hi, empty, asked)]

    def arrays(self, prepared: WindowPlan, lo: int, hi: int, empty: Empty) -> Any:
        asked = self._files.readahead.cold and self._ask_ahead(prepared, lo, hi)
        straight = self._straight
        if straight is None:
            return run(self._operations.arrays(prepared, lo, hi, empty, asked), self._files)
        return straight.named(self._gathered(straight, prepared, lo, hi, empty, asked))

    def _gathered(
        self, straight: Straight, prepared: WindowPlan, lo: int, hi: int, empty: Empty, asked: bool
    ) -> npt.NDArray[Any]:
        """Read windows without an operation, whose machinery would be a tenth of the 30 us of a small batch."""
        out = empty((hi - lo, prepared.length, *straight.shape), straight.dtype)
        flat = np.ndarray((hi - lo) * prepared.window_bytes, _UINT8, out)
        self._files.gather(
            prepared.file, prepared.src, prepared.dst, prepared.nbytes, prepared.bounds[lo], prepared.bounds[hi],
            flat, lo * prepared.window_bytes, asked,
        )  # fmt: skip
        return out

    def _ask_ahead(self, plan: WindowPlan, lo: int, hi: int) -> bool:
        """Ask for the windows from ``lo`` on to some way behind ``hi``; returns that it was done.

        Two threads at once may ask for some of them twice.
        """
        windows = self._files.readahead.reach(plan.window_bytes)
        self._ask(plan, lo, min(plan.num_windows, hi + windows))
        beyond = hi + windows - plan.num_windows
        if beyond > 0 and self._following is not None and self._following[0] is plan:
            following = self._following[1]
            self._ask(following, 0, min(following.num_windows, beyond))
        return True

    def _ask(self, plan: WindowPlan, begin: int, end: int) -> None:
        begin = max([begin, *(asked for known, asked in self._asked if known is plan)])
        if end > begin:
            self._asked = ((plan, end), *(entry for entry in self._asked if entry[0] is not plan))[:2]
            self._files.ahead(plan.file, plan.src, plan.nbytes, plan.bounds[begin], plan.bounds[end])
