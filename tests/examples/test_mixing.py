"""The mixture of the example, of more sources than 16 bits can number."""

from __future__ import annotations

from typing import Any

from examples.mixing import Mixture
from guideloom import StatefulDataLoader
from guideloom.types import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract


class Source(DatasetAbstract):
    """Two samples that hold the number of their source."""

    def __init__(self, number: int) -> None:
        self.number = number

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        return SourceReader(self.number)

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        raise TypeError("only synchronous reads are needed here")


class SourceReader(DatasetSyncReaderAbstract):
    def __init__(self, number: int) -> None:
        self.number = number

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> tuple[int, int]:
        return self.number, index


def test_70_000_sources_each_by_its_weight() -> None:
    weights = [number % 3 for number in range(70_000)]  # none, one, or two of its samples
    mixture = Mixture([Source(number) for number in range(len(weights))], weights)
    options: dict[str, Any] = {"local_batch_size": 1_000, "drop_last": False, "shuffle": True, "device": "cpu"}
    with StatefulDataLoader(mixture, list, **options) as loader:
        seen = [sample for batch in loader for sample in batch]
    expected = [(number, (number, index)) for number, weight in enumerate(weights) for index in range(weight)]
    assert seen != expected and sorted(seen) == expected
