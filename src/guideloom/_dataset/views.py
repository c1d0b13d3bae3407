"""What the readers of data sets share: each opens a reader of its storage, and closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from guideloom._base.errors import InUseError, NotOpenError
from guideloom._base.protocols import AsyncContextManager, SyncContextManager
from guideloom._dataset.opened import not_picklable, open_snapshot
from guideloom._dataset.source import BatchSource
from guideloom._storage.catalog import Catalog

SyncReaderT = TypeVar("SyncReaderT", bound=SyncContextManager)
AsyncReaderT = TypeVar("AsyncReaderT", bound=AsyncContextManager)


class SyncView(ABC, Generic[SyncReaderT]):
    """The opening and closing of a data set's reader.

    Parameters
    ----------
    make_reader : callable
        Returns a reader of the storage, not yet open.
    """

    def __init__(self, make_reader: Callable[[], SyncReaderT]) -> None:
        self._make_reader = make_reader
        self._opened: tuple[SyncReaderT, BatchSource, int] | None = None

    @abstractmethod
    def _count(self, reader: SyncReaderT) -> int:
        """Return the number of items in what a reader of the storage has open."""

    @abstractmethod
    def _source_on(self, reader: SyncReaderT) -> BatchSource:
        """Return batched access to what a reader of the storage has open."""

    def open(self) -> None:
        """Open the storage."""
        self._require_closed()
        reader = self._make_reader()
        reader.open()
        self._opened = reader, self._source_on(reader), self._count(reader)

    def open_snapshot(self, snapshot: Catalog) -> None:
        """Open what another reader of this data set has open, see :attr:`BatchSource.snapshot`."""
        self._require_closed()
        reader = self._make_reader()
        open_snapshot(reader, snapshot)
        self._opened = reader, self._source_on(reader), self._count(reader)

    def close(self) -> None:
        """Close the storage; safe to call again."""
        opened = self._opened
        if opened is not None:
            # Closed first: should an interrupt end that, a further call goes on with it.
            opened[0].close()
            self._opened = None

    def batch_source(self) -> BatchSource:
        """Return batched access, for the loader."""
        return self._require_open()[1]

    def __len__(self) -> int:
        return self._require_open()[2]

    @abstractmethod
    def __getitem__(self, index: int, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        """Give all items in order, one read each."""
        # Python's own loop over __getitem__ takes every IndexError, that of a format's unpack too, for the end.
        for index in range(len(self)):
            yield self[index]

    def __getstate__(self) -> dict[str, Any]:
        if self._opened is not None:
            raise not_picklable("reader")
        return self.__dict__

    def _require_open(self) -> tuple[SyncReaderT, BatchSource, int]:
        # All at once: another thread may close this reader and open it again, on other data, at any moment.
        opened = self._opened
        if opened is None:
            raise _not_open()
        return opened

    def _require_closed(self) -> None:
        if self._opened is not None:
            raise _open_already()


class AsyncView(Generic[AsyncReaderT]):
    """The same for asyncio."""

    def __init__(self, make_reader: Callable[[], AsyncReaderT]) -> None:
        self._make_reader = make_reader
        self._reader: AsyncReaderT | None = None

    async def open(self) -> None:
        """Open the storage."""
        if self._reader is not None:
            raise _open_already()
        reader = self._make_reader()
        await reader.open()
        if self._reader is not None:
            # Another task has opened it meanwhile, and reads through that one.
            await reader.close()
            raise _open_already()
        self._reader = reader

    async def close(self) -> None:
        """Close the storage; safe to call again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._reader is not None:
            raise not_picklable("reader")
        return self.__dict__

    def _require_open(self) -> AsyncReaderT:
        reader = self._reader
        if reader is None:
            raise _not_open()
        return reader


def _not_open() -> NotOpenError:
    return NotOpenError("this data set's reader is not open: call open() first, or use `with`")


def _open_already() -> InUseError:
    return InUseError("this data set's reader is open already: close() it first")
