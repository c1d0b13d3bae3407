"""Resume: stopped and restored anywhere, a run gives what it would have given."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from typing import Any

import pytest

from guideloom.testing import check_resume, check_worlds, reference
from tests.loader.fakes import ItemDataset, make_items, make_rows

OTHER_WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 8},
    {"num_workers": 1, "prefetch": 1},
    {"num_workers": 3, "prefetch": 8},
]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("size", "batch"), [(7, 3), (6, 3), (3, 3), (10, 1)])
def test_at_every_position_with_other_workers(size: int, batch: int, drop_last: bool) -> None:
    make = partial(make_items, size, local_batch_size=max(3, batch), drop_last=drop_last, shuffle=True, shuffle_seed=9)
    check_resume(make, 2, restore_with=OTHER_WAYS)


@pytest.mark.parametrize("way", OTHER_WAYS[1:], ids=str)
def test_at_every_position_of_a_run_with_workers(way: dict[str, Any]) -> None:
    check_resume(partial(make_rows, 17, local_batch_size=4, shuffle=True, shuffle_seed=9, **way), 2, through=("json",))


def test_in_a_new_process() -> None:
    check_resume(partial(make_rows, 9, local_batch_size=2, shuffle=True), 1, points=[0, 2, 4], subprocess=True)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_on_each_of_several_ranks(rank: int) -> None:
    check_resume(partial(make_items, 20, local_batch_size=2, rank=rank, world_size=3, drop_last=False, shuffle=True), 2)


@pytest.mark.parametrize(
    "worlds",
    [
        [(3, 8, 2), (4, 3, 1), (2, 5, 3), (1, 8, 1)],
        [(1, 2, 3), (5, 1, 2), (2, 3, 1)],
        [(4, 2, 1), (2, 4, 2), (8, 1, 1)],
        [(1, 8, 1), (2, 3, 2), (1, 5, 1), (7, 1, 0)],
        [(3, 3, 0), (5, 2, 0)],
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_through_other_worlds_every_sample_once(worlds: list[tuple[int, int, int]], shuffle: bool) -> None:
    check_worlds(partial(make_rows, 131, drop_last=False, shuffle=shuffle, collate_fn=list), worlds, rows_of)


def rows_of(batch: Any) -> list[Any]:
    return list(batch)


def test_a_change_of_world_size_leaves_each_global_batch() -> None:
    def global_batches(world: int) -> list[list[int]]:
        ranks = []
        for rank in range(world):
            with make_items(48, local_batch_size=12 // world, rank=rank, world_size=world, shuffle=True) as loader:
                ranks.append(list(loader))
        return [sorted(i for part in parts for i in part) for parts in zip(*ranks, strict=True)]

    assert global_batches(1) == global_batches(2) == global_batches(3) == global_batches(4)


def test_states_at_the_end_of_an_epoch() -> None:
    make = partial(make_items, 10, local_batch_size=4, shuffle=True)
    epochs = reference(make, 3)
    with make() as loader:
        iterator = iter(loader)
        list(islice(iterator, 2))
        at_end = loader.state_dict()
        assert next(iterator, None) is None
        after = loader.state_dict()
    assert (at_end["epoch"], at_end["observation_offset"]) == (0, 8)
    assert (after["epoch"], after["observation_offset"]) == (1, 0)
    with make() as loader:
        loader.load_state_dict(at_end)
        assert [list(loader) for _ in range(3)] == [[], epochs[1], epochs[2]]
    with make() as loader:
        loader.load_state_dict(after)
        assert [list(loader) for _ in range(2)] == epochs[1:]


def test_each_later_epoch_starts_at_its_beginning() -> None:
    make = partial(make_items, 10, local_batch_size=2, shuffle=True)
    epochs = reference(make, 4)
    with make() as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "observation_offset": 6})
        assert [list(loader) for _ in range(4)] == [epochs[0][3:], *epochs[1:]]


def test_a_break_goes_on_at_the_next_iter() -> None:
    with make_items(10, prefetch=4) as loader:
        for batch in loader:
            if batch == [3]:
                break
        assert next(iter(loader)) == [4]


def test_two_loaders_over_one_dataset() -> None:
    from guideloom import StatefulDataLoader

    dataset = ItemDataset(10)
    with (
        StatefulDataLoader(dataset, list, device="cpu") as one,
        StatefulDataLoader(dataset, list, device="cpu") as two,
    ):
        ones, twos = iter(one), iter(two)
        list(islice(ones, 3))
        list(islice(twos, 5))
        assert (one.state_dict()["observation_offset"], two.state_dict()["observation_offset"]) == (3, 5)
        ones.close()
        one.load_state_dict(two.state_dict())
        assert next(iter(one)) == [5] == next(twos)


@pytest.mark.parametrize("way", OTHER_WAYS, ids=str)
def test_the_state_counts_what_was_delivered_over_all_ranks(way: dict[str, Any]) -> None:
    with make_items(32, local_batch_size=4, world_size=2, rank=1, **way) as loader:
        assert loader.state_dict()["observation_offset"] == 0
        for number, _ in enumerate(loader, 1):
            state = loader.state_dict()
            assert state["observation_offset"] == 8 * number
            assert json.loads(json.dumps(state)) == state


def test_the_position_may_be_set_to_a_global_step() -> None:
    with make_items(40, local_batch_size=2, world_size=2, shuffle=True) as loader:
        batches = list(loader)
        step = {**loader.state_dict(), "epoch": 0, "observation_offset": 6 * loader.global_batch_size}
        loader.load_state_dict(step)
        assert list(loader) == batches[6:]


def test_a_deep_position_costs_one_plan() -> None:
    loader = make_rows(10**9, local_batch_size=4, shuffle=True)
    with loader:
        loader.load_state_dict({**loader.state_dict(), "observation_offset": 10**9 - 8})
        assert len(list(loader)) == 2
        assert sum(loader.dataset.prepared) == 8  # type: ignore[attr-defined]


def test_position_survives_closing() -> None:
    loader = make_rows(20, local_batch_size=2, prefetch=2)
    with loader:
        list(islice(loader, 3))
    state = loader.state_dict()
    assert state["observation_offset"] == 6
    assert state["identity"] == "v2:a"
    with loader:
        assert loader.state_dict() == state
        assert next(iter(loader))[0, 0] == 60
