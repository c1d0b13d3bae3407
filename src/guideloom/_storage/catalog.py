"""What an opened data set is: files, segments and counts, as plain immutable tables.

Letters: S segments (one per committed part of a shard), F files, K shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal["stream", "document", "stream_with_meta"]
Layout: TypeAlias = Literal["current", "published-1"]

_UNKNOWN = PurePath()


@dataclass(frozen=True)
class Catalog:
    """Everything that reading needs to know about a data set, checked against the sizes on disk.

    A *segment* is one immutable part of a shard: what one writer committed to it in one session. Segments are in the
    order of the global stream: by shard, then by commit. Shards without segments do not exist: an empty shard has a
    segment with ``count == 0``.

    Parameters
    ----------
    kind, layout
        What is stored, and in which layout.
    dtype : dtype or None
        The user's element dtype, little-endian (streams), or None (documents).
    format_name : str
        Name of the format that wrote the data set, ``""`` when unknown.
    files : tuple of str, length F
        Names relative to the data set's folder.
    sizes : int64[F]
        Size of each file in bytes, as committed.
    shard : int64[S]
        Shard of each segment, non-decreasing, and complete: ``0 .. K-1`` all occur.
    count : int64[S]
        Elements or documents in each segment.
    spans : int64[S]
        Rows of the span table (``stream_with_meta``), else 0.
    elements_file, offsets_file, payload_file, table_file : int64[S]
        Index into ``files``, or -1 when the segment has no such file or the file is empty and never read.
        Current layout: stream -> elements; document -> offsets, payload; stream_with_meta -> elements, table, payload.
        Published 1.x: stream_with_meta -> elements (int32 span number + user dtype), offsets, payload.
    table_stride : int64[S]
        Rows between two entries of the sample at the end of the span table (``stream_with_meta``), else 0.
    identity : str or None
        Content and order of the data set, as ``"<schema>:<hex>"``; None when it must be computed by reading
        (published 1.x), see ``guideloom._storage.identity``.
    metadata : mapping
        The user's own notes from the commit records, the last one for each key.
    directory : PurePath
        The data set's folder; set by whoever opened it.
    """

    kind: Kind
    layout: Layout
    dtype: np.dtype[Any] | None
    format_name: str
    files: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    shard: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]
    elements_file: npt.NDArray[np.int64]
    offsets_file: npt.NDArray[np.int64]
    payload_file: npt.NDArray[np.int64]
    table_file: npt.NDArray[np.int64]
    table_stride: npt.NDArray[np.int64]
    identity: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    directory: PurePath = _UNKNOWN

    def path_of(self, file: int) -> PurePath:
        """Path of a file, for messages."""
        return self.directory / self.files[file]

    @cached_property
    def num_shards(self) -> int:
        """Number of shards K."""
        return int(self.shard[-1]) + 1 if self.shard.size else 0

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """int64[S+1]: global index of the first element or document of each segment, and the total."""
        starts = np.zeros(self.count.size + 1, np.int64)
        np.cumsum(self.count, out=starts[1:])
        return starts

    @property
    def total(self) -> int:
        """Elements or documents in all shards."""
        return int(self.starts[-1])

    @cached_property
    def shard_counts(self) -> npt.NDArray[np.int64]:
        """int64[K]: elements or documents in each shard."""
        counts = np.zeros(self.num_shards, np.int64)
        np.add.at(counts, self.shard, self.count)
        return counts
