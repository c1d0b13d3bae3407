"""Part of a data set, or its samples by weight: an array says which samples an epoch has, and how often."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom import DocumentDataset, DocumentNumpyFormat, DocumentStorage, StatefulDataLoader
from guideloom.io import PosixPreadIO
from guideloom.types import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract


class Chosen(DatasetAbstract):
    """The samples ``indexes`` of ``dataset``: some left out, some more than once."""

    def __init__(self, dataset: DatasetAbstract, indexes: npt.NDArray[np.int64]) -> None:
        self.dataset = dataset
        self.indexes = indexes

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        """Return a reader of these."""
        return ChosenReader(self.dataset.sync_reader(), self.indexes)

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        """Refuse: the loader reads through the other one."""
        raise TypeError("chosen samples have no asyncio reader: use sync_reader()")


class ChosenReader(DatasetSyncReaderAbstract):
    """A sample is one of the reader's below."""

    def __init__(self, reader: DatasetSyncReaderAbstract, indexes: npt.NDArray[np.int64]) -> None:
        self.reader = reader
        self.indexes = indexes

    def open(self) -> None:
        """Open what is below."""
        self.reader.open()

    def close(self) -> None:
        """Close it."""
        self.reader.close()

    def __len__(self) -> int:
        return len(self.indexes)

    def __getitem__(self, index: Any) -> Any:
        """Read one sample."""
        return self.reader[int(self.indexes[index])]

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """Read the samples of a batch, at once."""
        return self.reader.__getitems__(self.indexes[list(indexes)].tolist())


def by_weight(weights: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.int64]:
    """Return each index ``weights[index]`` times: 2.25 is twice, and a third time in a quarter of the cases."""
    times = np.floor(weights + np.random.default_rng(seed).random(len(weights))).astype(np.int64)
    return np.repeat(np.arange(len(weights)), times)


def names(samples: list[dict[str, Any]]) -> list[int]:
    """Collate to what tells samples apart."""
    return [int(sample["name"][0]) for sample in samples]


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = DocumentStorage(folder, DocumentNumpyFormat({"name": "<i4", "weight": "<f8"}), PosixPreadIO())
    with storage.sync_writer() as writer:
        for number in range(100):
            writer.append(0, {"name": [number], "weight": [(0, 0.5, 3)[number % 3]]})
    samples = DocumentDataset(storage)
    options = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 1, "device": "cpu"}

    # One in ten is kept back for validation. The seeds are the run's: a resumed one must choose the same samples.
    order = np.random.default_rng(1).permutation(100)
    held_back, train = Chosen(samples, np.sort(order[:10])), np.sort(order[10:])
    with StatefulDataLoader(held_back, names, local_batch_size=4, drop_last=False, device="cpu") as loader:
        print("validation:", list(loader))

    with samples.sync_reader() as reader:  # of many samples, keep the weights in a file of their own
        weights = np.array([sample["weight"][0] for sample in reader[:]])
    weighted = Chosen(samples, train[by_weight(weights[train], seed=2)])
    with StatefulDataLoader(weighted, names, **options) as loader:
        epoch = Counter(name for batch in loader for name in batch)
        print(f"{loader.dataset_size} samples an epoch; how often by weight:")
        for rest, weight in enumerate((0, 0.5, 3)):
            print(f"  {weight}: {sorted({epoch[number] for number in train.tolist() if number % 3 == rest})}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
