"""Reading documents: the offsets of many batches in one gather, then the payloads of each batch in one more.

Letters: N documents of a plan, B of a batch, S segments.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, CorruptDataError, GuideLoomError, OutOfRangeError
from guideloom._base.protocols import DocumentStorageFormat
from guideloom._kernels.windows import locate_items, place_payloads
from guideloom._read.operations import Operation
from guideloom._read.requests import Gather
from guideloom._read.streams import Empty
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_INT64: np.dtype[Any] = np.dtype(np.int64)
_UINT8: np.dtype[Any] = np.dtype(np.uint8)

PAYLOAD_ALIGNMENT = 16
"""Payloads start at multiples of this in the read buffer, so that views on them are aligned."""

MAX_TABLE_BYTES = 4 << 20
"""Most bytes of offsets kept in memory, of a data set that has no more of them (about half a million documents)."""

PAGE_BYTES = 4096
"""What looking up one document's offsets may cost where nothing is cached."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the payloads of documents ``[first, first + n)`` of a plan lie, and where they go, one behind the other.

    Parameters
    ----------
    first : int
    ragged : bool
        Whether payloads touch, as flat values do; else each starts at a multiple of ``PAYLOAD_ALIGNMENT``.
    file, src, nbytes, shard : int64[n]
    dst : int64[n+1]
        The last is the end.
    bounds : int64[2, n]
        Begin and end of each payload where it goes.
    values : int64[n+1]
        ``dst`` as a count of values, where payloads touch.
    """

    first: int
    ragged: bool
    file: I64
    src: I64
    nbytes: I64
    shard: I64
    dst: I64
    bounds: I64
    values: I64


@dataclass(slots=True)
class DocumentPlan:
    """Documents that are to be read: what is known without I/O, and what was looked up.

    Parameters
    ----------
    indexes, segment : int64[N]
        Global indexes, and the segment of each.
    placement : Placement or None
        Of all documents, once somebody looked them up.
    looking_up : lock
        Held by the thread that does so.
    """

    indexes: I64
    segment: I64
    placement: Placement | None = None
    looking_up: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_documents(self) -> int:
        """Documents of the plan, N."""
        return self.indexes.size


class DocumentOperations:
    """Operations on the documents of one open data set."""

    def __init__(self, catalog: Catalog, storage_format: DocumentStorageFormat) -> None:
        self.catalog = catalog
        self.format = storage_format
        self._payload_size = np.where(
            catalog.payload_file >= 0, catalog.sizes[catalog.payload_file] if catalog.sizes.size else 0, 0
        ).astype(np.int64)
        self.ragged_dtype: np.dtype[Any] | None = getattr(storage_format, "ragged_dtype", None)
        # The offsets of all segments one behind the other, once they are in memory. A segment has one more of them than
        # it has documents: those of document ``i`` stand at ``i + segment``.
        self._table: I64 | None = None
        self._table_at = catalog.starts[:-1] + np.arange(catalog.offsets_file.size)
        self._starts: list[int] = []  # the catalog's, for look-ups of one; with the table
        self._lookups = 0
        self._loading = threading.Lock()

    def prepare(self, indexes: I64) -> DocumentPlan:
        """Plan the reading of documents; pure: their offsets, which are on disk, are not looked up yet."""
        indexes = np.ascontiguousarray(indexes, np.int64)
        segment = np.empty(indexes.size, np.int64)
        bad = locate_items(self.catalog.starts, indexes, segment)
        if bad >= 0:
            raise OutOfRangeError(f"document index {int(indexes[bad])} is outside [0, {self.catalog.total})")
        return DocumentPlan(indexes, segment)

    def look_up(self, plan: DocumentPlan, lo: int, hi: int, ragged: bool) -> Operation[Placement]:
        """Read the offsets of documents ``[lo, hi)`` of a plan, check them, and lay the payloads out."""
        num = hi - lo
        segment = plan.segment[lo:hi]
        if self._table is None:
            yield from self._load_table()
        table = self._table
        if table is not None:
            row = plan.indexes[lo:hi] + segment
        else:
            table = np.empty(2 * num, np.int64)
            row = np.arange(0, 2 * num, 2, dtype=np.int64)
            if num:
                self._lookups += num
                yield Gather(
                    self.catalog.offsets_file[segment],
                    (plan.indexes[lo:hi] - self.catalog.starts[segment]) * 8,
                    row * 8,
                    np.full(num, 16, np.int64),
                    0,
                    num,
                    table.view(np.uint8),
                )
        src, nbytes = np.empty((2, num), np.int64)
        bounds = np.empty((2, num), np.int64)
        dst = np.empty(num + 1, np.int64)
        alignment = 1 if ragged else PAYLOAD_ALIGNMENT
        bad = place_payloads(table, row, segment, self._payload_size, alignment, src, nbytes, dst, bounds)
        if bad >= 0:
            self._refuse(int(segment[bad]), int(plan.indexes[lo + bad]), table[row[bad] : row[bad] + 2])
        values = dst
        if ragged and self.ragged_dtype is not None:
            self._require_whole_values(plan, lo, nbytes, self.ragged_dtype.itemsize)
            values = dst // self.ragged_dtype.itemsize
        file, shard = self.catalog.payload_file[segment], self.catalog.shard[segment]
        return Placement(lo, ragged, file, src, nbytes, shard, dst, bounds, values)

    def _load_table(self) -> Operation[None]:
        """Read the offsets of all documents into memory, so that none are read from then on.

        Only where they are few, and after as many look-ups as they have pages. What cannot be read belongs to whoever
        needs it: it is left alone then.
        """
        size = 8 * (self.catalog.total + self._table_at.size)
        if size > MAX_TABLE_BYTES or self._lookups * PAGE_BYTES < size or not self._loading.acquire(blocking=False):
            return
        # Never released: there is one trial, by one thread.
        counts = np.diff(self.catalog.starts)
        holds = np.flatnonzero(counts)
        table = np.zeros(self.catalog.total + counts.size, np.int64)
        nbytes = (counts[holds] + 1) * 8
        at = self._table_at[holds] * 8
        try:
            yield Gather(
                self.catalog.offsets_file[holds],
                np.zeros(holds.size, np.int64),
                at,
                nbytes,
                0,
                holds.size,
                table.view(np.uint8),
            )
        except (GuideLoomError, OSError):
            return
        self._starts = self.catalog.starts.tolist()
        self._table = table

    def _refuse(self, segment: int, index: int, pair: npt.NDArray[np.int64]) -> NoReturn:
        file = int(self.catalog.offsets_file[segment])
        local = index - int(self.catalog.starts[segment])
        raise CorruptDataError(
            f"expected offsets of document {local} to rise within [0, {int(self._payload_size[segment])}], found "
            f"{int(pair[0])} and {int(pair[1])}: restore the file, or write the shard anew",
            path=self.catalog.path_of(file),
            shard=int(self.catalog.shard[segment]),
            offset=local * 8,
        )

    def _require_whole_values(self, plan: DocumentPlan, lo: int, nbytes: I64, itemsize: int) -> None:
        odd = np.flatnonzero(nbytes % itemsize)
        if odd.size:
            bad = lo + int(odd[0])
            raise CorruptDataError(
                f"document {int(plan.indexes[bad])} has {int(nbytes[odd[0]])} bytes, "
                f"which is no multiple of its item size {itemsize}",
                shard=int(self.catalog.shard[int(plan.segment[bad])]),
            )

    def _placed(self, plan: DocumentPlan, lo: int, hi: int, ragged: bool) -> Operation[tuple[Placement, int, int]]:
        """Return a placement that has the documents ``[lo, hi)`` of a plan, and their range in it."""
        placement = plan.placement
        if placement is None or placement.ragged is not ragged:
            placement = yield from self.look_up(plan, lo, hi, ragged)
        return placement, lo - placement.first, hi - placement.first

    def samples(
        self, plan: DocumentPlan, lo: int, hi: int, asked: bool = False, empty: Empty = np.empty
    ) -> Operation[list[Any]]:
        """Read and unpack the documents ``[lo, hi)`` of a plan; ``asked``: see ``FileSet.gather``."""
        if lo == hi:
            return []
        at, begin, end = yield from self._placed(plan, lo, hi, False)
        buffer, shift = buffer_for(at, begin, end, empty)
        if buffer.size:
            yield Gather(at.file, at.src, at.dst, at.nbytes, begin, end, buffer, shift, asked)
        return self.unpacked(plan, at, begin, end, buffer, shift)

    def unpacked(self, plan: DocumentPlan, at: Placement, begin: int, end: int, buffer: U8, shift: int) -> list[Any]:
        """Unpack the documents ``[begin, end)`` of a plan's placement out of the buffer they were read into."""
        begins, ends = (at.bounds[:, begin:end] - shift).tolist()
        view = buffer.data
        unpack = self.format.unpack
        documents: list[Any] = []
        try:
            for first, last, shard in zip(begins, ends, at.shard[begin:end].tolist(), strict=True):
                documents.append(unpack(view[first:last], shard))
        except Exception as error:
            self.name_document(error, int(plan.indexes[at.first + begin + len(documents)]))
            raise
        return documents

    def name_document(self, error: Exception, index: int) -> None:
        """Note on what ``unpack`` raised which document it was given: the format is told its shard only."""
        error.add_note(f"while unpacking document {index} of {str(self.catalog.directory)!r}")

    def place_one(self, index: int) -> tuple[int, int, int, int] | None:
        """Say where the payload of one document in ``[0, total)`` lies: segment, file, begin and size.

        None where something must be read for that, or where its offsets are no range of the file.
        """
        table = self._table
        if table is None:
            return None
        segment = bisect_right(self._starts, index) - 1
        begin, end = table[index + segment : index + segment + 2].tolist()
        if not 0 <= begin <= end <= self._payload_size[segment]:
            return None
        return segment, int(self.catalog.payload_file[segment]), begin, end - begin

    def arrays(self, plan: DocumentPlan, lo: int, hi: int, empty: Empty, asked: bool = False) -> Operation[Any]:
        """Read the documents ``[lo, hi)`` of a plan as flat values and offsets: the buffer read into *is* the values.

        ``{"values": dtype[sum of lengths, ...], "offsets": int64[n + 1]}``, no per-document Python.
        """
        self._numeric_dtype()
        at, begin, end = yield from self._placed(plan, lo, hi, True)
        batch, out, shift = self.ragged_for(at, begin, end, empty)
        if out.size:
            yield Gather(at.file, at.src, at.dst, at.nbytes, begin, end, out, shift, asked)
        return batch

    def _numeric_dtype(self) -> np.dtype[Any]:
        dtype = self.ragged_dtype
        if dtype is None:
            raise ArgumentError(
                f"{type(self.format).__name__} has no numeric batch form: "
                "pass a collate_fn, or use DocumentNumpyFormat with one field"
            )
        return dtype

    def ragged_for(self, at: Placement, begin: int, end: int, empty: Empty) -> tuple[dict[str, Any], U8, int]:
        """Allocate the batch of the documents ``[begin, end)`` of a placement.

        Returns it, where its values are read into, and what is to be subtracted from ``dst`` there.
        """
        dtype = self._numeric_dtype()
        offsets = empty((end - begin + 1,), _INT64)
        known = at.values[begin : end + 1]
        np.subtract(known, known[0], out=offsets)
        values = empty((int(offsets[-1]), *dtype.shape), dtype.base)
        return {"values": values, "offsets": offsets}, values.reshape(-1).view(np.uint8), int(at.dst[begin])


def buffer_for(at: Placement, begin: int, end: int, empty: Empty) -> tuple[U8, int]:
    """Return a buffer for the documents ``[begin, end)`` of a placement, and what to subtract from ``dst`` in it."""
    shift = int(at.dst[begin])
    return empty((int(at.dst[end]) - shift,), _UINT8), shift
