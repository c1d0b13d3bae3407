"""Several data sets in one order, by weight: a data set of one's own over them, shuffled and resumed as any other."""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.io import PosixPreadIO
from guideloom.types import DatasetAbstract, DatasetAsyncReaderAbstract, DatasetSyncReaderAbstract


class Mixture(DatasetAbstract):
    """So many samples of each part: more than it has repeats them, fewer leaves the last ones out."""

    def __init__(self, parts: list[DatasetAbstract], samples: list[int]) -> None:
        self.parts = parts
        self.bounds = [0, *accumulate(samples)]

    def sync_reader(self) -> DatasetSyncReaderAbstract:
        """Return a reader of all parts."""
        return MixtureReader(self)

    def async_reader(self) -> DatasetAsyncReaderAbstract:
        """Refuse: the loader reads through the other one."""
        raise TypeError("a mixture has no asyncio reader: use sync_reader()")


class MixtureReader(DatasetSyncReaderAbstract):
    """A sample is the number of its part, and the part's own sample."""

    def __init__(self, mixture: Mixture) -> None:
        self.bounds = mixture.bounds
        self.readers = [part.sync_reader() for part in mixture.parts]
        self.opened = ExitStack()

    def open(self) -> None:
        """Open all parts, or none."""
        with ExitStack() as stack:
            for reader in self.readers:
                stack.enter_context(reader)
            self.opened = stack.pop_all()

    def close(self) -> None:
        """Close all parts."""
        self.opened.close()

    def __len__(self) -> int:
        return self.bounds[-1]

    def __getitem__(self, index: Any) -> Any:
        """Read one sample."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """Read the samples of a batch: all of a part at once."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, index in enumerate(indexes):
            places[bisect_right(self.bounds, index) - 1].append(place)
        samples: list[Any] = [None] * len(indexes)
        for part, of_part in places.items():
            reader, begin = self.readers[part], self.bounds[part]
            found = reader.__getitems__([(indexes[place] - begin) % len(reader) for place in of_part])
            for place, sample in zip(of_part, found, strict=True):
                samples[place] = part, sample
        return samples


def write(folder: Path, tokens: int) -> StreamDataset:
    """Write ``tokens`` tokens, and return them in windows of 8."""
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<u2")]), PosixPreadIO())
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(tokens)})
    return StreamDataset(storage, 8)


def told(samples: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, int]]:
    """Return the part and the first token of each sample."""
    return [(part, int(window["token"][0])) for part, window in samples]


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    web, books = write(folder / "web", 800), write(folder / "books", 160)  # 100 windows and 20
    mixture = Mixture([web, books], [75, 50])  # 6 to 4: three quarters of one, and the other two and a half times
    options = {"local_batch_size": 5, "shuffle": True, "shuffle_seed": 1, "device": "cpu"}

    with StatefulDataLoader(mixture, told, **options) as loader:
        batches = list(loader)
        counts = Counter(part for batch in batches for part, _ in batch)
        print(f"{counts[0]} windows of the web and {counts[1]} of books, {len(batches)} batches")

    with StatefulDataLoader(mixture, told, **options) as loader:
        for number, _ in enumerate(loader, 1):
            if number == 10:
                break
        state = loader.state_dict()
    with StatefulDataLoader(mixture, told, **options) as loader:
        loader.load_state_dict(state)
        same = list(loader) == batches[10:]
        print("resumed after 10 batches, the rest is", "the same" if same else "another")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
