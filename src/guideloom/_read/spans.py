"""Reading windows with the payloads of the spans they touch.

Three gathers a batch, whatever its size: elements, rows of the span table (not where it is small, and so in memory),
payloads.

Letters: B windows, L elements a window, R runs, S segments, P spans of all windows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import CorruptDataError, GuideLoomError
from guideloom._base.protocols import SpanStorageFormat, StreamWithMetaStorageFormat
from guideloom._kernels.spans import fill_spans, find_blocks, find_spans
from guideloom._plan.windows import WindowPlan, plan_windows
from guideloom._read.collector import COLLECTOR
from guideloom._read.operations import ArrayOperation, Operation
from guideloom._read.requests import Gather
from guideloom._read.streams import Empty, StreamOperations, WantedDtype, gather_windows, name_window
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]

MAX_SAMPLES = 1 << 22
"""Most entries of the span tables' samples kept in memory (8 bytes each); beyond it every second one is kept."""

ROW_BYTES = 16

MAX_TABLE_BYTES = 4 << 20
"""Most bytes of span tables kept in memory, of a data set that has no more of them (about 260,000 spans)."""

PAGE_BYTES = 4096
"""What looking up one run's rows may cost where nothing is cached."""


@dataclass(slots=True)
class SpanBatch:
    """Spans of windows.

    Parameters
    ----------
    index : int32[B, L]
        For each element its span within the window.
    bounds : int64[B+1]
        Spans of window ``b`` are ``bounds[b] .. bounds[b+1]``.
    offsets : int64[P+1]
        Payload ``p`` is ``payload[offsets[p]:offsets[p+1]]``.
    shard : int64[P]
    payload : uint8[M]
    """

    index: npt.NDArray[np.int32]
    bounds: I64
    offsets: I64
    shard: I64
    payload: npt.NDArray[np.uint8]


class SpanOperations:
    """Operations on the windows of one open stream with metadata, in the current or the published layout."""

    def __init__(
        self,
        catalog: Catalog,
        storage_format: StreamWithMetaStorageFormat | SpanStorageFormat,
        wanted: WantedDtype = None,
    ) -> None:
        self.catalog = catalog
        self.format = storage_format
        # Elements are read as a plain stream's are: only the published layout has a span number beside each.
        self._elements = StreamOperations(catalog, storage_format, wanted)  # type: ignore[arg-type]
        self.dtype = self._elements.dtype
        self._published = catalog.layout == "published-1"
        self._row_dtype = (
            np.dtype([("span", "<i4"), ("element", catalog.dtype)]) if self._published else self._elements.disk_dtype
        )
        sizes = catalog.sizes if catalog.sizes.size else np.zeros(1, np.int64)
        self._payload_size = np.where(catalog.payload_file >= 0, sizes[catalog.payload_file], 0).astype(np.int64)
        # All span tables one behind the other, once they are in memory; where each segment's begin.
        self._whole: I64 | None = None
        self._whole_at = np.cumsum(catalog.spans + 1) - (catalog.spans + 1)
        self._lookups = 0
        self._loading = threading.Lock()
        if not self._published:
            self._lay_out_samples()

    def with_dtype(self, wanted: WantedDtype) -> SpanOperations:
        """Return the same operations with elements in other dtypes."""
        return self if wanted is None else SpanOperations(self.catalog, self.format, wanted)

    def prepare(self, begins: I64, length: int) -> WindowPlan:
        """Plan the elements of windows; pure."""
        return plan_windows(self.catalog.starts, self.catalog.elements_file, begins, length, self._row_dtype.itemsize)

    # --- samples of the span tables ---------------------------------------------------------------

    def _lay_out_samples(self) -> None:
        stride = self.catalog.table_stride
        most = -(-self.catalog.spans // stride)
        keep = 1
        # One of each segment stays in any case, so more segments than that have more samples.
        while keep < most.max(initial=1) and int((-(-most // keep)).sum()) > MAX_SAMPLES:
            keep *= 2
        self._keep = keep
        self._stride = stride * keep
        self._sample_bounds = np.zeros(self.catalog.spans.size + 1, np.int64)
        np.cumsum(-(-self.catalog.spans // self._stride), out=self._sample_bounds[1:])
        self._samples = np.zeros(int(self._sample_bounds[-1]), np.int64)
        self._loaded = np.zeros(self.catalog.spans.size, np.int64)

    def _load_samples(self, segment: int) -> Operation[None]:
        rows, stride = int(self.catalog.spans[segment]), int(self.catalog.table_stride[segment])
        whole = np.empty(-(-rows // stride), np.int64)
        file = int(self.catalog.table_file[segment])
        one = np.zeros(1, np.int64)
        yield Gather(one + file, one + (rows + 1) * ROW_BYTES, one, one + whole.nbytes, 0, 1, whole.view(np.uint8))
        if whole.size and (whole[0] != 0 or (np.diff(whole) <= 0).any()):
            raise CorruptDataError(
                "expected the sample of the span table to rise from 0: restore the file, or write the shard anew",
                path=self.catalog.path_of(file),
                shard=int(self.catalog.shard[segment]),
                offset=(rows + 1) * ROW_BYTES,
            )
        # Two threads at once write the same values; the flag comes last.
        self._samples[self._sample_bounds[segment] : self._sample_bounds[segment + 1]] = whole[:: self._keep]
        self._loaded[segment] = 1

    # --- operations ---------------------------------------------------------------------------------

    def _spans(
        self, plan: WindowPlan, lo: int, hi: int, empty: Empty, rows: npt.NDArray[Any] | None = None
    ) -> Operation[SpanBatch]:
        """Read the spans of the windows ``[lo, hi)``; ``rows`` of the published layout hold a span number each."""
        begin, end = plan.bounds[lo], plan.bounds[hi]
        itemsize = self._row_dtype.itemsize
        segment = plan.segment[begin:end]
        first = plan.src[begin:end] // itemsize
        count = plan.nbytes[begin:end] // itemsize
        if rows is None:
            table, block, stop = yield from self._table(segment, first, count)
        else:
            table, block, stop = yield from self._published_table(rows, segment, first, count)
        num_runs = end - begin
        span_row, span_count, src, nbytes = np.empty((4, num_runs), np.int64)
        dst = np.empty(num_runs + 1, np.int64)
        num_spans = find_spans(
            table, block, stop, segment, first, count, self._payload_size, span_row, span_count, src, nbytes, dst
        )
        if num_spans < 0:
            bad = -1 - num_spans
            self._refuse(int(segment[bad]), int(first[bad]))
        payload = empty((int(dst[-1]),), np.dtype(np.uint8))
        if payload.size:
            yield Gather(self.catalog.payload_file[segment], src, dst, nbytes, 0, num_runs, payload)
        batch = SpanBatch(
            index=empty((hi - lo, plan.length), np.dtype(np.int32)),
            bounds=empty((hi - lo + 1,), np.dtype(np.int64)),
            offsets=empty((num_spans + 1,), np.dtype(np.int64)),
            shard=np.empty(num_spans, np.int64),
            payload=payload,
        )
        first_run = plan.first_run[lo : hi + 1] - begin
        fill_spans(
            table,
            span_row,
            span_count,
            first,
            count,
            self.catalog.shard[segment],
            first_run,
            batch.index,
            batch.bounds,
            batch.offsets,
            batch.shard,
        )
        return batch

    def _table(self, segment: I64, first: I64, count: I64) -> Operation[tuple[I64, I64, I64]]:
        """Read rows of the span tables, and say which of them bound the spans of each run."""
        if self._whole is None:
            yield from self._load_whole()
        whole = self._whole
        if whole is not None:
            block = self._whole_at[segment]
            return whole, block, block + self.catalog.spans[segment] + 1
        num_runs = segment.size
        self._lookups += num_runs
        block_row, block_size = np.empty((2, num_runs), np.int64)
        while True:
            missing = find_blocks(
                segment,
                first,
                count,
                self._sample_bounds,
                self._samples,
                self._loaded,
                self._stride,
                self.catalog.spans,
                block_row,
                block_size,
            )
            if missing < 0:
                break
            yield from self._load_samples(int(segment[missing]))
        bounds = np.zeros(num_runs + 1, np.int64)
        np.cumsum(block_size, out=bounds[1:])
        table = np.empty((int(bounds[-1]), 2), np.int64)
        if num_runs:
            yield Gather(
                self.catalog.table_file[segment],
                block_row * ROW_BYTES,
                bounds[:-1] * ROW_BYTES,
                block_size * ROW_BYTES,
                0,
                num_runs,
                table.reshape(-1).view(np.uint8),
            )
        return table, bounds[:-1], bounds[1:]

    def _load_whole(self) -> Operation[None]:
        """Read all span tables into memory, so that none are read from then on.

        Only where they are small, and after as many look-ups as they have pages. What cannot be read belongs to
        whoever needs it: it is left alone then.
        """
        rows = self.catalog.spans + 1
        size = int(rows.sum()) * ROW_BYTES
        if size > MAX_TABLE_BYTES or self._lookups * PAGE_BYTES < size or not self._loading.acquire(blocking=False):
            return
        # Never released: there is one trial, by one thread.
        holds = np.flatnonzero(self.catalog.spans)
        whole = np.zeros((size // ROW_BYTES, 2), np.int64)
        at, nbytes = self._whole_at[holds] * ROW_BYTES, rows[holds] * ROW_BYTES
        out = whole.reshape(-1).view(np.uint8)
        try:
            yield Gather(self.catalog.table_file[holds], np.zeros(holds.size, np.int64), at, nbytes, 0, holds.size, out)
        except (GuideLoomError, OSError):
            return
        self._whole = whole

    def _published_table(
        self, rows: npt.NDArray[Any], segment: I64, first: I64, count: I64
    ) -> Operation[tuple[I64, I64, I64]]:
        """Make the same rows out of the span numbers beside each element and the offsets of the published layout."""
        number = np.ascontiguousarray(rows["span"], np.int64).reshape(-1)
        at = np.zeros(count.size + 1, np.int64)
        np.cumsum(count, out=at[1:])
        starts = np.zeros(number.size, bool)
        starts[at[:-1]] = True
        starts[1:] |= number[1:] != number[:-1]
        where = np.flatnonzero(starts)
        run = np.searchsorted(at, where, side="right") - 1
        span = number[where]
        step = np.diff(span)
        same_run = np.diff(run) == 0
        bad = np.flatnonzero((span < 0) | (span >= self.catalog.spans[segment[run]]))
        broken = np.flatnonzero(same_run & (step != 1))
        if bad.size or broken.size:
            worst = int(bad[0]) if bad.size else int(broken[0]) + 1
            found, element = int(segment[run[worst]]), int(first[run[worst]] + where[worst] - at[run[worst]])
            raise CorruptDataError(
                f"expected the numbers of spans to rise one by one within [0, {int(self.catalog.spans[found])}), found "
                f"{int(span[worst])} beside element {element}: restore the file",
                path=self.catalog.path_of(int(self.catalog.elements_file[found])),
                shard=int(self.catalog.shard[found]),
                offset=element * self._row_dtype.itemsize,
            )
        # One row a span, and behind each run the row after its last span: offset of the next payload, end of the run.
        bounds = np.zeros(count.size + 1, np.int64)
        np.cumsum(np.bincount(run, minlength=count.size) + 1, out=bounds[1:])
        table = np.empty((int(bounds[-1]), 2), np.int64)
        row = np.arange(where.size) + run
        table[row, 0] = first[run] + where - at[run]
        last = bounds[1:] - 1
        table[last, 0] = first + count
        # Payload offsets: a run's spans are consecutive, so its offsets are one range of the index.
        num_rows = np.diff(bounds)
        offsets = np.empty(int(bounds[-1]), np.int64)
        first_span = span[np.searchsorted(run, np.arange(count.size))] if count.size else np.zeros(0, np.int64)
        if count.size:
            yield Gather(
                self.catalog.offsets_file[segment],
                first_span * 8,
                bounds[:-1] * 8,
                num_rows * 8,
                0,
                count.size,
                offsets.view(np.uint8),
            )
        table[:, 1] = offsets
        return table, bounds[:-1], bounds[1:]

    def _refuse(self, segment: int, element: int) -> NoReturn:
        file = int((self.catalog.offsets_file if self._published else self.catalog.table_file)[segment])
        raise CorruptDataError(
            f"the spans around element {element} do not rise, or reach outside the payload file: "
            "restore the file, or write the shard anew",
            path=self.catalog.path_of(file),
            shard=int(self.catalog.shard[segment]),
        )

    def samples(
        self, plan: WindowPlan, lo: int, hi: int, asked: bool = False, empty: Empty = np.empty
    ) -> Operation[list[Any]]:
        """Read and unpack the windows ``[lo, hi)`` of a plan."""
        rows = empty((hi - lo, plan.length), self._row_dtype)
        yield from gather_windows(plan, lo, hi, rows, asked)
        batch = yield from self._spans(plan, lo, hi, empty, rows if self._published else None)
        if self._published:
            rows = rows["element"]
        if rows.dtype != self.dtype:
            rows = rows.astype(self.dtype)
        unpack = self.format.unpack
        young = COLLECTOR.begin_batch()
        view = batch.payload.data
        cuts = batch.offsets.tolist()
        samples: list[Any] = []
        a = begin = 0
        # Payloads are cut out one window at a time: thousands of views alive at once are work for the collector.
        try:
            for row, index, b in zip(rows, batch.index, batch.bounds[1:].tolist(), strict=True):
                young.make_room(2 * (b - a))  # a view of each payload, and what is made of it
                payloads = []
                for end in cuts[a + 1 : b + 1]:  # some 20 % faster than a comprehension over pairs
                    payloads.append(view[begin:end])
                    begin = end
                samples.append(unpack(row, batch.shard[a:b], index, payloads))
                a = b
        except Exception as error:
            name_window(error, self.catalog, plan, lo + len(samples), self._row_dtype.itemsize)
            raise
        return samples

    def arrays(self, plan: WindowPlan, lo: int, hi: int, empty: Empty, asked: bool = False) -> ArrayOperation[Any]:
        """Read the windows ``[lo, hi)`` of a plan as arrays, each read or filled in place.

        A dict: the fields as in a plain stream (plain elements under ``"elements"``), ``"span_index"`` int32[n, L],
        ``"span_bounds"`` int64[n+1], ``"span_offsets"`` int64[P+1], ``"span_payload"`` uint8[M].
        """
        rows = None
        if self._published:
            rows = np.empty((hi - lo, plan.length), self._row_dtype)
            yield from gather_windows(plan, lo, hi, rows, asked)
            columns = self._columns(rows["element"], empty)
        else:
            columns = yield from self._elements.arrays(plan, lo, hi, empty, asked)
        batch = yield from self._spans(plan, lo, hi, empty, rows)
        result: dict[str, npt.NDArray[Any]] = columns if isinstance(columns, dict) else {"elements": columns}
        result.update(
            span_index=batch.index, span_bounds=batch.bounds, span_offsets=batch.offsets, span_payload=batch.payload
        )
        return result

    def _columns(self, elements: npt.NDArray[Any], empty: Empty) -> dict[str, npt.NDArray[Any]]:
        """Take elements [n, L] apart: one array a field."""
        dtype = self._elements.array_dtype
        columns = {"elements": elements} if dtype.names is None else {name: elements[name] for name in dtype.names}
        result = {}
        for name, column in columns.items():
            result[name] = empty(column.shape, dtype if dtype.names is None else dtype[name].base)
            np.copyto(result[name], column, casting="safe")
        return result
