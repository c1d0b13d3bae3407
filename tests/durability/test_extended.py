"""A data set that is extended while others read it and train on it: they go on with exactly what they opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentDataset, DocumentStorage, StatefulDataLoader, StreamDataset, StreamStorage
from guideloom.errors import StateMismatchError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import IdDocumentFormat, IdStreamFormat, MinimalBackend

LENGTH = 4
NUM_SAMPLES = 60
BACKENDS = {"seek": SeekIO, "pread": PosixPreadIO, "mmap": MmapIO, "user": MinimalBackend}


def stream(folder: Path, backend: Any = SeekIO) -> StreamStorage:
    return StreamStorage(folder, IdStreamFormat(), backend())


def documents(folder: Path, backend: Any = SeekIO) -> DocumentStorage:
    return DocumentStorage(folder, IdDocumentFormat(), backend())


def fill(kind: str, folder: Path, mode: Any, shards: dict[int, range]) -> None:
    """Add samples: windows of ``LENGTH`` elements, or documents, with the numbers given."""
    if kind == "stream":
        with stream(folder).sync_writer(mode=mode) as writer:
            for shard, samples in shards.items():
                writer.append(shard, list(range(LENGTH * samples.start, LENGTH * samples.stop)))
    else:
        with documents(folder).sync_writer(mode=mode) as writer:
            for shard, samples in shards.items():
                for sample in samples:
                    writer.append(shard, (sample, 9))


def extend(kind: str, folder: Path, step: int) -> None:
    """One commit: in turn more of an old shard, a new shard, and other content for an old one."""
    samples = range(1000 * (step + 1), 1000 * (step + 1) + 5)
    mode = ("append", "append", "overwrite")[step % 3]
    shard = (0, 2 + step // 3, 1)[step % 3]
    fill(kind, folder, mode, {shard: samples})


def dataset_of(kind: str, folder: Path, backend: Any) -> Any:
    if kind == "stream":
        return StreamDataset(stream(folder, backend), LENGTH)
    return DocumentDataset(documents(folder, backend))


def numbers(samples: list[Any]) -> list[int]:
    """The samples' numbers, each of which must be whole."""
    found = []
    for sample in samples:
        if hasattr(sample, "elements"):
            first = int(sample.elements[0])
            assert sample.elements.tolist() == list(range(first, first + LENGTH))
            found.append(first // LENGTH)
        else:
            found.append(sample.id)
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@pytest.fixture(params=["stream", "documents"])
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def made(kind: str, folder: Path) -> Path:
    fill(kind, folder, "create", {0: range(40), 1: range(40, NUM_SAMPLES)})
    return folder


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "prefetch": 3},
        pytest.param({"num_workers": 2, "prefetch": 3, "parallel_method": "process"}, marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_with_what_it_opened(kind: str, backend: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Two epochs and a half of the old data, each batch as without the extensions; and what a state then means."""
    everywhere: dict[str, Any] = {"local_batch_size": 4, "shuffle": True, "shuffle_seed": 3, "device": "cpu"}

    def loader_of(folder: Path) -> StatefulDataLoader:
        return StatefulDataLoader(dataset_of(kind, folder, BACKENDS[backend]), numbers, **everywhere, **options)

    def batches(loader: StatefulDataLoader, num_batches: int, between: Any) -> list[Any]:
        found: list[Any] = []
        while len(found) < num_batches:
            for batch in loader:
                found.append(batch)
                between(len(found))
                if len(found) == num_batches:
                    break
        return found

    num_batches = 5 * (NUM_SAMPLES // 4) // 2
    with loader_of(made(kind, tmp_path / "quiet")) as loader:
        expected = batches(loader, num_batches, lambda step: None)
    folder = made(kind, tmp_path / "busy")
    with loader_of(folder) as loader:
        found = batches(loader, num_batches, lambda step: extend(kind, folder, step // 5) if step % 5 == 0 else None)
        assert len(loader) == NUM_SAMPLES // 4
        state = loader.state_dict()
    assert found == expected
    assert sorted(flat(found[: NUM_SAMPLES // 4])) == list(range(NUM_SAMPLES))

    with dataset_of(kind, folder, BACKENDS[backend]).sync_reader() as reader:
        assert len(reader) > NUM_SAMPLES
    with loader_of(folder) as loader:
        assert loader.dataset_size > NUM_SAMPLES
        identity = loader.state_dict()["identity"]
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(state)
        assert {caught.value.expected, caught.value.found} == {identity, state["identity"]}
        assert identity in str(caught.value) and state["identity"] in str(caught.value)
        assert identity != state["identity"]
    with loader_of(tmp_path / "quiet") as loader:
        loader.load_state_dict(state)
        resumed = list(loader)
    begun = len(found) % (NUM_SAMPLES // 4)
    assert sorted(flat(found[-begun:] + resumed)) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_snapshot_is_opened_whatever_was_committed_since(kind: str, backend: str, tmp_path: Path) -> None:
    """What each worker process does, in this one."""
    dataset = dataset_of(kind, made(kind, tmp_path), BACKENDS[backend])
    with dataset.sync_reader() as reader:
        source = reader.batch_source()
        expected = numbers(reader[:])
        for step in range(3):
            extend(kind, tmp_path, step)
        late = dataset.sync_reader()
        late.open_snapshot(source.snapshot)
        found, identity = numbers(late[:]), late.batch_source().identity
        late.close()
        assert (found, identity) == (expected, source.identity)
    with dataset.sync_reader() as reader:
        assert numbers(reader[:]) != expected
