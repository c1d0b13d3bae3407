"""Reading documents: the offsets of many batches in one gather, then the payloads of each batch in one more.

Letters: N documents of a plan, B of a batch, S segments.
"""

from __future__ import annotations

import threading
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
    """

    first: int
    ragged: bool
    file: I64
    src: I64
    nbytes: I64
    shard: I64
    dst: I64
    bounds: I64


@dataclass(slots=True)
class DocumentPlan:
    """Documents that are to be read: what is known without I/O, and what was looked up.

    Parameters
    ----------
    indexes, segment, local : int64[N]
        Global indexes, and the segment and the index in it of each.
    pair_src : int64[N]
        Byte offset of each document's pair in its segment's offsets file.
    placement : Placement or None
        Of all documents, once somebody looked them up.
    looking_up : lock
        Held by the thread that does so.
    """

    indexes: I64
    segment: I64
    local: I64
    pair_src: I64
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
        # The offsets of all segments one behind the other, once they are in memory; where each segment's begin.
        self._table: I64 | None = None
        self._table_at = catalog.starts[:-1] + np.arange(catalog.offsets_file.size)
        self._lookups = 0
        self._loading = threading.Lock()

    def prepare(self, indexes: I64) -> DocumentPlan:
        """Plan the reading of documents; pure: their offsets, which are on disk, are not looked up yet."""
        indexes = np.ascontiguousarray(indexes, np.int64)
        segment, local, pair_src = np.empty((3, indexes.size), np.int64)
        bad = locate_items(self.catalog.starts, indexes, segment, local, pair_src)
        if bad >= 0:
            raise OutOfRangeError(f"document index {int(indexes[bad])} is outside [0, {self.catalog.total})")
        return DocumentPlan(indexes, segment, local, pair_src)

    def look_up(self, plan: DocumentPlan, lo: int, hi: int, ragged: bool) -> Operation[Placement]:
        """Read the offsets of documents ``[lo, hi)`` of a plan, check them, and lay the payloads out."""
        num = hi - lo
        segment = plan.segment[lo:hi]
        pairs = np.empty((num, 2), np.int64)
        if self._table is None:
            yield from self._load_table()
        table = self._table
        if table is not None:
            row = self._table_at[segment] + plan.local[lo:hi]
            np.take(table, row, out=pairs[:, 0])
            np.take(table, row + 1, out=pairs[:, 1])
        elif num:
            self._lookups += num
            yield Gather(
                self.catalog.offsets_file[segment],
                plan.pair_src[lo:hi],
                np.arange(0, 16 * num, 16, dtype=np.int64),
                np.full(num, 16, np.int64),
                0,
                num,
                pairs.reshape(-1).view(np.uint8),
            )
        src, nbytes = np.empty((2, num), np.int64)
        dst = np.empty(num + 1, np.int64)
        alignment = 1 if ragged else PAYLOAD_ALIGNMENT
        bad = place_payloads(pairs, segment, self._payload_size, alignment, src, nbytes, dst)
        if bad >= 0:
            self._refuse(int(segment[bad]), int(plan.local[lo + bad]), pairs[bad])
        if ragged and self.ragged_dtype is not None:
            self._require_whole_values(plan, lo, nbytes, self.ragged_dtype.itemsize)
        bounds = np.stack((dst[:-1], dst[:-1] + nbytes))
        file, shard = self.catalog.payload_file[segment], self.catalog.shard[segment]
        return Placement(lo, ragged, file, src, nbytes, shard, dst, bounds)

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
        self._table = table

    def _refuse(self, segment: int, local: int, pair: npt.NDArray[np.int64]) -> NoReturn:
        file = int(self.catalog.offsets_file[segment])
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

    def samples(self, plan: DocumentPlan, lo: int, hi: int, asked: bool = False) -> Operation[list[Any]]:
        """Read and unpack the documents ``[lo, hi)`` of a plan; ``asked``: see ``FileSet.gather``."""
        if lo == hi:
            return []
        at, begin, end = yield from self._placed(plan, lo, hi, False)
        shift = int(at.dst[begin])
        buffer = np.empty(int(at.dst[end]) - shift, np.uint8)
        if buffer.size:
            yield Gather(at.file, at.src, at.dst, at.nbytes, begin, end, buffer, shift, asked)
        begins, ends = (at.bounds[:, begin:end] - shift).tolist()
        view = buffer.data
        unpack = self.format.unpack
        return [
            unpack(view[first:last], shard)
            for first, last, shard in zip(begins, ends, at.shard[begin:end].tolist(), strict=True)
        ]

    def arrays(self, plan: DocumentPlan, lo: int, hi: int, empty: Empty, asked: bool = False) -> Operation[Any]:
        """Read the documents ``[lo, hi)`` of a plan as flat values and offsets: the buffer read into *is* the values.

        ``{"values": dtype[sum of lengths, ...], "offsets": int64[n + 1]}``, no per-document Python.
        """
        dtype = self.ragged_dtype
        if dtype is None:
            raise ArgumentError(
                f"{type(self.format).__name__} has no numeric batch form: "
                "pass a collate_fn, or use DocumentNumpyFormat with one field"
            )
        at, begin, end = yield from self._placed(plan, lo, hi, True)
        shift = int(at.dst[begin])
        offsets = empty((hi - lo + 1,), np.dtype(np.int64))
        np.subtract(at.dst[begin : end + 1], shift, out=offsets)
        np.floor_divide(offsets, dtype.itemsize, out=offsets)
        values = empty(((int(at.dst[end]) - shift) // dtype.itemsize, *dtype.shape), dtype.base)
        if values.size:
            out = values.reshape(-1).view(np.uint8)
            yield Gather(at.file, at.src, at.dst, at.nbytes, begin, end, out, shift, asked)
        return {"values": values, "offsets": offsets}
