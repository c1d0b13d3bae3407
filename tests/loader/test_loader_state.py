"""What a state holds, and which states are refused."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest

from guideloom.errors import ArgumentError, InUseError, StateMismatchError, StateSchemaError
from guideloom.testing import plain
from tests.loader.fakes import ItemDataset, RowDataset, make_items, make_rows

PUBLISHED = ("epoch", "observation_offset", "shuffle", "shuffle_seed", "drop_last")


def saved(**options: Any) -> dict[str, Any]:
    with make_rows(20, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        return dict(loader.state_dict())


def with_dataset(dataset: RowDataset, **options: Any) -> Any:
    from guideloom import StatefulDataLoader

    return StatefulDataLoader(dataset, list, device="cpu", **options)


def test_the_entries() -> None:
    assert saved(shuffle=True, shuffle_seed=3) == {
        "epoch": 0,
        "observation_offset": 1,
        "shuffle": True,
        "shuffle_seed": 3,
        "drop_last": True,
        "version": 1,
        "order": "feistel-1",
        "identity": "v2:a",
        "dataset_size": 20,
        "sequence_length": 2,
        "overlap": 0,
    }
    with make_items() as loader:
        state = loader.state_dict()
    assert "identity" not in state
    assert "sequence_length" not in state
    assert all(type(value) in (int, bool, str, type(None)) for value in state.values())


def test_it_is_small_and_a_copy() -> None:
    with make_rows() as loader:
        state = loader.state_dict()
        assert len(pickle.dumps(state)) < 500
        state["epoch"] = 99
        assert loader.state_dict()["epoch"] == 0


def test_ranks_and_batches_are_no_part_of_it() -> None:
    states = []
    for rank in range(2):
        with make_rows(20, local_batch_size=5, rank=rank, world_size=2) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    with make_rows(20, local_batch_size=10, prefetch=2) as loader:
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]


def test_a_published_state_loads_with_the_checks_it_allows() -> None:
    state = {key: value for key, value in saved().items() if key in PUBLISHED}
    with make_rows() as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).tolist() == [[10, 11]]
    with make_rows(shuffle=True) as loader, pytest.raises(StateMismatchError, match=r"shuffle True.*has False"):
        loader.load_state_dict(state)
    with make_rows(shuffle=True, shuffle_seed=2) as loader, pytest.raises(StateMismatchError, match=r"2.*1"):
        loader.load_state_dict({**state, "shuffle": True, "shuffle_seed": 1})


@pytest.mark.parametrize("key", PUBLISHED)
def test_a_missing_key_is_named(key: str) -> None:
    state = saved()
    del state[key]
    with make_rows() as loader, pytest.raises(StateSchemaError, match=f"lacks '{key}'"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("epoch", True),
        ("epoch", 1.0),
        ("epoch", "1"),
        ("epoch", None),
        ("epoch", 2**63),
        ("observation_offset", -1),
        ("observation_offset", 21),
        ("observation_offset", 4.5),
        ("observation_offset", False),
        ("shuffle", 1),
        ("shuffle_seed", "3"),
        ("shuffle_seed", 3.0),
        ("drop_last", None),
        ("version", 0),
        ("version", 2),
        ("version", "1"),
        ("identity", 7),
        ("order", 7),
        ("dataset_size", -20),
        ("sequence_length", 2.0),
        ("step", 7),
    ],
)
def test_an_ill_typed_or_impossible_entry_is_refused_by_name(key: str, value: object) -> None:
    state = {**saved(), key: value}
    with make_rows() as loader:
        before = loader.state_dict()
        with pytest.raises(StateSchemaError, match=key):
            loader.load_state_dict(state)
        assert loader.state_dict() == before


def test_no_mapping() -> None:
    with make_rows() as loader, pytest.raises(StateSchemaError, match="mapping"):
        loader.load_state_dict([1])  # type: ignore[arg-type]


def test_integers_of_numpy_are_integers() -> None:
    state = {**saved(), "epoch": np.int64(1), "observation_offset": np.int32(2)}
    with make_rows() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert type(loader.state_dict()["epoch"]) is int


MISMATCHES: dict[str, Any] = {
    "identity": lambda: with_dataset(RowDataset(20, "v2:b")),
    "dataset_size": lambda: with_dataset(RowDataset(21)),
    "sequence_length": lambda: with_dataset(RowDataset(40, view={"sequence_length": 1, "overlap": 0})),
    "overlap": lambda: with_dataset(RowDataset(20, view={"sequence_length": 2, "overlap": 1})),
    "shuffle": lambda: with_dataset(RowDataset(20), shuffle=True),
    "shuffle_seed": lambda: with_dataset(RowDataset(20), shuffle_seed=4),
    "drop_last": lambda: with_dataset(RowDataset(20), drop_last=False),
}


@pytest.mark.parametrize("key", MISMATCHES)
@pytest.mark.parametrize("early", [False, True], ids=["open", "before open"])
def test_another_run_is_refused_with_both_values_unless_overridden(key: str, early: bool) -> None:
    state = saved()
    with pytest.raises(StateMismatchError) as caught:
        loader = MISMATCHES[key]()
        if early:
            loader.load_state_dict(state)
        with loader:
            assert not early
            loader.load_state_dict(state)
    error = caught.value
    assert error.key == key
    assert repr(error.expected) in str(error)
    assert repr(error.found) in str(error)
    assert error.found == state[key]

    with MISMATCHES[key]() as loader:
        loader.load_state_dict(state, override={key})
        assert loader.state_dict()["observation_offset"] == 1
        assert plain(next(iter(loader)))


def test_an_identity_that_one_side_lacks_is_not_compared() -> None:
    """A data set of one's own need not have one, and may get one later."""
    with with_dataset(RowDataset(20, None)) as loader:
        loader.load_state_dict(saved())
        assert plain(next(iter(loader)))
    with with_dataset(RowDataset(20, "v2:b")) as loader:
        loader.load_state_dict({**saved(), "identity": None})
        assert plain(next(iter(loader)))


def test_a_state_of_a_stream_is_none_of_documents() -> None:
    with with_dataset(RowDataset(20, view={})) as loader, pytest.raises(StateMismatchError, match="sequence_length"):
        loader.load_state_dict(saved())


def test_an_override_does_not_reach_behind_the_end() -> None:
    state = {**saved(), "observation_offset": 15}
    with with_dataset(RowDataset(10, "v2:b")) as loader, pytest.raises(StateSchemaError, match="at most the 10"):
        loader.load_state_dict(state, override=["identity"])


def test_an_unknown_override_is_an_error() -> None:
    with make_rows() as loader:
        with pytest.raises(ArgumentError, match="'idenity'"):
            loader.load_state_dict(saved(), override=["idenity"])
        loader.load_state_dict(saved(), override="identity")


def test_loading_before_open() -> None:
    state = {**saved(), "epoch": 2, "observation_offset": 4}
    loader = make_rows()
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    with loader:
        assert loader.state_dict() == state
        assert next(iter(loader))[0, 0] == 40


def test_a_state_that_does_not_fit_at_open_leaves_the_loader_closed() -> None:
    dataset = RowDataset(20, "v2:b")
    loader = with_dataset(dataset)
    loader.load_state_dict(saved())
    with pytest.raises(StateMismatchError):
        loader.open()
    assert (dataset.opened, dataset.closed) == (1, 1)
    loader.load_state_dict({**saved(), "identity": "v2:b"})
    with loader:
        assert plain(next(iter(loader))) == [[10, 11]]


def test_a_load_while_an_iterator_is_live_is_refused() -> None:
    with make_rows() as loader:
        iterator = iter(loader)
        with pytest.raises(InUseError):
            loader.load_state_dict(loader.state_dict())
        iterator.close()
        loader.load_state_dict(loader.state_dict())


def test_loading_says_where_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "guideloom"), make_rows() as loader:
        loader.load_state_dict({**saved(), "epoch": 3, "observation_offset": 12})
    assert "epoch 3, sample 12 of 20" in caplog.text


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("changes", "rank", "is_said"),
    [
        ({"shuffle": True, "shuffle_seed": 1}, 0, True),
        ({"shuffle": True, "shuffle_seed": 1}, 1, False),
        ({"shuffle": True, "shuffle_seed": 1, "observation_offset": 0}, 0, False),
        ({"shuffle": True, "shuffle_seed": 1, "order": "feistel-1"}, 0, False),
        ({}, 0, False),
    ],
)
def test_a_state_that_names_no_order_does_not_pass_in_silence(
    changes: dict[str, Any], rank: int, is_said: bool, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"epoch": 2, "observation_offset": 8, "shuffle": False, "shuffle_seed": None, "drop_last": True, **changes}
    options = {"shuffle": state["shuffle"], "shuffle_seed": state["shuffle_seed"]}
    loader = make_rows(rank=rank, world_size=2, **options)
    if when == "before":
        loader.load_state_dict(state)
    with loader:
        if when == "after":
            loader.load_state_dict(state)
        assert loader.state_dict()["observation_offset"] == state["observation_offset"]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == is_said
    assert all("rest of epoch 2 comes in the order feistel-1" in text for text in said)


def test_before_the_first_open_only_the_loader_is_known() -> None:
    assert set(make_rows().state_dict()) == {*PUBLISHED, "version"}


def test_a_position_that_the_data_set_no_longer_has_is_refused_as_the_loader_is_opened_again() -> None:
    loader = make_items(20, local_batch_size=4)
    dataset = loader.dataset
    assert isinstance(dataset, ItemDataset)
    with loader:
        for _ in zip(range(4), loader, strict=False):
            pass
    dataset.size = 15
    with pytest.raises(StateSchemaError, match="at most the 15 samples of the data set, found 16"):
        loader.open()
    dataset.size = 16
    with loader:
        assert loader.state_dict()["observation_offset"] == 16
