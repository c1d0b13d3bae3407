"""Reading documents: offsets of a whole batch, then its payloads, each in one gather.

Letters: B documents, S segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, CorruptDataError, OutOfRangeError
from guideloom._base.protocols import DocumentStorageFormat
from guideloom._kernels.windows import locate_items, place_payloads
from guideloom._read.asks import Gather
from guideloom._read.operations import Operation
from guideloom._read.streams import Empty
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]

PAYLOAD_ALIGNMENT = 16
"""Payloads start at multiples of this in the read buffer, so that views on them are aligned."""


class DocumentOperations:
    """Operations on the documents of one open data set."""

    def __init__(self, catalog: Catalog, storage_format: DocumentStorageFormat) -> None:
        self.catalog = catalog
        self.format = storage_format
        self._payload_size = np.where(
            catalog.payload_file >= 0, catalog.sizes[catalog.payload_file] if catalog.sizes.size else 0, 0
        ).astype(np.int64)
        self.ragged_dtype: np.dtype[Any] | None = getattr(storage_format, "ragged_dtype", None)

    def prepare(self, indexes: I64) -> I64:
        """Return the indexes as they are: the plan of a batch of documents needs their offsets, which are on disk."""
        return np.ascontiguousarray(indexes, np.int64)

    def payloads(self, indexes: I64, alignment: int) -> Operation[tuple[npt.NDArray[np.uint8], I64, I64, I64]]:
        """Read payloads into one buffer.

        Returns
        -------
        buffer : uint8[M]
        dst : int64[B+1]
            Where each payload starts in the buffer; the last is M.
        nbytes : int64[B]
        segment : int64[B]
        """
        num = indexes.size
        segment, local, src, nbytes = np.empty((4, num), np.int64)
        bad = locate_items(self.catalog.starts, indexes, segment, local, src)
        if bad >= 0:
            raise OutOfRangeError(f"document index {int(indexes[bad])} is outside [0, {self.catalog.total})")
        pairs = np.empty((num, 2), np.int64)
        at = np.arange(0, 16 * num, 16, dtype=np.int64)
        yield Gather(
            self.catalog.offsets_file[segment],
            src,
            at,
            np.full(num, 16, np.int64),
            0,
            num,
            pairs.reshape(-1).view(np.uint8),
        )
        dst = np.empty(num + 1, np.int64)
        bad = place_payloads(pairs, segment, self._payload_size, alignment, src, nbytes, dst)
        if bad >= 0:
            self._refuse(int(segment[bad]), int(local[bad]), pairs[bad])
        buffer = np.empty(int(dst[-1]), np.uint8)
        if buffer.size:
            yield Gather(self.catalog.payload_file[segment], src, dst, nbytes, 0, num, buffer)
        return buffer, dst, nbytes, segment

    def _refuse(self, segment: int, local: int, pair: npt.NDArray[np.int64]) -> None:
        file = int(self.catalog.offsets_file[segment])
        raise CorruptDataError(
            f"expected offsets of document {local} to rise within [0, {int(self._payload_size[segment])}], found "
            f"{int(pair[0])} and {int(pair[1])}: restore the file, or write the shard anew",
            path=self.catalog.path_of(file),
            shard=int(self.catalog.shard[segment]),
            offset=local * 8,
        )

    def samples(self, indexes: I64, lo: int, hi: int) -> Operation[list[Any]]:
        """Read and unpack the documents ``indexes[lo:hi]``."""
        wanted = indexes[lo:hi]
        if not wanted.size:
            return []
        buffer, dst, nbytes, segment = yield from self.payloads(wanted, PAYLOAD_ALIGNMENT)
        view = buffer.data
        begins = dst[:-1]
        unpack = self.format.unpack
        return [
            unpack(view[begin:end], shard)
            for begin, end, shard in zip(
                begins.tolist(), (begins + nbytes).tolist(), self.catalog.shard[segment].tolist(), strict=True
            )
        ]

    def arrays(self, indexes: I64, lo: int, hi: int, empty: Empty) -> Operation[Any]:
        """Read the documents ``indexes[lo:hi]`` as flat values and offsets.

        ``{"values": dtype[sum of lengths, ...], "offsets": int64[n + 1]}``, no per-document Python.
        """
        dtype = self.ragged_dtype
        if dtype is None:
            raise ArgumentError(
                f"{type(self.format).__name__} has no numeric batch form: "
                "pass a collate_fn, or use DocumentNumpyFormat with one field"
            )
        wanted = indexes[lo:hi]
        offsets = empty((hi - lo + 1,), np.dtype(np.int64))
        buffer, dst, nbytes, segment = yield from self.payloads(wanted, 1)
        odd = np.flatnonzero(nbytes % dtype.itemsize)
        if odd.size:
            bad = int(odd[0])
            raise CorruptDataError(
                f"document {int(wanted[bad])} has {int(nbytes[bad])} bytes, "
                f"which is no multiple of its item size {dtype.itemsize}",
                shard=int(self.catalog.shard[int(segment[bad])]),
            )
        np.floor_divide(dst, dtype.itemsize, out=offsets)
        values = empty((int(offsets[-1]), *dtype.shape), dtype.base)
        values.reshape(-1).view(np.uint8)[:] = buffer
        return {"values": values, "offsets": offsets}
