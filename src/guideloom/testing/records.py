"""Small data sets whose records hold their own number, so that a test sees at once which record came, and from where.

Elements, documents and spans are numbered globally: over all shards, in order. What comes out of a read can be compared
with :mod:`guideloom.testing.oracles` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from guideloom._base.protocols import IOReaderAbstract, StorageBufferTypes, StreamStorageFormat, WriteMode

if TYPE_CHECKING:
    from guideloom._dataset.storages import DocumentStorage, StreamStorage, StreamWithMetaStorage

INT64 = np.dtype("<i8")


def record_values(dtype: npt.DTypeLike, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the elements ``start .. stop`` (half-open) of a stream whose elements hold their own number.

    Parameters
    ----------
    dtype : dtype
        Plain, structured, or structured with sub-arrays.
    start, stop : int
        Global indexes.

    Returns
    -------
    ndarray of ``dtype``, shape (stop - start,)
        Each field (and each item of a sub-array) is the index; in booleans its last bit, in integers too small for it
        the index modulo their number of values.
    """
    dtype = np.dtype(dtype)
    values = np.zeros(stop - start, dtype)
    ids = np.arange(start, stop, dtype=np.int64)
    for name in dtype.names or (None,):
        field = values if name is None else values[name]
        field[...] = _wrapped(field.dtype, ids).reshape(ids.shape + (1,) * (field.ndim - 1))
    return values


def _wrapped(dtype: np.dtype[Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    if dtype.kind == "b":
        return (ids & 1).astype(dtype)
    if dtype.kind in "iu":
        bits = min(63, 8 * dtype.itemsize - (dtype.kind == "i"))
        return (ids & ((1 << bits) - 1)).astype(dtype)
    return ids.astype(dtype)


# --- formats -----------------------------------------------------------------------------------


class StreamIds(NamedTuple):
    """A window as :class:`IdStreamFormat` unpacks it: the elements, and length and shard of each run."""

    elements: npt.NDArray[Any]
    shard_lengths: list[int]
    shards: list[int]


class IdStreamFormat:
    """A user's stream format that hands out everything it is given.

    Parameters
    ----------
    stream_dtype : dtype
        Any, structured or not.
    """

    def __init__(self, stream_dtype: npt.DTypeLike = INT64) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype(stream_dtype)

    def pack(self, data: Any) -> npt.NDArray[Any]:
        """Take the elements ``data`` as they are."""
        return np.asarray(data)

    def unpack(
        self, stream: npt.NDArray[Any], shard_lengths: npt.NDArray[np.int64], shards: npt.NDArray[np.int64]
    ) -> StreamIds:
        """Give the window and its runs; see :meth:`StreamStorageFormat.unpack`."""
        return StreamIds(stream, shard_lengths.tolist(), shards.tolist())


class DocumentIds(NamedTuple):
    """A document as :class:`IdDocumentFormat` unpacks it: its number, its shard and its size in bytes."""

    id: int
    shard: int
    size: int


class IdDocumentFormat:
    """Documents that hold their number, and bytes that follow from it; any other byte is a ``ValueError``.

    A record is ``(id, size)``. A document of size 0 holds nothing, and is unpacked with ``id`` -1.
    """

    def pack(self, data: tuple[int, int]) -> bytes:
        """Encode the document ``data``, its number and its size in bytes."""
        document, size = data
        return _payload(document, size)

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> DocumentIds:
        """Check every byte of ``encoded``, and give what it holds with its ``shard``."""
        return DocumentIds(_payload_id(encoded), shard, len(encoded))


class Span(NamedTuple):
    """A record of :class:`IdSpanFormat`: spans of one append, as ``(span number, its length in elements)``.

    Parameters
    ----------
    start : int
        Number of the first element.
    spans : sequence of (int, int)
        Number and length of each span.
    """

    start: int
    spans: Sequence[tuple[int, int]]


class SpanIds(NamedTuple):
    """A window as :class:`IdSpanFormat` unpacks it.

    ``elements`` as read; for each element its ``span`` and ``shard``; for each payload that was handed out its span
    (``payload_spans``), in order.
    """

    elements: npt.NDArray[Any]
    spans: list[int]
    shards: list[int]
    payload_spans: list[int]


class IdSpanFormat:
    """Elements that hold their number, under spans whose payload holds the span's number.

    Parameters
    ----------
    stream_dtype : dtype
        Any, structured or not.
    payload_size : callable
        Size in bytes of the payload of a span; at least 8.
    """

    def __init__(self, stream_dtype: npt.DTypeLike = INT64, payload_size: Callable[[int], int] | None = None) -> None:
        self.stream_dtype: np.dtype[Any] = np.dtype(stream_dtype)
        self._payload_size = payload_size or _varied_size

    def size(self, data: Span) -> int:
        """Number of elements of ``data``."""
        return sum(length for _, length in data.spans)

    def pack(self, data: Span) -> Generator[tuple[int, bytes | None], None, npt.NDArray[Any]]:
        """Give the payload of each span of ``data`` with its first element only."""
        for span, length in data.spans:
            for i in range(length):
                yield span, None if i else _payload(span, self._payload_size(span))
        return record_values(self.stream_dtype, data.start, data.start + self.size(data))

    def unpack(
        self,
        stream: npt.NDArray[Any],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> SpanIds:
        """Check dtypes and every payload byte; see :meth:`StreamWithMetaStorageFormat.unpack`."""
        if document_shard.dtype != np.int64 or document_index.dtype != np.int32:
            raise TypeError(f"expected int64 and int32, found {document_shard.dtype} and {document_index.dtype}")
        spans = [_payload_id(payload) for payload in document_data]
        if len(spans) != len(document_shard) or len(document_index) != len(stream):
            raise ValueError(
                f"{len(spans)} payloads, {len(document_shard)} shards; {len(document_index)} of {len(stream)}"
            )
        return SpanIds(
            stream, [spans[i] for i in document_index], [int(document_shard[i]) for i in document_index], spans
        )


def _varied_size(number: int) -> int:
    return 8 + number % 5


def _payload(number: int, size: int) -> bytes:
    """``size`` bytes that follow from ``number``: the number itself, then a run of its low byte."""
    return (number.to_bytes(8, "little", signed=True) + bytes([number & 0xFF]) * max(0, size - 8))[:size]


def _payload_id(encoded: StorageBufferTypes) -> int:
    if not isinstance(encoded, bytearray | memoryview):
        raise TypeError(f"expected a bytearray or a memoryview, found {type(encoded).__name__}")
    data = np.frombuffer(encoded, np.uint8).tobytes()
    number = int.from_bytes(data[:8], "little", signed=True) if data else -1
    if data != _payload(number, len(data)):
        raise ValueError(f"the payload of {len(data)} bytes that says it is number {number} holds other bytes")
    return number


# --- data sets ---------------------------------------------------------------------------------


def make_stream(
    directory: Path,
    counts: Sequence[int],
    dtype: npt.DTypeLike = INT64,
    *,
    stream_format: StreamStorageFormat | None = None,
    read_interface: IOReaderAbstract | None = None,
    parts: int = 1,
) -> StreamStorage:
    """Write a stream whose elements hold their global index, and return its storage.

    Parameters
    ----------
    directory : Path
        Folder to write; made when it is not there.
    counts : sequence of int
        Elements of each shard; zeros are empty shards.
    dtype : dtype
        See :func:`record_values`.
    stream_format : StreamStorageFormat, optional
        How to store and hand out; ``StreamNumpyFormat(dtype)`` for a structured dtype, else :class:`IdStreamFormat`.
    read_interface : IOReaderAbstract, optional
        The storage's backend.
    parts : int
        Sessions that each shard is written in.
    """
    from guideloom._dataset.storages import StreamStorage
    from guideloom._format.stream_numpy import StreamNumpyFormat

    dtype = np.dtype(dtype)
    structured = dtype.names is not None
    if stream_format is None:
        stream_format = StreamNumpyFormat(dtype) if structured else IdStreamFormat(dtype)
    storage = StreamStorage(directory, stream_format, read_interface=read_interface)
    as_fields = structured and not isinstance(stream_format, IdStreamFormat)

    def record(start: int, stop: int) -> Any:
        values = record_values(dtype, start, stop)
        return {name: values[name] for name in dtype.names or ()} if as_fields else values

    _write(storage, counts, parts, lambda writer, shard, start, stop: writer.append(shard, record(start, stop)))
    return storage


def make_documents(
    directory: Path,
    counts: Sequence[int],
    *,
    size: Callable[[int], int] | None = None,
    read_interface: IOReaderAbstract | None = None,
    parts: int = 1,
) -> DocumentStorage:
    """Write documents that hold their global index, with :class:`IdDocumentFormat`, and return their storage.

    Parameters
    ----------
    directory, counts, read_interface, parts
        See :func:`make_stream`; counts are of documents.
    size : callable, optional
        Size in bytes of each document by its index; sizes vary from 8 to 12 when not given.
    """
    from guideloom._dataset.storages import DocumentStorage

    storage = DocumentStorage(directory, IdDocumentFormat(), read_interface=read_interface)
    size_of = size or _varied_size

    def add(writer: Any, shard: int, start: int, stop: int) -> None:
        writer.create(shard)
        for document in range(start, stop):
            writer.append(shard, (document, size_of(document)))

    _write(storage, counts, parts, add)
    return storage


def make_spans(
    directory: Path,
    span_lengths: Sequence[Sequence[int]],
    dtype: npt.DTypeLike = INT64,
    *,
    payload_size: Callable[[int], int] | None = None,
    read_interface: IOReaderAbstract | None = None,
    per_append: int = 3,
) -> StreamWithMetaStorage:
    """Write a stream with metadata, with :class:`IdSpanFormat`, and return its storage.

    Parameters
    ----------
    directory, dtype, read_interface
        See :func:`make_stream`.
    span_lengths : sequence of sequences of int
        Lengths in elements of the spans of each shard, each at least 1; an empty sequence is an empty shard.
    payload_size : callable, optional
        See :class:`IdSpanFormat`.
    per_append : int
        Spans that one ``append`` brings.
    """
    from guideloom._dataset.storages import StreamWithMetaStorage

    storage = StreamWithMetaStorage(directory, IdSpanFormat(dtype, payload_size), read_interface=read_interface)
    element = span = 0
    with storage.sync_writer() as writer:
        for shard, lengths in enumerate(span_lengths):
            if not lengths:
                writer.append(shard, Span(element, []))
            for i in range(0, len(lengths), per_append):
                some = [(span + j, length) for j, length in enumerate(lengths[i : i + per_append])]
                record = Span(element, some)
                writer.append(shard, record)
                element += sum(length for _, length in some)
                span += len(some)
    return storage


def _write(storage: Any, counts: Sequence[int], parts: int, add: Callable[[Any, int, int, int], None]) -> None:
    """Write every shard in ``parts`` sessions, each session a few elements of each shard."""
    starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    for part in range(parts):
        mode: WriteMode = "append" if part else "create"
        with storage.sync_writer(mode=mode) as writer:
            for shard, (start, stop) in enumerate(pairwise(starts.tolist())):
                lo = start + (stop - start) * part // parts
                hi = start + (stop - start) * (part + 1) // parts
                # Two appends a session: a shard is more than one append.
                middle = lo + (hi - lo) // 2
                add(writer, shard, lo, middle)
                add(writer, shard, middle, hi)
