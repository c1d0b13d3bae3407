"""The loader over real data sets of every kind: order, ranks, numeric batches and errors, against the oracle."""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import StatefulDataLoader
from guideloom.testing import (
    Fault,
    FaultBackend,
    LatencyBackend,
    make_documents,
    make_spans,
    make_stream,
    naive_batches,
    plain,
    reference,
)
from guideloom.testing.strategies import loader_configs
from tests.sweeps.support import BACKENDS, MODES

TOKENS = [("tokens", "<i4")]


def first_ids(samples: list[Any]) -> list[int]:
    """Collate: the number of each sample's first element, or of the document."""
    return [first_id(sample) for sample in samples]


def first_id(sample: Any) -> int:
    if isinstance(sample, dict):
        return int(sample["tokens"][0])
    return sample.id if hasattr(sample, "id") else int(sample.elements[0])


def loader_of(storage: Any, **options: Any) -> StatefulDataLoader:
    collate_fn = options.pop("collate_fn", first_ids)
    if "DocumentStorage" not in type(storage).__name__:
        options.setdefault("sequence_length", 1)
    options.setdefault("device", torch.device("cpu"))
    return StatefulDataLoader.from_storage(storage, collate_fn, **options)


def storage_of(kind: str, folder: Path, size: int, **more: Any) -> Any:
    """A data set of ``size`` samples (windows of one element), with empty shards."""
    counts = (size // 3, 0, size - size // 3)
    if kind == "documents":
        return make_documents(folder, counts, **more)
    if kind == "spans":
        return make_spans(folder, [[1] * n for n in counts], **more)
    return make_stream(folder, counts, TOKENS if kind == "fields" else "<i8", **more)


KINDS = ("stream", "fields", "spans", "documents")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (0, 3), (2, 2)])
def test_unshuffled_batches_are_the_oracle_s(
    num_workers: int, prefetch: int, backend: str, kind: str, tmp_path: Path
) -> None:
    storage = storage_of(kind, tmp_path, 11, read_interface=BACKENDS[backend]())
    for drop_last in (True, False):
        found = reference(
            partial(loader_of, storage, local_batch_size=3, num_workers=num_workers, prefetch=prefetch),
            2,
            drop_last=drop_last,
        )
        assert found == [naive_batches(list(range(11)), 3, drop_last=drop_last)] * 2


@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_processes_give_the_same(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path, 11)
    options = {"local_batch_size": 3, "num_workers": 2, "prefetch": 2, "shuffle": True, "shuffle_seed": 5}
    threads = reference(partial(loader_of, storage, **options), 2)
    assert reference(partial(loader_of, storage, **options, parallel_method="process"), 2) == threads


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_every_rank_gets_its_part_of_one_order(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    config = data.draw(loader_configs(dataset_size=size))
    config.pop("rank")
    world_size = config["world_size"]
    with tempfile.TemporaryDirectory() as folder:
        storage = storage_of(data.draw(st.sampled_from(KINDS)), Path(folder), size)
        orders = reference(
            partial(loader_of, storage),
            2,
            drop_last=False,
            shuffle=config["shuffle"],
            shuffle_seed=config["shuffle_seed"],
        )
        flat = [[sample for batch in epoch for sample in batch] for epoch in orders]
        for order in flat:
            assert sorted(order) == list(range(size))
            assert config["shuffle"] or order == list(range(size))
        lengths = set()
        for rank in range(world_size):
            found = reference(partial(loader_of, storage, rank=rank, **config), 2)
            wanted = [
                naive_batches(order, config["local_batch_size"], rank, world_size, config["drop_last"])
                for order in flat
            ]
            assert found == wanted
            lengths.add(len(found[0]))
            with loader_of(storage, rank=rank, **config) as loader:
                assert len(loader) == len(found[0])
                assert (loader.dataset_size, loader.global_batch_size) == (
                    size,
                    config["local_batch_size"] * world_size,
                )
        assert len(lengths) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in (65_535, 65_538))])
@pytest.mark.parametrize("shuffle", [False, True])
def test_special_sizes(size: int, shuffle: bool, tmp_path: Path) -> None:
    storage = storage_of("fields", tmp_path, size)
    for batch in {1, 3, 8, size} if size < 100 else {1_000}:
        if batch > size:
            continue
        for world_size in (1, 2, 3, 5):
            if batch * world_size > size:
                continue
            for drop_last in (True, False):
                seen: list[int] = []
                for rank in range(world_size):
                    options = {
                        "local_batch_size": batch,
                        "world_size": world_size,
                        "rank": rank,
                        "drop_last": drop_last,
                    }
                    (epoch,) = reference(partial(loader_of, storage, shuffle=shuffle, shuffle_seed=3, **options))
                    assert len(epoch) == (
                        size // (batch * world_size) if drop_last else -(-size // (batch * world_size))
                    )
                    seen += [sample for one in epoch for sample in one]
                assert len(set(seen)) == len(seen)
                assert len(seen) == (size - size % (batch * world_size) if drop_last else size)


# --- numeric batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"num_workers": 2, "prefetch": 2}], ids=str)
def test_numeric_batches_are_contiguous_tensors(options: dict[str, int], backend: str, tmp_path: Path) -> None:
    dtype = [("tokens", "<u2"), ("mask", "?"), ("pair", "<f4", (2,))]
    storage = make_stream(tmp_path, (17, 0, 9), dtype, read_interface=BACKENDS[backend]())
    config = {"sequence_length": 4, "local_batch_size": 2, "drop_last": False, "collate_fn": None, **options}
    with loader_of(storage, **config, overlap=1, dtype={"tokens": "int64"}) as loader:
        batches = list(loader)
    assert [len(batch["tokens"]) for batch in batches] == [2, 2, 2]
    for step, batch in enumerate(batches):
        wanted = np.array([[4 * i + j for j in range(5)] for i in (2 * step, 2 * step + 1)])
        assert batch["tokens"].dtype == torch.int64 and batch["mask"].dtype == torch.bool
        assert batch["pair"].dtype == torch.float32 and batch["pair"].shape == (2, 5, 2)
        assert all(column.is_contiguous() for column in batch.values())
        np.testing.assert_array_equal(batch["tokens"].numpy(), wanted)
        np.testing.assert_array_equal(batch["mask"].numpy(), wanted % 2 == 1)
        np.testing.assert_array_equal(batch["pair"].numpy(), np.repeat(wanted[:, :, None], 2, 2))


def test_a_mixed_world_of_ranks_with_an_empty_numeric_batch(tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (7,), TOKENS)
    options = {"collate_fn": None, "world_size": 3, "drop_last": False, "local_batch_size": 2}
    with loader_of(storage, rank=2, **options) as loader:
        first, last = (batch["tokens"] for batch in loader)
    assert (first.tolist(), tuple(last.shape)) == ([[2], [5]], (0, 1))


def test_reading_runs_ahead_of_the_caller(tmp_path: Path) -> None:
    gate = threading.Event()
    backend = LatencyBackend(gate=gate, match="*.elements.bin", concurrent_reads=True)
    storage = storage_of("fields", tmp_path, 20, read_interface=backend)
    with loader_of(storage, prefetch=2) as loader:
        iterator = iter(loader)
        backend.wait_for_waiting(1)
        gate.set()
        assert [next(iterator) for _ in range(20)] == [[i] for i in range(20)]


# --- what reaches the caller --------------------------------------------------------------------


@pytest.mark.parametrize("options", MODES[:3], ids=str)
def test_an_error_of_the_disk_arrives_and_the_loader_goes_on(options: dict[str, Any], tmp_path: Path) -> None:
    backend = FaultBackend(None, Fault(OSError(5, "Input/output error"), match="*.elements.bin", offset=4 * 5))
    storage = storage_of("fields", tmp_path, 12, read_interface=backend)
    backend.faults = (Fault(OSError(5, "Input/output error"), match="0000002*.elements.bin", offset=4 * 1),)
    with loader_of(storage, local_batch_size=2, **options) as loader:
        iterator = iter(loader)
        got = []
        with pytest.raises(OSError, match="Input/output error"):
            for batch in iterator:
                got.append(batch)  # noqa: PERF402 - what came before the error counts
        assert got == [[0, 1], [2, 3]]
        assert list(loader) == [[4, 5], [6, 7], [8, 9], [10, 11]]


@dataclass
class Nested:
    number: int
    tensor: Any


Pair = namedtuple("Pair", ["left", "right"])


def collate_nested(samples: list[Any]) -> Any:
    tensor = torch.tensor(first_ids(samples))
    return {"a": [tensor, (tensor, "text")], "b": Nested(1, tensor), "c": Pair(tensor, None)}


@pytest.mark.parametrize("options", MODES, ids=str)
def test_tensors_in_containers_keep_their_shapes(options: dict[str, Any], tmp_path: Path) -> None:
    with loader_of(storage_of("fields", tmp_path, 2), collate_fn=collate_nested, **options) as loader:
        batch = next(iter(loader))
    assert isinstance(batch["b"], Nested) and isinstance(batch["c"], Pair)
    assert plain(batch) == {"a": [[0], [[0], "text"]], "b": [1, [0]], "c": [[0], None]}


# --- checks ---------------------------------------------------------------------------------------


def test_workers_without_enough_prefetch_are_warned_of_once(tmp_path: Path) -> None:
    storage = storage_of("fields", tmp_path, 8)
    with pytest.warns(UserWarning, match="num_workers") as caught:
        loader_of(storage, num_workers=2)
    assert len(caught) == 1 and caught[0].filename == str(Path(__file__))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader_of(storage, num_workers=2, rank=1, world_size=2)
        loader_of(storage, num_workers=2, prefetch=1, local_batch_size=2)


def test_the_default_device_is_the_cpu_without_cuda(tmp_path: Path) -> None:
    wanted = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    assert StatefulDataLoader.get_default_device() == wanted
