"""Data sets in memory that count what is asked of them, and functions that processes can import."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from guideloom import StatefulDataLoader
from guideloom._dataset.source import BatchSource, Empty
from guideloom.types import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract


class ItemReader(DatasetSyncReaderAbstract):
    """One sample at a time, as a user would write it."""

    def __init__(self, dataset: ItemDataset) -> None:
        self.dataset = dataset
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.dataset.opened += 1

    def close(self) -> None:
        self.is_open = False
        self.dataset.closed += 1

    def __len__(self) -> int:
        return self.dataset.size

    def __getitem__(self, index: Any) -> Any:
        if not self.is_open:
            raise RuntimeError("read after close")
        self.dataset.before_read(index)
        return index


class ItemDataset(DatasetAbstract):
    """Sample ``i`` is the number ``i``."""

    def __init__(self, size: int = 20) -> None:
        self.size = size
        self.opened = self.closed = 0

    def before_read(self, index: int) -> None:
        """Override to fail or to wait."""

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        return ItemReader(self)

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        raise AssertionError("the loader never reads through asyncio")


class RowSource(BatchSource):
    """Row ``i`` is ``[10 * i, 10 * i + 1]``; also in numeric batches."""

    def __init__(self, dataset: RowDataset) -> None:
        self.dataset = dataset

    @property
    def size(self) -> int:
        return self.dataset.size

    @property
    def identity(self) -> str | None:
        return self.dataset.identity

    @property
    def view(self) -> dict[str, int | None]:
        return dict(self.dataset.view)

    @property
    def has_arrays(self) -> bool:
        return True

    def prepare(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self.dataset.prepared.append(indexes.size)
        return indexes

    def samples(self, prepared: npt.NDArray[np.int64], lo: int, hi: int, empty: Empty = np.empty) -> list[Any]:
        self.dataset.before_read(lo)
        return [np.array([10 * i, 10 * i + 1]) for i in prepared[lo:hi].tolist()]

    def arrays(self, prepared: npt.NDArray[np.int64], lo: int, hi: int, empty: Empty) -> Any:
        self.dataset.before_read(lo)
        rows = empty((hi - lo, 2), np.dtype(np.int64))
        rows[:, 0] = 10 * prepared[lo:hi]
        rows[:, 1] = rows[:, 0] + 1
        half = empty((hi - lo,), np.dtype(np.uint16))
        half[:] = prepared[lo:hi]
        return {"rows": rows, "half": half}


class RowReader(ItemReader):
    def batch_source(self) -> BatchSource:
        return RowSource(self.dataset)  # type: ignore[arg-type]


class RowDataset(ItemDataset):
    """Batched, with an identity and a view."""

    def __init__(
        self, size: int = 20, identity: str | None = "v2:a", view: dict[str, int | None] | None = None
    ) -> None:
        super().__init__(size)
        self.identity = identity
        self.view = {"sequence_length": 2, "overlap": 0} if view is None else view
        self.prepared: list[int] = []

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        return RowReader(self)


class HookedDataset(ItemDataset):
    """Calls ``hook(index)`` before each read."""

    def __init__(self, size: int, hook: Callable[[int], object]) -> None:
        super().__init__(size)
        self.hook = hook

    def before_read(self, index: int) -> None:
        self.hook(index)


class Gate:
    """Lets reads of some samples wait until it is opened; says when the first one waits."""

    def __init__(self, closed_for: Sequence[int]) -> None:
        self.closed_for = set(closed_for)
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, index: int) -> None:
        if index in self.closed_for:
            self.reached.set()
            if not self.opened.wait(30):
                raise TimeoutError("nobody opened the gate")


def rows(samples: list[Any]) -> Any:
    """Collate rows."""
    return torch.from_numpy(np.stack(samples)) if samples else torch.empty((0, 2), dtype=torch.int64)


def make_items(size: int = 20, **options: Any) -> StatefulDataLoader:
    """A loader of the numbers below ``size``, batches as lists."""
    options = {"collate_fn": list, "device": "cpu", **options}
    return StatefulDataLoader(ItemDataset(size), **options)


def make_rows(size: int = 20, **options: Any) -> StatefulDataLoader:
    """A loader of rows with an identity."""
    options = {"collate_fn": rows, "device": "cpu", **options}
    return StatefulDataLoader(RowDataset(size), **options)


def failing_on_seven(samples: list[Any]) -> Any:
    if 7 in samples:
        raise KeyError("seven")
    return samples


class Unpicklable(Exception):
    """Survives no pickle: it holds a lock."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Pickles, but does not come back: its constructor wants more than ``args``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
