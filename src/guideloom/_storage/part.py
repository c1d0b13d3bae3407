"""A part of a shard while it is being written, one class for each kind."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from guideloom._storage.catalog import Kind
from guideloom._storage.names import ROLES
from guideloom._storage.partfile import Descriptors, PartFile

TABLE_STRIDE = 256
"""Rows of the span table for each entry of its sample: 4 KiB of rows are read to find a span."""


class OpenPart(ABC):
    """An uncommitted part.

    Parameters
    ----------
    shard, part : int
    replaces : bool
    prefix : str
        Of the temporary files' paths.
    descriptors : Descriptors
    """

    kind: ClassVar[Kind]
    count = 0
    spans = 0
    stride = 0

    def __init__(self, shard: int, part: int, replaces: bool, prefix: str, descriptors: Descriptors) -> None:
        self.shard = shard
        self.part = part
        self.replaces = replaces
        self.files = {role: PartFile(f"{prefix}{shard:07d}.{role}", descriptors) for role in ROLES[self.kind]}

    @abstractmethod
    def flush(self) -> None:
        """Write all buffers out; when that fails, nothing of the part is lost or doubled."""

    def drop_buffers(self) -> None:
        """Give back the memory of buffers that were just written out."""
        for file in self.files.values():
            file.drop_buffer()

    def complete(self) -> None:
        """Write all buffers out, and what belongs at the end of the files."""
        self.flush()

    def discard(self) -> None:
        """Remove the part's files."""
        for file in self.files.values():
            file.remove()


def _flush_integers(values: array[int], file: PartFile) -> None:
    """Move int64 values into a file as little-endian bytes."""
    if sys.byteorder == "big":
        file.write(np.array(values, "<i8").view(np.uint8).data)
    else:
        with memoryview(values) as view, view.cast("B") as raw:
            file.write(raw)
    del values[:]


class StreamPart(OpenPart):
    """Elements only."""

    kind = "stream"

    def __init__(self, shard: int, part: int, replaces: bool, prefix: str, descriptors: Descriptors) -> None:
        super().__init__(shard, part, replaces, prefix, descriptors)
        self.elements = self.files["elements"]

    def flush(self) -> None:
        self.elements.flush()


class DocumentPart(OpenPart):
    """Payloads end to end, and their offsets.

    Attributes
    ----------
    sizes : array of int64
        Of the documents whose offsets are not yet written.
    room : int
        Bytes of documents and their offsets that the buffers may still take. A flush sets it to 0, and the next append
        then finds out how much it is.
    has_start : bool
        Whether the file of offsets already begins with 0, the offset of the first document.
    """

    kind = "document"

    def __init__(self, shard: int, part: int, replaces: bool, prefix: str, descriptors: Descriptors) -> None:
        super().__init__(shard, part, replaces, prefix, descriptors)
        self.payload = self.files["payload"]
        self.sizes = array("q")
        self.room = 0
        self.has_start = False
        self._end = 0
        self._num_flushed = 0

    @property
    def count(self) -> int:
        # Worked out: to count each document costs more than to note its size.
        return self._num_flushed + len(self.sizes)

    @count.setter
    def count(self, number: int) -> None:
        self._num_flushed = number - len(self.sizes)

    def flush(self) -> None:
        self.payload.flush()
        self.flush_offsets()
        self.room = 0

    def flush_offsets(self) -> None:
        """Write the offsets out, and leave the payloads where they are."""
        start = 0 if self.has_start else 1
        offsets = np.full(start + len(self.sizes), self._end, "<i8")
        offsets[start:] += np.cumsum(np.array(self.sizes, np.int64))
        self.files["offsets"].write(offsets.view(np.uint8).data)
        if offsets.size:
            self._end = int(offsets[-1])
        self.has_start = True
        self._num_flushed += len(self.sizes)
        del self.sizes[:]


class SpanPart(OpenPart):
    """Elements, payloads, and the span table: ``rows`` holds those not yet written, as pairs."""

    kind = "stream_with_meta"
    stride = TABLE_STRIDE

    def __init__(self, shard: int, part: int, replaces: bool, prefix: str, descriptors: Descriptors) -> None:
        super().__init__(shard, part, replaces, prefix, descriptors)
        self.elements = self.files["elements"]
        self.payload = self.files["payload"]
        self.rows = array("q")
        self._sample = array("q")

    def flush(self) -> None:
        self.payload.flush()
        self.elements.flush()
        self._flush_rows()

    def _flush_rows(self) -> None:
        num_rows = len(self.rows) // 2
        first = -self.spans % TABLE_STRIDE
        sampled = self.rows[2 * first :: 2 * TABLE_STRIDE]
        _flush_integers(self.rows, self.files["spans"])
        self._sample += sampled
        self.spans += num_rows

    def complete(self) -> None:
        self.flush()
        self.rows.extend((self.count, self.payload.flushed))
        self.rows += self._sample
        _flush_integers(self.rows, self.files["spans"])


PART_CLASSES: Final[Mapping[Kind, type[OpenPart]]] = {part.kind: part for part in (StreamPart, DocumentPart, SpanPart)}
