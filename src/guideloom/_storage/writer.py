"""The writers: one for each kind of data set.

An append packs first, then changes the shard, and writes full buffers out *before* it adds to them: so an append that
fails, in ``pack`` or on a full disk, leaves the shard as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import as_int, packed_little_endian
from guideloom._base.errors import ArgumentError, PackError
from guideloom._base.protocols import (
    DocumentStorageFormat,
    DocumentStorageSyncWriterAbstract,
    SpanStorageFormat,
    StreamStorageFormat,
    StreamStorageSyncWriterAbstract,
    StreamWithMetaStorageFormat,
    UserBufferTypes,
    WriteMode,
)
from guideloom._storage.packed import checked_elements, paired_spans, plain_bytes, whole_spans
from guideloom._storage.part import DocumentPart, SpanPart, StreamPart
from guideloom._storage.partfile import PartFile
from guideloom._storage.session import WriterSession

_OFFSET_BYTES = 8
_OFFSETS_SHARE = 16
"""Offsets are written out when they take one part in so many of the buffers, and not with each buffer of payloads."""


class StreamWriter(WriterSession[StreamPart], StreamStorageSyncWriterAbstract):
    """Appends records to the shards of a stream; see :class:`WriterSession` for the parameters and the guarantees."""

    _part_class = StreamPart

    def __init__(
        self,
        directory: Path,
        storage_format: StreamStorageFormat,
        mode: WriteMode = "create",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._element_dtype = _dtype_of(storage_format)
        super().__init__(directory, storage_format, mode, metadata, dtype=self._element_dtype)
        self._pack = storage_format.pack

    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add its elements to ``shard``; when that fails, the shard is as it was before.

        Raises
        ------
        OutOfRangeError, ArgumentError
            A negative shard number; no integer.
        ShardExistsError
            The shard is committed, and the mode is "create".
        PackError
            ``pack`` gave something other than a 1-D array of the format's dtype.
        OSError
            The disk is full, for example; with the path.
        """
        elements = checked_elements(self._pack(data), self._element_dtype, self._format_name)
        with self._lock:
            part = self._parts.get(shard) if type(shard) is int else None
            is_new = False
            if part is None:
                part, is_new = self._part_of(shard)
            try:
                _add_elements(part.elements, elements, self._buffer_limit)
                part.count += elements.size
            except BaseException as error:
                self._append_failed(part, is_new, error)
                raise


class DocumentWriter(WriterSession[DocumentPart], DocumentStorageSyncWriterAbstract):
    """Appends documents to shards; see :class:`WriterSession` for the parameters and the guarantees."""

    _part_class = DocumentPart

    def __init__(
        self,
        directory: Path,
        storage_format: DocumentStorageFormat,
        mode: WriteMode = "create",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory, storage_format, mode, metadata)
        self._pack = storage_format.pack

    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add it to ``shard`` as one document; when that fails, the shard is as it was before.

        Raises
        ------
        OutOfRangeError, ArgumentError, ShardExistsError, OSError
            As for streams.
        PackError
            ``pack`` gave something other than bytes, a bytearray or a memoryview.
        """
        encoded = self._pack(data)
        if type(encoded) is not bytes:
            encoded = plain_bytes(encoded, self._format_name)
        part = None
        is_new = False
        size = len(encoded)
        lock = self._lock
        try:
            # Not with a `with`, which takes a tenth of the time that a small document takes.
            lock.acquire()
            part = self._parts.get(shard) if type(shard) is int else None
            if part is None:
                part, is_new = self._part_of(shard)
            room = part.room - size - _OFFSET_BYTES
            if room >= 0:
                part.payload.buffer.write(encoded)
            else:
                room = self._add_where_full(part, encoded)
            part.sizes.append(size)
            part.room = room
        except BaseException as error:
            if part is not None:
                self._append_failed(part, is_new, error)
            raise
        finally:
            try:  # noqa: SIM105  costs nothing, where `suppress` costs as much as the lock
                lock.release()
            except RuntimeError:
                # An interrupt struck while this thread waited for its turn.
                pass

    def _add_where_full(self, part: DocumentPart, encoded: UserBufferTypes) -> int:
        """Write out what the buffers cannot hold besides a document, add it, and return the room that it leaves."""
        limit = self._buffer_limit
        if part.payload.pending:
            part.payload.flush()
        if len(part.sizes) * _OFFSET_BYTES >= limit // _OFFSETS_SHARE:
            part.flush_offsets()
        left = limit - (len(part.sizes) + 1) * _OFFSET_BYTES
        if len(encoded) > left:
            part.payload.write(memoryview(encoded))
            return left
        part.payload.buffer.write(encoded)
        return left - len(encoded)


class StreamWithMetaWriter(WriterSession[SpanPart], StreamStorageSyncWriterAbstract):
    """Appends records with one payload a span; see :class:`WriterSession` for the parameters and the guarantees."""

    _part_class = SpanPart

    def __init__(
        self,
        directory: Path,
        storage_format: StreamWithMetaStorageFormat | SpanStorageFormat,
        mode: WriteMode = "create",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._element_dtype = _dtype_of(storage_format)
        super().__init__(directory, storage_format, mode, metadata, dtype=self._element_dtype)
        self._format: Any = storage_format
        self._packs_spans = hasattr(storage_format, "pack_spans")

    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add its elements and payloads to ``shard``; when that fails, it is as it was before.

        Raises
        ------
        OutOfRangeError, ArgumentError, ShardExistsError, OSError
            As for streams.
        PackError
            Not exactly ``size(data)`` pairs and elements, a span without a payload, a key that comes back after
            another, or a payload or an array of a wrong type. From ``pack_spans``: lengths that are no integers from 1
            or do not sum to the number of elements, or not one payload for each.
        """
        elements, rows, blob = self._packed(data)
        with self._lock:
            part = self._parts.get(shard) if type(shard) is int else None
            is_new = False
            if part is None:
                part, is_new = self._part_of(shard)
            payload = part.payload
            limit = self._buffer_limit
            try:
                if payload.pending + len(blob) > limit or len(part.rows) * 8 >= limit:
                    part.flush()
                _add_elements(part.elements, elements, limit)
                rows += (part.count, payload.size)
                part.rows.frombytes(rows.data.cast("B") if rows.size else b"")
                payload.buffer.write(blob)
                part.count += elements.size
            except BaseException as error:
                self._append_failed(part, is_new, error)
                raise

    def _packed(self, data: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], bytes | bytearray]:
        """Elements, rows of the span table and payloads; the rows are counted from 0."""
        name = self._format_name
        if self._packs_spans:
            return whole_spans(self._format.pack_spans(data), self._element_dtype, name)
        size = as_int(self._format.size(data), f"{name}.size(data)")
        if size < 0:
            raise PackError(f"{name}.size(data) must not be negative, got {size}")
        packed, rows, blob = paired_spans(self._format.pack(data), size, name)
        elements = checked_elements(packed, self._element_dtype, name)
        if elements.size != size:
            raise PackError(f"{name}.pack must return size(data) = {size} elements, got {elements.size}")
        return elements, rows, blob


def _dtype_of(storage_format: Any) -> np.dtype[Any]:
    dtype = getattr(storage_format, "stream_dtype", None)
    if not isinstance(dtype, np.dtype):
        raise ArgumentError(
            "a stream format needs an attribute stream_dtype that is a numpy.dtype, "
            f"{type(storage_format).__name__} has {dtype!r}"
        )
    packed = packed_little_endian(dtype)
    # The format's own object where it is as good: what ``pack`` gives is then known by identity.
    return dtype if dtype == packed else packed


def _add_elements(file: PartFile, elements: npt.NDArray[Any], limit: int) -> None:
    size = elements.nbytes
    if size >= limit:
        file.write(elements.view(np.uint8).data)
    else:
        if file.pending + size > limit:
            file.flush()
        raw: Any = elements  # Any: NumPy does not tell type checkers that an array is a buffer.
        file.buffer.write(raw)
