"""The shapes of what users plug in and what GuideLoom hands out; published as :mod:`guideloom.types`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import octets

UserBufferTypes: TypeAlias = bytes | bytearray | memoryview
"""What a format's ``pack`` may give for encoded bytes."""

StorageBufferTypes: TypeAlias = bytearray | memoryview
"""What a backend's ``read`` may give, and what a format's ``unpack`` gets."""

Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]
"""A 1-D NumPy array."""

WriteMode: TypeAlias = Literal["create", "append", "overwrite"]


class SyncContextManager(ABC):
    """``open`` and ``close`` by hand, or ``with``."""

    @abstractmethod
    def open(self) -> None:
        """Acquire what is needed; a second call while open is a ``RuntimeError``."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe to call again, and before ``open``."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncContextManager(ABC):
    """``await open()`` and ``await close()`` by hand, or ``async with``."""

    @abstractmethod
    async def open(self) -> None:
        """Acquire what is needed."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything; safe to call again, and before ``open``."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


# --- formats -----------------------------------------------------------------------------------


@runtime_checkable
class StreamStorageFormat(Protocol):
    """How records become elements of a stream, and windows become samples."""

    stream_dtype: np.dtype[Any]

    def pack(self, data: Any) -> npt.NDArray[Any]:
        """Encode one record, ``data`` of whatever type the format takes, as a 1-D array of ``stream_dtype``."""
        ...

    def unpack(
        self, stream: npt.NDArray[Any], shard_lengths: npt.NDArray[np.int64], shards: npt.NDArray[np.int64]
    ) -> Any:
        """Decode one window.

        Parameters
        ----------
        stream : ndarray of ``stream_dtype``, shape (L,)
        shard_lengths : ndarray of int64, shape (R,)
            Number of elements of each run of elements that come from one shard, in read order.
        shards : ndarray of int64, shape (R,)
            The shard of each run; a window that wraps may name a shard again.
        """
        ...


@runtime_checkable
class StreamWithMetaStorageFormat(Protocol):
    """How records become elements with one variable-size payload a span, and windows become samples."""

    stream_dtype: np.dtype[Any]

    def size(self, data: Any) -> int:
        """Return the number of elements that ``pack`` will give for ``data``."""
        ...

    def pack(self, data: Any) -> Generator[tuple[Any, UserBufferTypes | None], None, npt.NDArray[Any]]:
        """Yield ``(key, payload or None)`` for each element, and return the element array.

        Parameters
        ----------
        data
            One record, of whatever type the format takes.

        Yields
        ------
        (key, payload or None)
            Exactly ``size(data)`` pairs, one an element in order. Equal neighbouring keys are one span; its first pair
            carries the payload (empty is legal), the others may give None. Keys are compared within this call only.
        """
        ...

    def unpack(
        self,
        stream: npt.NDArray[Any],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> Any:
        """Decode one window.

        Parameters
        ----------
        stream : ndarray of ``stream_dtype``, shape (L,)
        document_shard : ndarray of int64, shape (P,)
            Shard of each payload.
        document_index : ndarray of int32, shape (L,)
            For each element the index of its payload in ``document_data``.
        document_data : sequence of P buffers
            Payloads of the spans that the window touches, in order.
        """
        ...


@runtime_checkable
class SpanStorageFormat(Protocol):
    """Another form of :class:`StreamWithMetaStorageFormat`: it packs whole spans, with no Python for each element.

    A format that has both ``pack_spans`` and ``pack`` is asked for ``pack_spans``.
    """

    stream_dtype: np.dtype[Any]

    def pack_spans(
        self, data: Any
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.integer[Any]] | Sequence[int], Sequence[UserBufferTypes]]:
        """Encode one record.

        Parameters
        ----------
        data
            What was given to the writer's ``append``.

        Returns
        -------
        elements : ndarray of ``stream_dtype``, shape (L,)
        lengths : sequence or ndarray of integers, shape (S,)
            Elements of each span, in order: each at least 1, and L in all.
        payloads : sequence of S buffers
            One for each span; empty ones are legal.
        """
        ...

    def unpack(
        self,
        stream: npt.NDArray[Any],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> Any:
        """Decode one window; see :meth:`StreamWithMetaStorageFormat.unpack`."""
        ...


@runtime_checkable
class DocumentStorageFormat(Protocol):
    """How a document becomes bytes and back."""

    def pack(self, data: Any) -> UserBufferTypes:
        """Encode one document, ``data`` of whatever type the format takes; no bytes at all are legal."""
        ...

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> Any:
        """Decode one document.

        Parameters
        ----------
        encoded : bytearray or memoryview
            What ``pack`` gave; ``np.frombuffer(encoded, ...)`` makes no copy. It stays as it is as long as it is held.
        shard : int
            Where the document is from.
        """
        ...


StorageFormat: TypeAlias = StreamStorageFormat | StreamWithMetaStorageFormat | SpanStorageFormat | DocumentStorageFormat


# --- backends ----------------------------------------------------------------------------------


class IOSyncReaderAbstract(SyncContextManager):
    """One file of a backend.

    A subclass takes the path as its only argument and implements ``open``, ``close``, ``filesize`` and ``read``.
    It may also override ``read_into``, and set ``concurrent_reads`` when threads may read through one object at once,
    and open others; otherwise each is used by one at a time, and they are opened one by one. Any thread may close it.
    A missing file is a ``FileNotFoundError`` when the reader is made or opened, or when it is first asked.
    """

    concurrent_reads: bool = False

    @abstractmethod
    def filesize(self) -> int:
        """Size of the file in bytes."""

    @abstractmethod
    def read(self, offset: int, size: int) -> StorageBufferTypes:
        """Return exactly ``size`` bytes from ``offset``; a negative offset or a short read is an ``IndexError``."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` whole from ``offset``, or raise; the caller owns ``out`` and may reuse it afterwards."""
        out[:] = octets(self.read(offset, len(out)))


class IOAsyncReaderAbstract(AsyncContextManager):
    """The same for asyncio, as coroutines. Reads come many at once; one that is cancelled must not disturb others."""

    @abstractmethod
    async def filesize(self) -> int:
        """Size of the file in bytes."""

    @abstractmethod
    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        """Return exactly ``size`` bytes from ``offset``; a negative offset or a short read is an ``IndexError``."""


class IOReaderAbstract(ABC):
    """A way to read files: says whether it works here, and makes readers of single files."""

    @staticmethod
    @abstractmethod
    def is_supported() -> bool:
        """Whether this backend works on this machine."""

    @abstractmethod
    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        """Return a callable that makes a reader of the file at a path."""

    @abstractmethod
    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        """Return a callable that makes an asyncio reader of the file at a path."""


# --- storages ----------------------------------------------------------------------------------


class StreamStorageSyncWriterAbstract(SyncContextManager):
    """Appends records to numbered shards of a stream."""

    @abstractmethod
    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add its elements to ``shard``."""

    @abstractmethod
    def length(self, shard: int) -> int:
        """Elements this writer appended to ``shard`` since ``open``; ``KeyError`` for one it never touched."""


class StreamStorageSyncReaderAbstract(SyncContextManager):
    """Reads windows of a global stream."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Number of shards."""

    @property
    @abstractmethod
    def total_length(self) -> int:
        """Elements in all shards."""

    @abstractmethod
    def length(self, shard: int) -> int:
        """Elements in ``shard``."""

    @abstractmethod
    def read(self, global_index: int, global_length: int) -> Any:
        """Read the window ``[global_index, global_index + global_length)``.

        Parameters
        ----------
        global_index : int
            In ``[0, total_length)``, else an ``IndexError``.
        global_length : int
            At least 0, else an ``IndexError``. Behind the last element it goes on at the first, as often as needed.

        Returns
        -------
        object
            What the format's ``unpack`` makes of the window.
        """


class StreamStorageAsyncReaderAbstract(AsyncContextManager):
    """The methods of :class:`StreamStorageSyncReaderAbstract` as coroutines."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Number of shards."""

    @property
    @abstractmethod
    def total_length(self) -> int:
        """Elements in all shards."""

    @abstractmethod
    async def length(self, shard: int) -> int:
        """Elements in ``shard``."""

    @abstractmethod
    async def read(self, global_index: int, global_length: int) -> Any:
        """Read a window; see :meth:`StreamStorageSyncReaderAbstract.read`."""


class StreamStorageAbstract(ABC):
    """A directory of shards of a stream: makes writers and readers, opens nothing itself."""

    @abstractmethod
    def sync_writer(self, mode: WriteMode = "create") -> StreamStorageSyncWriterAbstract:
        """Return a writer, not yet open; ``mode`` says what becomes of a shard that is there."""

    @abstractmethod
    def sync_reader(self) -> StreamStorageSyncReaderAbstract:
        """Return a reader, not yet open."""

    @abstractmethod
    def async_reader(self) -> StreamStorageAsyncReaderAbstract:
        """Return an asyncio reader, not yet open."""


class DocumentStorageSyncWriterAbstract(SyncContextManager):
    """Appends documents to numbered shards."""

    @abstractmethod
    def append(self, shard: int, data: Any) -> None:
        """Encode ``data`` and add it to ``shard`` as one document."""

    @abstractmethod
    def length(self, shard: int) -> int:
        """Documents this writer appended to ``shard`` since ``open``; ``KeyError`` for one it never touched."""


class DocumentStorageSyncReaderAbstract(SyncContextManager):
    """Reads whole documents by global index."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Number of shards."""

    @property
    @abstractmethod
    def total_length(self) -> int:
        """Documents in all shards."""

    @abstractmethod
    def length(self, shard: int) -> int:
        """Documents in ``shard``."""

    @abstractmethod
    def read(self, global_index: int) -> Any:
        """Read document ``global_index``; one outside ``[0, total_length)`` is an ``IndexError``."""

    @abstractmethod
    def read_many(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Sequence[Any]:
        """Read the documents ``indexes`` in request order; any order, repeats and none at all are allowed."""


class DocumentStorageAsyncReaderAbstract(AsyncContextManager):
    """The methods of :class:`DocumentStorageSyncReaderAbstract` as coroutines."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Number of shards."""

    @property
    @abstractmethod
    def total_length(self) -> int:
        """Documents in all shards."""

    @abstractmethod
    async def length(self, shard: int) -> int:
        """Documents in ``shard``."""

    @abstractmethod
    async def read(self, global_index: int) -> Any:
        """Read document ``global_index``; one outside ``[0, total_length)`` is an ``IndexError``."""

    @abstractmethod
    async def read_many(self, indexes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Sequence[Any]:
        """Read the documents ``indexes`` in request order; any order, repeats and none at all are allowed."""


class DocumentStorageAbstract(ABC):
    """A directory of shards of documents: makes writers and readers, opens nothing itself."""

    @abstractmethod
    def sync_writer(self, mode: WriteMode = "create") -> DocumentStorageSyncWriterAbstract:
        """Return a writer, not yet open; ``mode`` says what becomes of a shard that is there."""

    @abstractmethod
    def sync_reader(self) -> DocumentStorageSyncReaderAbstract:
        """Return a reader, not yet open."""

    @abstractmethod
    def async_reader(self) -> DocumentStorageAsyncReaderAbstract:
        """Return an asyncio reader, not yet open."""
