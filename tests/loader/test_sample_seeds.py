"""What a collate function draws is the same for a sample whenever, and wherever, its batch is made."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from guideloom import StatefulDataLoader, sample_seeds
from guideloom._loader.work import collated
from guideloom._plan.order import make_order
from guideloom._plan.seeds import position_seeds
from guideloom.errors import NotOpenError
from tests.loader.fakes import ItemDataset
from tests.sweeps.interrupted import interrupt_everywhere

SIZE = 103


def numbered(samples: list[int]) -> list[tuple[int, int]]:
    """Each sample with its seed."""
    return list(zip(samples, sample_seeds().tolist(), strict=True))


def loader(**settings: Any) -> StatefulDataLoader:
    settings = {"local_batch_size": 8, "shuffle": True, "shuffle_seed": 5, "drop_last": False, **settings}
    return StatefulDataLoader(ItemDataset(SIZE), numbered, **settings)


def expected(epoch: int, shuffle: bool = True, seed: int = 5) -> list[tuple[int, int]]:
    order = make_order(SIZE, shuffle, seed, epoch)
    return list(
        zip(order.positions_to_indexes(0, 1, SIZE).tolist(), position_seeds(order, 0, 1, SIZE).tolist(), strict=True)
    )


@pytest.fixture(params=["fork", "spawn"])
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"local_batch_size": 3},
        {"prefetch": 4},
        {"num_workers": 3},
        {"num_workers": 3, "prefetch": 4},
        {"shuffle": False},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:prefetch")
def test_each_sample_has_its_own_in_each_epoch(settings: dict[str, Any]) -> None:
    with loader(**settings) as batches:
        found = [[pair for batch in batches for pair in batch] for _ in range(3)]
    shuffle = settings.get("shuffle", True)
    assert found == [expected(epoch, shuffle) for epoch in range(3)]
    assert len({seed for epoch in found for _, seed in epoch}) == 3 * SIZE


def test_processes_give_the_same(method: str) -> None:
    with loader(num_workers=2, parallel_method="process", prefetch=3) as batches:
        found = [[pair for batch in batches for pair in batch] for _ in range(2)]
    assert found == [expected(0), expected(1)]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (3, 5), (4, 2)])
def test_ranks_and_a_resume_do_not_change_them(world_size: int, batch_size: int) -> None:
    with loader() as before:
        given = iter(before)
        found = [pair for _ in range(3) for pair in next(given)]
        state = json.loads(json.dumps(before.state_dict()))
    for rank in range(world_size):
        with loader(rank=rank, world_size=world_size, local_batch_size=batch_size) as after:
            after.load_state_dict(state)
            found += [pair for batch in after for pair in batch]
    assert sorted(found) == sorted(expected(0))


def test_another_seed_gives_others() -> None:
    with loader(shuffle_seed=6) as batches:
        assert [pair for batch in batches for pair in batch] == expected(0, seed=6)
    assert not {seed for _, seed in expected(0)} & {seed for _, seed in expected(0, seed=6)}
    with loader(shuffle=False, shuffle_seed=None) as batches:
        assert [pair for batch in batches for pair in batch] == expected(0, shuffle=False, seed=0)


def test_elsewhere_there_are_none() -> None:
    with pytest.raises(NotOpenError, match="none runs in this thread"):
        sample_seeds()
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            sample_seeds()
        except NotOpenError as error:
            caught.append(error)

    def collate(samples: list[int]) -> np.ndarray[Any, Any]:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return sample_seeds()

    with StatefulDataLoader(ItemDataset(SIZE), collate, local_batch_size=8, shuffle=False) as batches:
        seeds = next(iter(batches))
    assert len(seeds) == 8 and len(caught) == 1
    with pytest.raises(NotOpenError):
        sample_seeds()


def test_an_interrupt_leaves_none_behind() -> None:
    def check(_: None, interrupted: bool) -> None:
        with pytest.raises(NotOpenError):
            sample_seeds()

    def collate() -> None:
        collated(lambda samples: sample_seeds(), [1], lambda number: np.zeros(number, np.uint64), 1)

    assert interrupt_everywhere(lambda: None, lambda _: collate(), check) > 3


def test_a_loader_within_a_collate_function_has_its_own() -> None:
    def collate(samples: list[int]) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        before = sample_seeds().tolist()
        with loader(shuffle_seed=9) as inner:
            within = next(iter(inner))
        return before, within, sample_seeds().tolist()

    with StatefulDataLoader(ItemDataset(SIZE), collate, local_batch_size=4, shuffle=True, shuffle_seed=5) as batches:
        before, within, after = next(iter(batches))
    assert before == after == [seed for _, seed in expected(0)[:4]]
    assert within == expected(0, seed=9)[:8]


def test_a_collate_function_that_fails_leaves_nothing_behind() -> None:
    def collate(samples: list[int]) -> None:
        raise KeyError(samples[0])

    with StatefulDataLoader(ItemDataset(SIZE), collate, local_batch_size=4, shuffle=False) as batches:
        with pytest.raises(KeyError):
            next(iter(batches))
        with pytest.raises(NotOpenError):
            sample_seeds()


def test_memory_of_seeds_is_new() -> None:
    with StatefulDataLoader(
        ItemDataset(SIZE), lambda samples: (sample_seeds(), sample_seeds()), local_batch_size=4, shuffle=False
    ) as batches:
        first, second = next(iter(batches))
    first[:] = 0
    assert second.all()
