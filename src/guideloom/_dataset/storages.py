"""The storages: a directory, a format and a backend, which make writers and readers and open nothing themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np

from guideloom._base.errors import ArgumentError
from guideloom._base.protocols import (
    DocumentStorageAbstract,
    DocumentStorageFormat,
    IOReaderAbstract,
    SpanStorageFormat,
    StorageFormat,
    StreamStorageAbstract,
    StreamStorageFormat,
    StreamWithMetaStorageFormat,
    WriteMode,
)
from guideloom._dataset.document_readers import DocumentAsyncReader, DocumentSyncReader
from guideloom._dataset.stream_readers import StreamAsyncReader, StreamSyncReader
from guideloom._io.seek import SeekIO
from guideloom._storage.catalog import Kind
from guideloom._storage.writer import DocumentWriter, StreamWithMetaWriter, StreamWriter


class _Storage:
    """What the storages share: arguments, their checks, and the local directory for writing."""

    kind: ClassVar[Kind]
    _needs: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        storage_dir: PurePath,
        storage_format: StorageFormat,
        read_interface: IOReaderAbstract | None = None,
        *,
        verify: bool = False,
    ) -> None:
        if isinstance(storage_dir, str):
            raise ArgumentError(f"storage_dir must be a pathlib.Path, found the str {storage_dir!r}: use Path()")
        if not isinstance(storage_dir, PurePath):
            raise ArgumentError(f"storage_dir must be a pathlib.Path, found {type(storage_dir).__name__}")
        if isinstance(storage_format, type):
            name = storage_format.__name__
            raise ArgumentError(f"expected a format object, found the class {name}: call it first")
        if unfit := self._why_unfit(storage_format):
            raise ArgumentError(
                f"expected a format for {type(self).__name__}, found {type(storage_format).__name__}, which {unfit}: "
                f"{_what_to_do(storage_format, type(self).__name__)}"
            )
        if read_interface is None:
            read_interface = SeekIO()
        if isinstance(read_interface, type):
            name = read_interface.__name__
            raise ArgumentError(f"expected a backend object, found the class {name}: call it first")
        if not (hasattr(read_interface, "sync_reader") and hasattr(read_interface, "is_supported")):
            raise ArgumentError(f"expected a backend such as SeekIO(), found {type(read_interface).__name__}")
        self.storage_dir = storage_dir
        self.storage_format = storage_format
        self.read_interface = read_interface
        self.verify = bool(verify)

    def _needed_of(self, storage_format: StorageFormat) -> tuple[str, ...]:
        """Names that the format must have."""
        return self._needs

    def _why_unfit(self, storage_format: StorageFormat) -> str:
        """What tells that a format is not one for this storage; empty when nothing does."""
        missing = [name for name in self._needed_of(storage_format) if not hasattr(storage_format, name)]
        return f"lacks {', '.join(missing)}" if missing else ""

    def _local_dir(self) -> Path:
        if not isinstance(self.storage_dir, Path):
            raise ArgumentError(
                f"writing needs a local pathlib.Path, found a {type(self.storage_dir).__name__}: write, then copy",
                path=self.storage_dir,
            )
        return self.storage_dir

    def __repr__(self) -> str:
        name = type(self.storage_format).__name__
        return f"{type(self).__name__}({str(self.storage_dir)!r}, {name}, {self.read_interface!r})"

    @abstractmethod
    def sync_reader(self) -> Any:
        """Return a reader, not yet open."""


def _what_to_do(storage_format: StorageFormat, storage: str) -> str:
    """What to do with a format that is not one for the storage of the name given."""
    has = {name for name in ("stream_dtype", "size", "pack", "pack_spans", "unpack") if hasattr(storage_format, name)}
    if {"pack_spans", "unpack"} <= has or {"stream_dtype", "size", "pack", "unpack"} <= has:
        fitting = "StreamWithMetaStorage"
    elif {"pack", "unpack"} <= has:
        fitting = "StreamStorage" if "stream_dtype" in has else "DocumentStorage"
    else:
        fitting = storage
    other = "" if fitting == storage else f"use {fitting}, or "
    return f"{other}give the format what its protocol in guideloom.types says"


class StreamStorage(_Storage, StreamStorageAbstract):
    """A stream of fixed-size elements (tokens, say) in numbered shards.

    Parameters
    ----------
    storage_dir : pathlib.Path
        The data set's folder; a ``PurePath`` will do for reading through a backend of your own.
    storage_format : StreamStorageFormat
        How records become elements, and windows become samples; see :class:`guideloom.StreamNumpyFormat`.
    read_interface : IOReaderAbstract, optional
        How files are read; ``SeekIO()`` by default, ``PosixPreadIO()`` is the one to prefer where it is supported.
    verify : bool, default False
        Check each block (1 MiB) of data against its checksum when a reader first touches it: an error instead of wrong
        data. The first touch of a block reads all of it.

    Notes
    -----
    Picklable, small, and opens nothing by itself. Shard ``s`` of the global stream follows shard ``s - 1``.
    """

    kind = "stream"
    _needs = ("stream_dtype", "pack", "unpack")
    storage_format: StreamStorageFormat

    def sync_writer(self, mode: WriteMode = "create", *, metadata: Mapping[str, Any] | None = None) -> StreamWriter:
        """Return a writer.

        Parameters
        ----------
        mode : {"create", "append", "overwrite"}
            "create" refuses a committed shard, "append" extends it, "overwrite" replaces it; none touches what is
            committed before the new commit, which happens at ``close``.
        metadata : mapping, optional
            JSON-able notes kept in the commit records, e.g. the tokenizer's name.
        """
        return StreamWriter(self._local_dir(), self.storage_format, mode, metadata)

    def sync_reader(self) -> StreamSyncReader:
        """Return a reader, not yet open."""
        return StreamSyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)

    def async_reader(self) -> StreamAsyncReader:
        """Return an asyncio reader, not yet open."""
        return StreamAsyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)


class StreamWithMetaStorage(_Storage, StreamStorageAbstract):
    """A stream with one variable-size payload for each contiguous span of elements.

    Parameters
    ----------
    storage_dir, storage_format, read_interface, verify
        As for :class:`StreamStorage`; the format is a ``StreamWithMetaStorageFormat``, or a ``SpanStorageFormat``,
        which packs whole spans and so many times faster.
    """

    kind = "stream_with_meta"
    _needs = ("stream_dtype", "size", "pack", "unpack")
    storage_format: StreamWithMetaStorageFormat | SpanStorageFormat

    def _needed_of(self, storage_format: StorageFormat) -> tuple[str, ...]:
        return ("stream_dtype", "pack_spans", "unpack") if hasattr(storage_format, "pack_spans") else self._needs

    def sync_writer(
        self, mode: WriteMode = "create", *, metadata: Mapping[str, Any] | None = None
    ) -> StreamWithMetaWriter:
        """Return a writer; see :meth:`StreamStorage.sync_writer`."""
        return StreamWithMetaWriter(self._local_dir(), self.storage_format, mode, metadata)

    def sync_reader(self) -> StreamSyncReader:
        """Return a reader, not yet open."""
        return StreamSyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)

    def async_reader(self) -> StreamAsyncReader:
        """Return an asyncio reader, not yet open."""
        return StreamAsyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)


class DocumentStorage(_Storage, DocumentStorageAbstract):
    """Whole documents of any size in numbered shards.

    Parameters
    ----------
    storage_dir, storage_format, read_interface, verify
        As for :class:`StreamStorage`; the format is a ``DocumentStorageFormat``.
    """

    kind = "document"
    _needs = ("pack", "unpack")
    storage_format: DocumentStorageFormat

    def _why_unfit(self, storage_format: StorageFormat) -> str:
        # A stream's format has all that a document's needs; what it packs would be refused at the first append only.
        is_of_a_stream = isinstance(getattr(storage_format, "stream_dtype", None), np.dtype)
        return "has a stream_dtype" if is_of_a_stream else super()._why_unfit(storage_format)

    def sync_writer(self, mode: WriteMode = "create", *, metadata: Mapping[str, Any] | None = None) -> DocumentWriter:
        """Return a writer; see :meth:`StreamStorage.sync_writer`."""
        return DocumentWriter(self._local_dir(), self.storage_format, mode, metadata)

    def sync_reader(self) -> DocumentSyncReader:
        """Return a reader, not yet open."""
        return DocumentSyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)

    def async_reader(self) -> DocumentAsyncReader:
        """Return an asyncio reader, not yet open."""
        return DocumentAsyncReader(self.storage_dir, self.storage_format, self.read_interface, self.kind, self.verify)
