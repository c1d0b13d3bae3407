"""The resume checks pass for a loader that resumes, and each kind of failure in the field makes them fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from guideloom.testing import check_resume, check_worlds, naive_batches, plain, reference
from guideloom.testing.oracles import difference


class FakeLoader:
    """A loader in its simplest correct form; ``fault`` breaks it in one way."""

    def __init__(
        self,
        size: int = 10,
        local_batch_size: int = 3,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int = 0,
        fault: str = "",
    ) -> None:
        self.size, self.batch, self.rank, self.world = size, local_batch_size, rank, world_size
        self.drop_last, self.prefetch, self.fault = drop_last, prefetch, fault
        self.epoch = self.offset = self.loaded = 0

    def order(self, epoch: int) -> list[int]:
        order = list(range(self.size))
        random.Random(f"{self.fault == 'other order' and self.loaded} {epoch}").shuffle(order)
        return order

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "offset": self.offset}
        if self.fault == "state after load" and self.loaded:
            state["offset"] = 0
        if self.fault == "not json":
            state["epoch"] = np.int64(self.epoch)
        if self.fault == "json changes it":
            state = {"epoch": self.epoch, "offset": self.offset, "pair": (1, 2)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.fault == "not loaded":
            return
        self.epoch, self.offset, self.loaded = int(state["epoch"]), state["offset"], 1
        if self.fault == "one too far":
            self.offset += self.batch

    def __iter__(self) -> Iterator[Any]:
        size = self.batch * self.world
        start = self.offset
        order = self.order(self.epoch)
        steps = naive_batches(order, self.batch, self.rank, self.world, self.drop_last, start)
        fetched = 0
        for number, batch in enumerate(steps):
            if self.fault == "counts prefetched":
                fetched = min(len(steps), number + 2)
                self.offset = min(self.size, start + fetched * size)
            else:
                self.offset = min(self.size, start + (number + 1) * size)
            if self.fault == "depends on prefetch" and self.prefetch:
                batch = batch[::-1]
            yield np.array(batch)
        if self.fault == "stuck at the end" and self.loaded and not steps:
            return
        self.epoch += 1
        self.offset = self.batch if self.fault == "old offset" and self.loaded and start else 0
        if self.fault == "epoch lost" and self.loaded and not steps:
            self.epoch += 1


def test_the_reference_is_the_uninterrupted_run() -> None:
    epochs = reference(FakeLoader, 2, local_batch_size=4)
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 2], [4, 4, 2]]
    assert [sorted(i for batch in epoch for i in batch) for epoch in epochs] == [list(range(10))] * 2


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_that_resumes_passes(drop_last: bool) -> None:
    make = partial(FakeLoader, drop_last=drop_last)
    assert check_resume(make, 2) == reference(make, 2)


def test_another_process_and_overrides() -> None:
    check_resume(FakeLoader, 1, points=[2], restore_with=[{}, {"prefetch": 4}], subprocess=True)


FAULTS = [
    "state after load",
    "not json",
    "json changes it",
    "not loaded",
    "one too far",
    "counts prefetched",
    "old offset",
    "other order",
    "stuck at the end",
    "epoch lost",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_failure_is_caught(fault: str) -> None:
    with pytest.raises((AssertionError, TypeError)):
        check_resume(partial(FakeLoader, fault=fault), 2)


def test_what_must_not_matter_is_caught() -> None:
    make = partial(FakeLoader, fault="depends on prefetch")
    check_resume(make, 1)
    with pytest.raises(AssertionError, match=r"with \{'prefetch': 4\}"):
        check_resume(make, 1, restore_with=[{"prefetch": 4}])


def test_the_message_names_the_place() -> None:
    expected = reference(FakeLoader, 1)[0]
    with pytest.raises(AssertionError) as caught:
        check_resume(partial(FakeLoader, fault="one too far"), 1, points=[1], through=["json"])
    message = str(caught.value)
    assert "restored after batch 1 (batch 1 of 4 of epoch 0) through json" in message, message
    assert "loaded" in message or repr(expected[1][0]) in message


def test_points_must_exist() -> None:
    with pytest.raises(ValueError, match="expected points within 0"):
        check_resume(FakeLoader, 1, points=[99])


def test_worlds() -> None:
    found = check_worlds(partial(FakeLoader, size=67), [(2, 8, 1), (4, 3, 2), (1, 5, 1), (2, 8, 0)])
    assert sorted(found) == list(range(67))


def test_worlds_catch_a_loader_that_forgets() -> None:
    with pytest.raises(AssertionError, match="one epoch through"):
        check_worlds(partial(FakeLoader, size=67, fault="not loaded"), [(2, 8, 1), (4, 3, 0)])


def test_plain() -> None:
    found = plain({"a": (np.arange(2), [np.float32(1.5)]), "b": memoryview(b"x"), "c": "text", "d": None})
    assert found == {"a": [[0, 1], [1.5]], "b": b"x", "c": "text", "d": None}


def test_a_nan_in_a_batch_is_no_difference() -> None:
    def batch(*rest: Any) -> Any:
        return plain([{"a": np.array([1.5, np.nan]), "b": [np.float32(np.nan), *rest]}])

    assert difference(batch(), batch()) is None
    assert difference(batch(1), batch(2)) == "[0]['b'][1]: expected 1, found 2"
    assert difference(batch(0.0), batch(np.nan)) == "[0]['b'][1]: expected 0.0, found nan"
    assert difference({"a": 1}, {"b": 1}) == "expected {'a': 1}, found {'b': 1}"
