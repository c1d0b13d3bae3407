"""Backends for tests: the smallest one a user could write, wrappers around any other, and one that counts.

All of them, and those of :mod:`guideloom.testing.trouble`, implement the documented methods only, so that GuideLoom
takes the path it takes for any user's backend.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract, StorageBufferTypes

Operation: TypeAlias = Literal["open", "filesize", "read"]


# --- the smallest backend ----------------------------------------------------------------------


class _MinimalSyncReader(IOSyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._content: bytes | None = None

    def open(self) -> None:
        self._content = Path(self._path).read_bytes()

    def close(self) -> None:
        self._content = None

    def filesize(self) -> int:
        return len(self._opened())

    def read(self, offset: int, size: int) -> bytearray:
        content = self._opened()
        if offset < 0 or size < 0 or offset + size > len(content):
            raise IndexError(
                f"expected {size} bytes at {offset}, the file has {len(content)} [path {str(self._path)!r}]"
            )
        return bytearray(content[offset : offset + size])

    def _opened(self) -> bytes:
        if self._content is None:
            raise RuntimeError(f"not open [path {str(self._path)!r}]")
        return self._content


class _MinimalAsyncReader(IOAsyncReaderAbstract):
    def __init__(self, path: PurePath) -> None:
        self._sync = _MinimalSyncReader(path)

    async def open(self) -> None:
        self._sync.open()

    async def close(self) -> None:
        self._sync.close()

    async def filesize(self) -> int:
        return self._sync.filesize()

    async def read(self, offset: int, size: int) -> bytearray:
        return self._sync.read(offset, size)


class MinimalBackend(IOReaderAbstract):
    """The least that a user's backend may be: each file is loaded into memory when it is opened.

    It shares no code with :mod:`guideloom.io`, so it can also serve as the oracle for a backend.
    """

    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return _MinimalSyncReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return _MinimalAsyncReader


# --- wrappers ----------------------------------------------------------------------------------


class BackendWrapper(IOReaderAbstract):
    """A backend that passes every call to another one, with a hook before and after each.

    Parameters
    ----------
    inner : IOReaderAbstract, optional
        The backend that reads; :class:`guideloom.io.SeekIO` when not given.
    concurrent_reads : bool
        Whether to tell GuideLoom that several threads may read through one reader at once; only if ``inner`` allows it.

    Notes
    -----
    Subclasses override the hooks. They may be called from many threads at once. A pickled copy has its own counters.
    """

    def __init__(self, inner: IOReaderAbstract | None = None, *, concurrent_reads: bool = False) -> None:
        if inner is None:
            from guideloom.io import SeekIO

            inner = SeekIO()
        self.inner = inner
        self.concurrent_reads = concurrent_reads
        self._lock = threading.Lock()

    @staticmethod
    def is_supported() -> bool:
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return partial(_WrappedSyncReader, self, self.inner.sync_reader())

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return partial(_WrappedAsyncReader, self, self.inner.async_reader())

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        """Run before each call of ``inner``.

        Parameters
        ----------
        operation : {"open", "filesize", "read"}
        path : pathlib.PurePath
            The reader's.
        offset, size : int
            In bytes; 0 unless it is a read.
        """

    async def before_async(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        """Run before each call of ``inner``'s asyncio reader, as :meth:`BackendWrapper.before`.

        It must not block the event loop.
        """
        self.before(operation, path, offset, size)

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        """Return what the caller gets in place of ``data``, which was read of ``path`` from ``offset`` on."""
        return data

    def opened(self, path: PurePath) -> None:
        """Run after the file ``path`` was opened."""

    def closed(self, path: PurePath) -> None:
        """Run after the open file ``path`` was closed."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class _WrappedSyncReader(IOSyncReaderAbstract):
    def __init__(
        self, backend: BackendWrapper, make: Callable[[PurePath], IOSyncReaderAbstract], path: PurePath
    ) -> None:
        self.concurrent_reads = backend.concurrent_reads
        self._backend = backend
        self._path = path
        self._inner = make(path)
        self._is_open = False

    def open(self) -> None:
        self._backend.before("open", self._path, 0, 0)
        self._inner.open()
        self._is_open = True
        self._backend.opened(self._path)

    def close(self) -> None:
        self._inner.close()
        if self._is_open:
            self._is_open = False
            self._backend.closed(self._path)

    def filesize(self) -> int:
        self._backend.before("filesize", self._path, 0, 0)
        return self._inner.filesize()

    def read(self, offset: int, size: int) -> StorageBufferTypes:
        self._backend.before("read", self._path, offset, size)
        return self._backend.after_read(self._path, offset, self._inner.read(offset, size))


class _WrappedAsyncReader(IOAsyncReaderAbstract):
    def __init__(
        self, backend: BackendWrapper, make: Callable[[PurePath], IOAsyncReaderAbstract], path: PurePath
    ) -> None:
        self._backend = backend
        self._path = path
        self._inner = make(path)
        self._is_open = False

    async def open(self) -> None:
        await self._backend.before_async("open", self._path, 0, 0)
        await self._inner.open()
        self._is_open = True
        self._backend.opened(self._path)

    async def close(self) -> None:
        await self._inner.close()
        if self._is_open:
            self._is_open = False
            self._backend.closed(self._path)

    async def filesize(self) -> int:
        await self._backend.before_async("filesize", self._path, 0, 0)
        return await self._inner.filesize()

    async def read(self, offset: int, size: int) -> StorageBufferTypes:
        await self._backend.before_async("read", self._path, offset, size)
        return self._backend.after_read(self._path, offset, await self._inner.read(offset, size))


# --- counting ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What was asked of one file, or of all files together.

    Parameters
    ----------
    opens, closes, filesizes, reads : int
        Calls. Opens, closes and reads count when they succeed; a ``close`` of a file that is not open does not count.
    bytes_read : int
        Bytes handed out by ``read``.
    """

    opens: int = 0
    closes: int = 0
    filesizes: int = 0
    reads: int = 0
    bytes_read: int = 0

    @property
    def open_now(self) -> int:
        """Readers that are open at this moment."""
        return self.opens - self.closes


class CountingBackend(BackendWrapper):
    """Counts what GuideLoom asks of a backend, per file.

    Parameters
    ----------
    inner : IOReaderAbstract, optional
        The backend that reads; ``SeekIO`` when not given.
    concurrent_reads : bool
        See :class:`BackendWrapper`.

    Attributes
    ----------
    peak_open : int
        The largest number of readers that were open at once.
    """

    def __init__(self, inner: IOReaderAbstract | None = None, *, concurrent_reads: bool = False) -> None:
        super().__init__(inner, concurrent_reads=concurrent_reads)
        self.reset()

    def reset(self) -> None:
        """Forget the counts; files that are open stay counted as open."""
        with self._lock:
            open_now = {path: n.open_now for path, n in self.__dict__.get("_counts", {}).items() if n.open_now}
            self._counts: dict[str, FileCounts] = {path: FileCounts(opens=n) for path, n in open_now.items()}
            self.peak_open = self._open_now = sum(open_now.values())

    @property
    def per_file(self) -> dict[str, FileCounts]:
        """Counts by path, as text."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> FileCounts:
        """Counts of all files together."""
        return self.matching("*")

    def matching(self, pattern: str) -> FileCounts:
        """Counts of the files whose name matches the shell ``pattern``, such as ``"*.elements.bin"``."""
        found = FileCounts()
        for path, one in self.per_file.items():
            if fnmatch.fnmatchcase(PurePath(path).name, pattern):
                found = FileCounts(
                    found.opens + one.opens,
                    found.closes + one.closes,
                    found.filesizes + one.filesizes,
                    found.reads + one.reads,
                    found.bytes_read + one.bytes_read,
                )
        return found

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        if operation == "filesize":
            self._add(path, filesizes=1)

    def after_read(self, path: PurePath, offset: int, data: StorageBufferTypes) -> StorageBufferTypes:
        self._add(path, reads=1, bytes_read=len(data))
        return data

    def opened(self, path: PurePath) -> None:
        self._add(path, opens=1)
        with self._lock:
            self._open_now += 1
            self.peak_open = max(self.peak_open, self._open_now)

    def closed(self, path: PurePath) -> None:
        self._add(path, closes=1)
        with self._lock:
            self._open_now -= 1

    def _add(self, path: PurePath, **more: int) -> None:
        with self._lock:
            old = self._counts.get(str(path), FileCounts())
            self._counts[str(path)] = replace(old, **{key: getattr(old, key) + n for key, n in more.items()})

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_counts": {}, "_open_now": 0, "peak_open": 0}
