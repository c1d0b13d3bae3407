"""What comes before the second batch: opening, the first batch, a further epoch, a resume.

Ceiling of opening: ``test_ceiling_of_reading_records``, reading the same small files without looking at them. What is
counted: files that are read to open, and gathers before a batch comes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import LENGTH, TOKEN, loader, stream_storage
from guideloom import StreamDataset, StreamNumpyFormat
from guideloom._storage.local import LocalFolder
from guideloom.io import PosixPreadIO
from guideloom.testing import make_sparse_stream


@pytest.fixture(scope="module", params=[1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder, num = tmp_path_factory.mktemp("shards"), request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(os, "fdatasync", lambda fd: None)
        for first in range(0, num, 500):
            with stream_storage(folder, PosixPreadIO()).sync_writer() as writer:
                for shard in range(first, first + 500):
                    writer.append(shard, {"tokens": np.zeros(8, np.int32)})
    return folder, num


def test_open(benchmark: Any, shards: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, num = shards
    asked: list[str] = []
    answer = LocalFolder.answer

    def counted(self: LocalFolder, request: Any) -> Any:
        asked.append(type(request).__name__)
        return answer(self, request)

    monkeypatch.setattr(LocalFolder, "answer", counted)

    def opened() -> int:
        asked.clear()
        with stream_storage(folder, PosixPreadIO()).sync_reader() as reader:
            return reader.num_shards

    assert benchmark(opened) == num
    # The folder is listed once, or once more to see that nothing changed; a record is read at most once.
    assert asked.count("ListFolder") <= 2
    assert asked.count("ReadFile") <= num + 1


def test_ceiling_of_reading_records(benchmark: Any, shards: tuple[Path, int]) -> None:
    folder, num = shards
    names = [name for name in os.listdir(folder) if name.endswith(".json")]

    def read() -> int:
        found = 0
        for name in names:
            with open(folder / name, "rb", buffering=0) as file:
                found += bool(file.read())
        return found

    assert benchmark(read) >= num


def test_first_batch(benchmark: Any, stream: Path, gathers: list[str]) -> None:
    """Open, ``iter`` and one batch, with kernels that are loaded: nothing is read but that batch."""
    dataset = StreamDataset(stream_storage(stream, PosixPreadIO()), LENGTH)

    def first() -> Any:
        with loader(dataset) as batches:
            gathers.clear()
            return next(iter(batches))

    assert benchmark(first)["tokens"].shape == (32, LENGTH)
    assert gathers == ["Gather"]


def test_start_of_a_further_epoch(benchmark: Any, stream: Path, gathers: list[str]) -> None:
    dataset = StreamDataset(stream_storage(stream, PosixPreadIO()), LENGTH)
    with loader(dataset) as batches:
        next(iter(batches))
        epochs = iter(range(1, 1 << 30))

        def first() -> Any:
            batches.load_state_dict({**batches.state_dict(), "epoch": next(epochs), "observation_offset": 0})
            gathers.clear()
            with iter(batches) as iterator:
                return next(iterator)

        assert benchmark(first)["tokens"].shape == (32, LENGTH)
    assert gathers == ["Gather"]


@pytest.mark.parametrize("position", [0, 1_000_000_000])
def test_resume(benchmark: Any, tmp_path: Path, gathers: list[str], position: int) -> None:
    """A position costs nothing: the first batch after a load is the only one that is read."""
    storage = make_sparse_stream(tmp_path, 1_100_000_000, TOKEN, stream_format=StreamNumpyFormat(TOKEN))
    storage.read_interface = PosixPreadIO()
    with loader(StreamDataset(storage, 1)) as batches:

        def first() -> Any:
            batches.load_state_dict({**batches.state_dict(), "epoch": 0, "observation_offset": position})
            gathers.clear()
            with iter(batches) as iterator:
                return next(iterator)

        assert benchmark(first)["tokens"].shape == (32, 1)
    assert gathers == ["Gather"]
