"""The shapes of data sets, and of a loader's state; published as :mod:`guideloom.types`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, TypedDict, overload

from guideloom._base.protocols import AsyncContextManager, SyncContextManager


class DatasetSyncReaderAbstract(SyncContextManager):
    """A sized sequence of samples."""

    @abstractmethod
    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[Any]: ...
    @abstractmethod
    def __getitem__(self, index: int | slice, /) -> Any: ...

    def __getitems__(self, indexes: Sequence[int], /) -> list[Any]:
        """Read the samples ``indexes``, in that order; repeats and none at all are allowed.

        In this way the loader asks for the samples of a batch, and so does torch's ``DataLoader``. By default each is
        read by itself; a data set made over others should override this, and ask theirs.
        """
        return [self[index] for index in indexes]


class DatasetAsyncReaderAbstract(AsyncContextManager):
    """A sized sequence of samples; items and slices are awaited."""

    @abstractmethod
    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> Awaitable[Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> Awaitable[Sequence[Any]]: ...
    @abstractmethod
    def __getitem__(self, index: int | slice, /) -> Awaitable[Any]: ...


class DatasetAbstract(ABC):
    """A data set: makes readers, opens nothing itself; must be picklable for process workers."""

    @abstractmethod
    def sync_reader(self) -> DatasetSyncReaderAbstract:
        """Return a reader, not yet open."""

    @abstractmethod
    def async_reader(self) -> DatasetAsyncReaderAbstract:
        """Return an asyncio reader, not yet open."""


class StatefulDataLoaderStateDict(TypedDict, total=False):
    """What ``StatefulDataLoader.state_dict`` gives: plain integers, booleans and strings.

    The first five are always there; the others pin what must not change between save and load.
    """

    epoch: int
    observation_offset: int
    shuffle: bool
    shuffle_seed: int | None
    drop_last: bool
    version: int
    order: str
    identity: str
    dataset_size: int
    sequence_length: int | None
    overlap: int | None
