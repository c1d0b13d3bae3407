"""Readers of streams, with and without metadata: windows of a global stream, synchronous and for asyncio."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from guideloom._base.checks import as_int
from guideloom._base.errors import ArgumentError, OutOfRangeError
from guideloom._base.protocols import StreamStorageAsyncReaderAbstract, StreamStorageSyncReaderAbstract
from guideloom._dataset.indexing import item_index
from guideloom._dataset.opened import AsyncOpened, FilesT, Opened, SyncOpened
from guideloom._read.fileset import FileSet
from guideloom._read.operations import AsyncFiles, Operation, run, run_async
from guideloom._read.spans import SpanOperations
from guideloom._read.streams import StreamOperations
from guideloom._storage.catalog import Catalog

Operations: TypeAlias = StreamOperations | SpanOperations

PROBE_BYTES = 1 << 30
"""From here on a read asks for its memory before it plans."""

BYTES_PER_RUN = 40
"""What a plan takes for each run of a window: five columns of int64."""


class _StreamOpened(Opened[Operations, FilesT]):
    def _operations_on(self, catalog: Catalog) -> Operations:
        make: Any = StreamOperations if self._kind == "stream" else SpanOperations
        return make(catalog, self._format)  # type: ignore[no-any-return]

    def _read(self, operations: Any, global_index: int, global_length: int) -> Operation[Any]:
        index = item_index(global_index, operations.catalog.total, "global", self._directory)
        length = as_int(global_length, "global_length")
        if length < 0:
            raise OutOfRangeError(f"a window's length must be at least 0, got {length}", path=self._directory)
        self._require_room(operations.catalog, length)
        plan = operations.prepare(np.array([index], np.int64), length)
        samples = yield from operations.samples(plan, 0, 1)
        return samples[0]

    def _require_room(self, catalog: Catalog, length: int) -> None:
        """Refuse at once a window that no memory can hold: to plan it would take long, and Ctrl-C could not stop it."""
        laps = length // catalog.total + 2
        row_bytes = 0 if catalog.dtype is None else catalog.dtype.itemsize
        needed_bytes = max(length * row_bytes, laps * int(np.count_nonzero(catalog.count)) * BYTES_PER_RUN)
        if needed_bytes < PROBE_BYTES:
            return
        try:
            np.empty(needed_bytes, np.uint8)
        except (MemoryError, ValueError, OverflowError) as error:
            raise ArgumentError(
                f"a window of {length} elements takes {needed_bytes} bytes or more, which this machine cannot give: "
                "read shorter windows",
                path=self._directory,
            ) from error


class StreamSyncReader(_StreamOpened[FileSet], SyncOpened[Operations], StreamStorageSyncReaderAbstract):
    """Reads windows of a stream; any number of threads may call ``read`` at once."""

    def read(self, global_index: int, global_length: int) -> Any:
        """Read the window ``[global_index, global_index + global_length)`` of the global stream.

        It runs on into the next shard, and past the last element goes on at the first, as often as needed.

        Raises
        ------
        IndexError
            ``global_index`` outside ``[0, total_length)``, or a negative length.
        """
        operations, files = self.opened
        return run(self._read(operations, global_index, global_length), files)


class StreamAsyncReader(_StreamOpened[AsyncFiles], AsyncOpened[Operations], StreamStorageAsyncReaderAbstract):
    """Reads windows of a stream with asyncio; any number of tasks may read at once."""

    async def read(self, global_index: int, global_length: int) -> Any:
        """Read a window, which past the last element goes on at the first; see :meth:`StreamSyncReader.read`."""
        operations, files = self.opened
        return await run_async(self._read(operations, global_index, global_length), files)
