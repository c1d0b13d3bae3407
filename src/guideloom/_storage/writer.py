"""The writers: one for each kind of data set.

An append packs first, then changes the shard, and writes full buffers out *before* it adds to them: so an append that
fails, in ``pack`` or on a full disk, leaves the shard as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import as_int, describe_dtype, packed_little_endian
from guideloom._base.errors import ArgumentError, PackError
from guideloom._base.protocols import (
    DocumentStorageFormat,
    DocumentStorageSyncWriterAbstract,
    StreamStorageFormat,
    StreamStorageSyncWriterAbstract,
    StreamWithMetaStorageFormat,
    UserBufferTypes,
    WriteMode,
)
from guideloom._storage.part import DocumentPart, SpanPart, StreamPart
from guideloom._storage.partfile import PartFile
from guideloom._storage.session import WriterSession


class StreamWriter(WriterSession[StreamPart], StreamStorageSyncWriterAbstract):
    """Appends records to the shards of a stream; see :class:`WriterSession` for the parameters and the guarantees."""

    _kind = "stream"
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
        elements = _elements(self._pack(data), self._element_dtype, self._format_name)
        part = self._parts.get(shard) if type(shard) is int else None
        is_new = False
        if part is None:
            part, is_new = self._part_of(shard)
        try:
            _add_elements(part.elements, elements, self._buffer_limit)
        except OSError:
            self._forget(part, is_new)
            raise
        part.count += elements.size


class DocumentWriter(WriterSession[DocumentPart], DocumentStorageSyncWriterAbstract):
    """Appends documents to shards; see :class:`WriterSession` for the parameters and the guarantees."""

    _kind = "document"
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
            encoded = _plain_bytes(encoded, self._format_name)
        part = self._parts.get(shard) if type(shard) is int else None
        is_new = False
        if part is None:
            part, is_new = self._part_of(shard)
        size = len(encoded)
        limit = self._buffer_limit
        payload = part.payload
        try:
            if len(payload.buffer) >= limit or len(part.offsets) * 8 >= limit:
                part.flush()
            if size >= limit:
                payload.write(memoryview(encoded))
            else:
                payload.buffer += encoded
        except OSError:
            self._forget(part, is_new)
            raise
        part.end += size
        part.offsets.append(part.end)
        part.count += 1


class StreamWithMetaWriter(WriterSession[SpanPart], StreamStorageSyncWriterAbstract):
    """Appends records with one payload a span; see :class:`WriterSession` for the parameters and the guarantees."""

    _kind = "stream_with_meta"
    _part_class = SpanPart

    def __init__(
        self,
        directory: Path,
        storage_format: StreamWithMetaStorageFormat,
        mode: WriteMode = "create",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._element_dtype = _dtype_of(storage_format)
        super().__init__(directory, storage_format, mode, metadata, dtype=self._element_dtype)
        self._size = storage_format.size
        self._pack = storage_format.pack

    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add its elements and payloads to ``shard``; when that fails, it is as it was before.

        Raises
        ------
        OutOfRangeError, ArgumentError, ShardExistsError, OSError
            As for streams.
        PackError
            Not exactly ``size(data)`` pairs and elements, a span without a payload, a key that comes back after
            another, or a payload or an array of a wrong type.
        """
        size = as_int(self._size(data), f"{self._format_name}.size(data)")
        if size < 0:
            raise PackError(f"{self._format_name}.size(data) must not be negative, got {size}")
        rows, blob, packed = _spans(self._pack(data), size, self._format_name)
        elements = _elements(packed, self._element_dtype, self._format_name)
        if elements.size != size:
            raise PackError(f"{self._format_name}.pack must return size(data) = {size} elements, got {elements.size}")
        part = self._parts.get(shard) if type(shard) is int else None
        is_new = False
        if part is None:
            part, is_new = self._part_of(shard)
        limit = self._buffer_limit
        try:
            if len(part.payload.buffer) >= limit or len(part.rows) * 8 >= limit:
                part.flush()
            _add_elements(part.elements, elements, limit)
        except OSError:
            self._forget(part, is_new)
            raise
        rows += np.array((part.count, part.payload.size), np.int64)
        part.rows.frombytes(rows.tobytes())
        part.payload.buffer += blob
        part.count += size


def _dtype_of(storage_format: Any) -> np.dtype[Any]:
    dtype = getattr(storage_format, "stream_dtype", None)
    if not isinstance(dtype, np.dtype):
        raise ArgumentError(
            "a stream format needs an attribute stream_dtype that is a numpy.dtype, "
            f"{type(storage_format).__name__} has {dtype!r}"
        )
    return packed_little_endian(dtype)


def _elements(packed: Any, dtype: np.dtype[Any], format_name: str) -> npt.NDArray[Any]:
    """Check what ``pack`` gave, and return it C-contiguous in the dtype on disk."""
    if type(packed) is not np.ndarray:
        if not isinstance(packed, np.ndarray) or isinstance(packed, np.ma.MaskedArray):
            raise PackError(
                f"{format_name}.pack must give a 1-D NumPy array of {describe_dtype(dtype)}, got "
                f"{type(packed).__name__}"
            )
        packed = np.asarray(packed)
    if packed.ndim != 1:
        raise PackError(f"{format_name}.pack must give a 1-D array, got shape {packed.shape}")
    if packed.dtype != dtype:
        try:
            same_values = packed_little_endian(packed.dtype) == dtype
        except ArgumentError:
            same_values = False
        if not same_values:
            raise PackError(
                f"{format_name}.pack must give elements of dtype {describe_dtype(dtype)}, got {packed.dtype}: "
                "convert them there"
            )
        packed = packed.astype(dtype)
    return packed if packed.flags.c_contiguous else np.ascontiguousarray(packed)


def _add_elements(file: PartFile, elements: npt.NDArray[Any], limit: int) -> None:
    raw = elements.view(np.uint8).data
    if raw.nbytes >= limit:
        file.write(raw)
    else:
        if len(file.buffer) >= limit:
            file.flush()
        file.buffer += raw


def _plain_bytes(encoded: Any, format_name: str) -> UserBufferTypes:
    """Check an encoded document or payload, and return it as bytes-like with ``len`` in bytes."""
    if isinstance(encoded, (bytes, bytearray)):
        return encoded
    if isinstance(encoded, memoryview):
        if encoded.c_contiguous and encoded.nbytes:
            return encoded.cast("B")
        return encoded.tobytes()
    raise PackError(f"{format_name}.pack must give bytes, a bytearray or a memoryview, got {type(encoded).__name__}")


class _Returning:
    """Iterates over a generator and keeps what it returns."""

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self.value: Any = None

    def pairs(self) -> Generator[Any, None, None]:
        self.value = yield from self._generator


def _spans(
    pairs: Generator[Any, None, Any], size: int, format_name: str
) -> tuple[npt.NDArray[np.int64], bytearray, Any]:
    """Find the spans in what ``pack`` yields.

    Returns
    -------
    rows : int64[R, 2]
        First element and payload offset of each span, from 0.
    blob : bytearray
        The payloads end to end.
    packed
        What ``pack`` returned.
    """
    if not hasattr(pairs, "__next__"):
        raise PackError(f"{format_name}.pack must be a generator of (key, payload), got {type(pairs).__name__}")
    rows: list[int] = []
    blob = bytearray()
    known = _Keys()
    previous: Any = known
    index = -1
    returning = _Returning(pairs)
    iterator = returning.pairs()
    try:
        for index, pair in islice(enumerate(iterator), size + 1):
            try:
                key, payload = pair
            except (TypeError, ValueError):
                raise PackError(
                    f"{format_name}.pack must yield pairs (key, payload or None), got {pair!r:.80}"
                ) from None
            try:
                if key is previous or key == previous:
                    continue
            except ValueError as error:
                before = "" if previous is known else f" with the one before it, {previous!r:.80}"
                raise PackError(
                    f"{format_name}.pack yields key {key!r:.80} at element {index}, which cannot be compared{before}: "
                    "use keys of one type, such as int or str"
                ) from error
            if index >= size:
                break
            if not known.add(key):
                raise PackError(
                    f"{format_name}.pack yields key {key!r:.80} again at element {index}, after another key: "
                    "a span is one run of elements"
                )
            if payload is None:
                raise PackError(
                    f"{format_name}.pack yields no payload with the first element of the span of key {key!r:.80} "
                    f"(element {index})"
                )
            rows.append(index)
            rows.append(len(blob))
            blob += payload if type(payload) is bytes else _plain_bytes(payload, format_name)
            previous = key
    finally:
        iterator.close()
    if index + 1 != size:
        found = f"only {index + 1}" if index + 1 < size else "more"
        raise PackError(f"{format_name}.pack must yield exactly size(data) = {size} pairs, got {found}")
    return np.array(rows, np.int64).reshape(-1, 2), blob, returning.value


class _Keys:
    """The keys that one append has used; those that cannot be hashed are compared one by one."""

    def __init__(self) -> None:
        self._hashed: set[Any] = set()
        self._others: list[Any] = []

    def add(self, key: Any) -> bool:
        """Add a key; False when it was there."""
        try:
            if key in self._hashed:
                return False
            self._hashed.add(key)
        except TypeError:
            if key in self._others:
                return False
            self._others.append(key)
        return True
