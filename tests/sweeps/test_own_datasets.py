"""The loader over data sets of a user's own, which have the documented methods and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentDataset, StatefulDataLoader
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
