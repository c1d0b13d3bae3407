"""The loader over data sets of a user's own, which have the documented methods and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentDataset, StatefulDataLoader
from guideloom.errors import ArgumentError
from guideloom.testing import make_documents, reference
from guideloom.types import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract
from tests.sweeps.support import MODES


class Squares(DatasetAbstract):
    """Implements the documented methods, and nothing else."""

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        return SquaresReader()

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        raise AssertionError("the loader never reads through asyncio")


class SquaresReader(DatasetSyncReaderAbstract):
    def open(self) -> None: ...

    def close(self) -> None: ...

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        assert type(index) is int
        return index * index


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_data_set_of_one_s_own(options: dict[str, Any]) -> None:
    make = partial(StatefulDataLoader, Squares(), list, local_batch_size=4, drop_last=False, device="cpu", **options)
    assert reference(make) == [[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]]


class Passing:
    """What wraps something: what it does not have itself is the other's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class NegativeReader(Passing, DatasetSyncReaderAbstract):
    def open(self) -> None:
        self.inner.open()

    def close(self) -> None:
        self.inner.close()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return -self.inner[index].id


class Negative(DatasetAbstract):
    def __init__(self, dataset: DatasetAbstract) -> None:
        self.dataset = dataset

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        return NegativeReader(self.dataset.sync_reader())

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        raise AssertionError("the loader never reads through asyncio")


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_reader_around_another_gives_its_own_samples(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = Negative(DocumentDataset(make_documents(tmp_path, (2, 3))))
    with StatefulDataLoader(dataset, list, local_batch_size=5, device="cpu", **options) as loader:
        assert list(loader) == [[0, -1, -2, -3, -4]]


class BatchReader(SquaresReader):
    """Gives no single samples."""

    def __init__(self, asked: list[list[int]], fewer: int = 0) -> None:
        self.asked = asked
        self.fewer = fewer

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the loader reads a batch at once")

    def __getitems__(self, indexes: Sequence[int], /) -> list[Any]:
        self.asked.append(list(indexes))
        return [index * index for index in indexes[self.fewer :]]


class Batched(DatasetAbstract):
    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        reader: DatasetSyncReaderAbstract = self.reader
        return reader

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        raise AssertionError("the loader never reads through asyncio")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_samples_of_a_batch_are_asked_for_at_once(prefetch: int) -> None:
    asked: list[list[int]] = []
    options: dict[str, Any] = {"local_batch_size": 4, "drop_last": False, "device": "cpu", "prefetch": prefetch}
    with StatefulDataLoader(Batched(BatchReader(asked)), list, **options) as loader:
        assert list(loader) == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(type(index) is int for indexes in asked for index in indexes)


def test_too_few_samples_of_a_batch_are_an_error() -> None:
    with StatefulDataLoader(Batched(BatchReader([], fewer=1)), list, local_batch_size=4, device="cpu") as loader:
        with pytest.raises(ArgumentError, match=r"BatchReader\.__getitems__ .* expected 4, found 3"):
            next(iter(loader))
        assert loader.state_dict()["observation_offset"] == 0


class PlainReader:
    """No subclass of anything: documented methods alone."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + 1


def test_a_reader_without_getitems_is_asked_item_by_item() -> None:
    with StatefulDataLoader(Batched(PlainReader()), list, local_batch_size=4, device="cpu") as loader:
        assert list(loader) == [[1, 2, 3, 4]]
