"""Loops that count batches, peek, or start again, as those of training frameworks do: each pass is one epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from guideloom import StatefulDataLoader
from guideloom.errors import InUseError, NotOpenError, StateMismatchError, StateSchemaError
from guideloom.testing import reference
from tests.loader.fakes import make_items

SIZE = 23
WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 3},
    {"num_workers": 2, "prefetch": 2},
    {"num_workers": 1, "prefetch": 2, "parallel_method": "process"},
]
make = partial(make_items, SIZE, local_batch_size=4, shuffle=True, shuffle_seed=3)
whole = partial(make, whole_epochs=True)


def counted(loader: StatefulDataLoader, limit: int | None = None) -> list[Any]:
    """One pass of a loop that asks for as many batches as there are, and never for the end of the epoch."""
    batches = iter(loader)
    return [next(batches) for _ in range(len(loader) if limit is None else limit)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_loop_that_counts_gets_every_epoch(way: dict[str, Any], drop_last: bool) -> None:
    epochs = reference(partial(make, drop_last=drop_last), 3)
    with whole(drop_last=drop_last, **way) as loader:
        assert [counted(loader) for _ in range(3)] == epochs


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_iterator_that_is_kept_is_ended_by_the_next(way: dict[str, Any]) -> None:
    epochs = reference(make, 3)
    with whole(**way) as loader:
        kept = []
        for epoch in epochs:
            kept.append(iter(loader))
            assert list(islice(kept[-1], 2)) == epoch[:2]
        for old in kept[:-1]:
            with pytest.raises(NotOpenError):
                next(old)
        assert next(kept[-1]) == epochs[2][2]


def test_a_check_of_two_batches_takes_nothing_from_the_evaluation_behind_it() -> None:
    evaluate = partial(make_items, SIZE, local_batch_size=4, drop_last=False)
    with evaluate(whole_epochs=True) as loader:
        counted(loader, 2)
        assert [list(loader) for _ in range(2)] == reference(evaluate, 2)


def test_a_limit_of_batches_takes_the_first_ones_of_each_epoch() -> None:
    with whole() as loader:
        assert [counted(loader, 2) for _ in range(3)] == [epoch[:2] for epoch in reference(make, 3)]


def test_an_iterator_of_which_nothing_was_taken_costs_no_epoch() -> None:
    epochs = reference(make, 2)
    with whole(prefetch=2) as loader:
        iter(loader)
        state = loader.state_dict()
        first = iter(loader)
        assert next(first) == epochs[0][0]
        loader.load_state_dict(loader.state_dict())
        iter(loader)
        assert list(loader) == epochs[0][1:]
        loader.load_state_dict(state)
        assert list(loader) == epochs[0]


@pytest.mark.parametrize("stop", range(6))
def test_only_the_first_pass_behind_a_load_is_the_rest_of_an_epoch(stop: int) -> None:
    epochs = reference(make, 3)
    with whole() as loader:
        counted(loader, stop)
        state = loader.state_dict()
    assert state["observation_offset"] == 4 * stop
    expected = [epochs[0][stop:], epochs[1], epochs[2]]
    for early in (False, True):
        loader = whole()
        if early:
            loader.load_state_dict(state)
        with loader:
            if not early:
                loader.load_state_dict(state)
            assert loader.state_dict()["observation_offset"] == 4 * stop
            # Where nothing is left of the first epoch, it is over.
            assert [list(loader) for _ in range(2)] == [epoch for epoch in expected if epoch][:2]


def test_a_state_may_be_loaded_while_an_iterator_is_live() -> None:
    epochs = reference(make, 1)
    with whole() as loader:
        live = iter(loader)
        next(live)
        state = loader.state_dict()
        next(live)
        loader.load_state_dict(state)
        with pytest.raises(NotOpenError):
            next(live)
        assert list(loader) == epochs[0][1:]
    with make() as loader:
        live = iter(loader)
        with pytest.raises(InUseError):
            loader.load_state_dict(state)


def test_a_state_that_is_refused_ends_no_iterator() -> None:
    (epoch,) = reference(make, 1)
    with whole() as loader:
        batches = iter(loader)
        assert next(batches) == epoch[0]
        with pytest.raises(StateMismatchError, match="shuffle_seed"):
            loader.load_state_dict({**loader.state_dict(), "shuffle_seed": 4})
        behind = {**loader.state_dict(), "dataset_size": 10_000, "observation_offset": 10_000}
        with pytest.raises(StateSchemaError, match="observation_offset"):
            loader.load_state_dict(behind, override={"identity"})
        assert list(batches) == epoch[1:]


@pytest.mark.parametrize("seed", range(20))
def test_any_use_gives_what_a_plain_model_says(seed: int) -> None:
    """The model: an epoch, a place in it, and whether that place is where a pass may still begin."""
    choose = random.Random(seed)
    epochs = reference(make, 40)
    epoch = place = 0
    may_begin = True
    saved: list[tuple[int, int, Any]] = []
    live: Iterator[Any] | None = None
    with whole() as loader:
        for _ in range(30):
            act = choose.choice(["pass", "pass", "save", "load"])
            if act == "save":
                saved.append((epoch, place, loader.state_dict()))
            elif act == "load" and saved:
                epoch, place, state = choose.choice(saved)
                loader.load_state_dict(state)
                may_begin = True
            elif act == "pass":
                if not may_begin or place == len(epochs[epoch]):
                    epoch, place = epoch + 1, 0
                live = iter(loader)
                may_begin = True
                for _ in range(choose.randrange(8)):
                    if place == len(epochs[epoch]):
                        assert next(live, None) is None
                        epoch, place, may_begin = epoch + 1, 0, True
                        break
                    assert next(live) == epochs[epoch][place]
                    place, may_begin = place + 1, False


def test_without_it_a_loop_that_counts_gets_an_empty_epoch() -> None:
    """What the default promises: a pass that was left goes on, and at an epoch's end there is nothing left."""
    epochs = reference(make, 2)
    with make() as loader:
        assert counted(loader) == epochs[0]
        assert list(loader) == []
        assert list(loader) == epochs[1]


def test_it_is_shown() -> None:
    assert "whole_epochs=True" in repr(whole())
    assert "whole_epochs" not in repr(make())
