"""Which samples a batch holds: against the obvious answer, whoever makes the batch."""

from __future__ import annotations

import itertools
import random
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guideloom import StatefulDataLoader
from guideloom._dataset.source import BatchSource
from guideloom._loader.work import Schedule
from guideloom._plan.order import make_order
from guideloom._plan.partition import Partition
from guideloom.testing import naive_batches, plain
from tests.loader.fakes import RowDataset, RowSource, make_items, make_rows, rows

WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 1},
    {"prefetch": 8},
    {"num_workers": 1, "prefetch": 1},
    {"num_workers": 3, "prefetch": 1},
    {"num_workers": 3, "prefetch": 8},
]


def epoch_of(size: int, seed: int | None, epoch: int = 0) -> list[int]:
    if seed is None:
        return list(range(size))
    return [int(i) for i in make_order(size, True, seed, epoch).positions_to_indexes(0, 1, size)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_batches_are_those_of_the_partition(way: dict[str, Any], drop_last: bool, seed: int | None) -> None:
    for size, batch, world in [(7, 1, 1), (7, 3, 1), (7, 1, 5), (7, 3, 2), (64, 8, 3), (64, 3, 5), (64, 64, 1)]:
        for rank in range(world):
            loader = make_items(
                size,
                local_batch_size=max(batch, way.get("num_workers", 0)) if batch == 1 else batch,
                rank=rank,
                world_size=world,
                shuffle=seed is not None,
                shuffle_seed=seed,
                drop_last=drop_last,
                **way,
            )
            batch_size = loader.global_batch_size // world
            if loader.global_batch_size > size:
                continue
            expected = [
                naive_batches(epoch_of(size, seed, epoch), batch_size, rank, world, drop_last) for epoch in range(2)
            ]
            with loader:
                assert [list(loader) for _ in range(2)] == expected
                assert len(loader) == len(expected[0])


@given(data=st.data(), size=st.integers(1, 300), batch=st.integers(1, 40), world=st.integers(1, 5))
def test_the_schedule_plans_what_the_partition_says(data: st.DataObject, size: int, batch: int, world: int) -> None:
    rank = data.draw(st.integers(0, world - 1))
    offset = data.draw(st.integers(0, size))
    partition = Partition(size, batch, rank, world, data.draw(st.booleans()))
    order = make_order(size, True, 3, 1)
    schedule = Schedule(RowSource(RowDataset(size)), order, partition, offset)
    numbers = data.draw(st.permutations(range(schedule.num_batches)))
    for number in numbers:
        prepared, lo, hi = schedule.rows(number)
        start, stride, count = partition.batch_positions(offset, number)
        expected = [int(order.at(np.array([start + stride * i]))[0]) for i in range(count)]
        assert prepared[lo:hi].tolist() == expected
        assert hi - lo == count


def test_small_batches_are_planned_together() -> None:
    loader = make_rows(1024, local_batch_size=2, world_size=2)
    with loader:
        assert len(list(loader)) == 256
    dataset = loader.dataset
    assert isinstance(dataset, RowDataset)
    assert dataset.prepared == [512]


def test_few_plans_are_kept_and_none_is_made_twice() -> None:
    """Threads are at batches of neighbouring plans at the same time."""
    size, batch = 10 * 512, 64
    dataset = RowDataset(size)
    schedule = Schedule(RowSource(dataset), make_order(size, True, 3, 1), Partition(size, batch, 0, 1, True), 0)
    plans: dict[int, weakref.ref[Any]] = {}
    for number in range(schedule.num_batches):
        for asked in (number, max(number - 512 // batch, 0)):
            plan = schedule.rows(asked)[0]
            plans[id(plan)] = weakref.ref(plan)
            del plan
            assert sum(ref() is not None for ref in plans.values()) <= 3
    assert dataset.prepared == [512] * 10


@pytest.mark.parametrize("way", [*WAYS, {"num_workers": 4, "prefetch": 2, "parallel_method": "process"}], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_numeric_batches_are_tensors_and_equal_the_samples(way: dict[str, Any], drop_last: bool) -> None:
    options = {"local_batch_size": 6, "shuffle": True, "shuffle_seed": 1, "drop_last": drop_last, **way}
    with make_rows(20, **options) as by_samples, make_rows(20, collate_fn=None, **options) as by_arrays:
        expected, found = list(by_samples), list(by_arrays)
    assert len(found) == (3 if drop_last else 4)
    for left, right in zip(expected, found, strict=True):
        assert isinstance(right["rows"], torch.Tensor)
        assert right["rows"].is_contiguous()
        assert right["rows"].tolist() == left.tolist()
        assert right["half"].dtype == torch.uint16
        assert (10 * right["half"].to(torch.int64)).tolist() == left[:, 0].tolist()


@pytest.mark.parametrize("way", [{}, {"prefetch": 2}, {"num_workers": 2, "prefetch": 2}], ids=str)
def test_a_rank_without_samples_in_the_last_batch_collates_nothing(way: dict[str, Any]) -> None:
    # 7 samples, 3 ranks of 2: the last batch is one sample, which is the first rank's.
    got = []
    for rank in range(3):
        seen: list[int] = []
        loader = make_items(
            7,
            collate_fn=lambda samples, seen=seen: seen.append(len(samples)) or samples,
            local_batch_size=2,
            rank=rank,
            world_size=3,
            drop_last=False,
            **way,
        )
        with loader:
            got.append(list(loader))
        assert seen == [2, 1 if rank == 0 else 0]
    assert got == [[[0, 3], [6]], [[1, 4], []], [[2, 5], []]]


@pytest.mark.parametrize(
    "way", [{}, {"prefetch": 2}, {"num_workers": 1, "prefetch": 1, "parallel_method": "process"}], ids=str
)
def test_a_collate_fn_that_takes_no_empty_list_is_told_why_it_gets_one(way: dict[str, Any]) -> None:
    for rank in (0, 2):
        loader = make_rows(7, collate_fn=np.stack, local_batch_size=2, rank=rank, world_size=3, drop_last=False, **way)
        with loader:
            batches = iter(loader)
            next(batches)
            if rank == 0:
                assert next(batches).shape == (1, 2)
                continue
            with pytest.raises(ValueError, match="need at least one array") as caught:
                next(batches)
            assert "this rank has no part of the last batch" in "".join(caught.value.__notes__)
    with (
        make_rows(7, collate_fn=lambda rows: [][len(rows)], local_batch_size=2) as loader,
        pytest.raises(IndexError) as caught_full,
    ):
        next(iter(loader))
    assert "no part of" not in "".join(getattr(caught_full.value, "__notes__", []))


def test_a_numeric_batch_may_be_empty_too() -> None:
    loader = make_rows(7, collate_fn=None, local_batch_size=2, rank=2, world_size=3, drop_last=False)
    with loader:
        assert [batch["rows"].shape for batch in loader] == [(2, 2), (0, 2)]


def test_ranks_agree_without_a_seed() -> None:
    batches = []
    for rank in range(2):
        with make_items(20, local_batch_size=5, rank=rank, world_size=2, shuffle=True) as loader:
            batches.extend(itertools.chain.from_iterable(loader))
            assert loader.state_dict()["shuffle_seed"] is None
    assert sorted(batches) == list(range(20))


def test_epochs_differ_and_a_seed_decides() -> None:
    with make_items(50, shuffle=True, shuffle_seed=1) as one, make_items(50, shuffle=True, shuffle_seed=2) as two:
        runs = [list(one), list(one), list(two)]
    assert len({str(run) for run in runs}) == 3


def test_collate_is_called_in_order_and_never_twice_at_once() -> None:
    running = 0
    seen: list[int] = []

    def collate(samples: list[int]) -> list[int]:
        nonlocal running
        running += 1
        assert running == 1
        seen.extend(samples)
        running -= 1
        return samples

    with make_items(200, collate_fn=collate, local_batch_size=4, num_workers=4, prefetch=4) as loader:
        list(loader)
    assert seen == list(range(200))


@pytest.mark.parametrize("way", [{"num_workers": 3}, {"num_workers": 3, "parallel_method": "process"}], ids=str)
def test_workers_without_prefetch_read_nothing_ahead(way: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="num_workers"):
        loader = make_rows(24, local_batch_size=4, **way)
    with loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[10 * (4 * n + i) for i in range(4)] for n in range(6)]


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_prefetch_bounds_what_is_made_ahead(prefetch: int) -> None:
    made: list[int] = []
    with make_items(60, collate_fn=lambda samples: made.append(samples[0]) or samples, prefetch=prefetch) as loader:
        for taken, _ in enumerate(loader, 1):
            assert len(made) <= taken + prefetch


def test_a_source_may_give_one_array() -> None:
    class Plain(RowSource):
        def arrays(self, prepared: Any, lo: int, hi: int, empty: Any) -> Any:
            return super().arrays(prepared, lo, hi, empty)["rows"]

    class PlainDataset(RowDataset):
        def sync_reader(self) -> Any:
            reader = super().sync_reader()
            reader.batch_source = lambda: Plain(self)  # type: ignore[attr-defined]
            return reader

    with StatefulDataLoader(PlainDataset(6), None, device="cpu", local_batch_size=3) as loader:
        assert plain(list(loader)) == [[[0, 1], [10, 11], [20, 21]], [[30, 31], [40, 41], [50, 51]]]
    assert issubclass(Plain, BatchSource)


class Clock:
    """Now quick, now slow: takes the loader through all its ways of making batches, whatever this machine does."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        if self.choose.random() < 0.02:
            self.step = self.choose.choice([0.0, 0.0, 0.0, 1e-6, 1e-3])
        self.now += self.step
        return self.now


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("collate_fn", [None, rows])
def test_no_way_of_making_batches_changes_them(seed: int, collate_fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(seed)
    monkeypatch.setattr("guideloom._loader.pipeline.perf_counter", clock)
    monkeypatch.setattr("guideloom._loader.sharing.usable_processors", lambda: 64)
    made_by = set()

    class Watched(RowDataset):
        def before_read(self, index: int) -> None:
            made_by.add(threading.current_thread().name.split("-")[-1])

    for way in ({"prefetch": 1}, {"num_workers": 3, "prefetch": 2}, {"num_workers": 3, "prefetch": 9}):
        loader = StatefulDataLoader(Watched(3000), collate_fn, device="cpu", local_batch_size=3, **way)
        with loader:
            batches = list(loader)
            found = [(batch if collate_fn else batch["rows"])[:, 0].tolist() for batch in batches]
        assert found == [[10 * (3 * n + i) for i in range(3)] for n in range(1000)]
    assert made_by == {"MainThread", "batching", "reading"} - ({"MainThread"} if collate_fn else set())
