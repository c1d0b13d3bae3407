"""A loader through any life: made, opened, iterated, dropped, saved, loaded and closed in any order, against a model.

The model is a position and the batches that the live iterator still owes. A state goes into loaders with other ranks,
batch sizes, threads and backends, as often as hypothesis likes.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom._plan.order import make_order
from guideloom.errors import InUseError, NotOpenError, StateMismatchError, StateSchemaError
from guideloom.testing import naive_batches
from tests.sweeps.support import BACKENDS

LENGTH, NUM_SAMPLES = 3, 11
SEED = 5


class FromCollate(ValueError):
    """What a collate function raises."""


class Collate:
    """Gives the numbers of the samples, and fails over one of them."""

    def __init__(self, bad: int | None) -> None:
        self.bad = bad

    def __call__(self, samples: list[Any]) -> list[int]:
        numbers = [int(sample["token"][0]) // LENGTH for sample in samples]
        if self.bad in numbers:
            raise FromCollate(self.bad)
        return numbers


@st.composite
def ways(draw: Callable[..., Any]) -> dict[str, Any]:
    """Draw how a loader makes its batches: all that may change from one resume to the next."""
    world_size = draw(st.integers(1, 3))
    return {
        "local_batch_size": draw(st.integers(1, 3)),
        "world_size": world_size,
        "rank": draw(st.integers(0, world_size - 1)),
        "num_workers": draw(st.sampled_from([0, 0, 1, 3])),
        "prefetch": draw(st.sampled_from([0, 1, 2, 7])),
        "whole_epochs": draw(st.booleans()),
    }


class Life(RuleBasedStateMachine):
    """One loader after the other over one data set."""

    method = "thread"
    states = Bundle("states")

    @initialize(shuffle=st.booleans(), drop_last=st.booleans(), way=ways())
    def begin(self, shuffle: bool, drop_last: bool, way: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.order: dict[str, Any] = {
            "shuffle": shuffle,
            "shuffle_seed": SEED if shuffle else None,
            "drop_last": drop_last,
        }
        with self.storage("seek").sync_writer() as writer:
            tokens = np.arange(LENGTH * NUM_SAMPLES + 2, dtype="<u2")
            for shard, part in enumerate(np.split(tokens, [7, 8, 20])):
                writer.append(shard, {"token": part})
        self.loader: Any = None
        self.iterator: Any = None
        self.make(way, "pread", True, None)

    def storage(self, backend: str) -> StreamStorage:
        token = np.dtype([("token", "<u2")])
        return StreamStorage(Path(self.folder.name, "data"), StreamNumpyFormat(token), BACKENDS[backend]())

    def teardown(self) -> None:
        self.iterator = None
        if self.loader is not None:
            self.loader.close()
        self.folder.cleanup()

    # --- the model ---

    @property
    def live(self) -> bool:
        """Whether the iterator owes something: a batch, or the end of the epoch."""
        return self.owed is not None

    def expect_end_of_iterator(self, next_is: type[Exception]) -> None:
        self.owed, self.after = None, next_is

    def expect_next_epoch(self) -> None:
        self.epoch, self.offset, self.begun = self.epoch + 1, 0, 0

    def expect_batches(self) -> list[list[int]]:
        order = make_order(NUM_SAMPLES, self.order["shuffle"], SEED, self.epoch).positions_to_indexes(0, 1, NUM_SAMPLES)
        way, drop_last = self.way, self.order["drop_last"]
        size, rank, world_size = way["local_batch_size"], way["rank"], way["world_size"]
        return naive_batches(order.tolist(), size, rank, world_size, drop_last, self.offset)

    def take_one(self) -> None:
        if not self.live:
            with pytest.raises(self.after):
                next(self.iterator)
        elif not self.owed:
            with pytest.raises(StopIteration):
                next(self.iterator)
            self.expect_end_of_iterator(StopIteration)
            self.expect_next_epoch()
        elif self.bad in self.owed[0]:
            with pytest.raises(FromCollate):
                next(self.iterator)
            self.expect_end_of_iterator(NotOpenError)
        else:
            batch = next(self.iterator)
            numbers = (batch["token"][:, 0].long() // LENGTH).tolist() if self.arrays else batch
            assert numbers == self.owed.pop(0)
            self.offset = min(NUM_SAMPLES, self.offset + self.way["local_batch_size"] * self.way["world_size"])

    # --- what a program may do ---

    @rule(
        way=ways(),
        backend=st.sampled_from(sorted(BACKENDS)),
        arrays=st.booleans(),
        bad=st.none() | st.integers(0, NUM_SAMPLES - 1),
    )
    def make(self, way: dict[str, Any], backend: str, arrays: bool, bad: int | None) -> None:
        """Another loader; the one before may be left as it is, with a live iterator even."""
        self.iterator = self.loader = None
        self.way, self.arrays, self.bad = way, arrays, None if arrays else bad
        self.epoch = self.offset = self.begun = 0
        self.opened = False
        self.owed: list[list[int]] | None = None
        self.after: type[Exception] = NotOpenError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # More workers than samples ahead: as drawn.
            self.loader = StatefulDataLoader(
                StreamDataset(self.storage(backend), sequence_length=LENGTH),
                None if arrays else Collate(self.bad),
                device="cpu",
                parallel_method=self.method,  # type: ignore[arg-type]
                **self.order,
                **way,
            )

    @rule()
    def open(self) -> None:
        if self.opened:
            with pytest.raises(InUseError):
                self.loader.open()
        else:
            self.loader.open()
            self.opened = True

    @rule(way=ways(), backend=st.sampled_from(sorted(BACKENDS)), arrays=st.booleans(), early=st.booleans())
    def resume(self, way: dict[str, Any], backend: str, arrays: bool, early: bool) -> None:
        """What most programs do: save, and go on with another loader."""
        state = self.save()
        self.make(way, backend, arrays, None)
        if not early:
            self.open()
        self.load(state)
        if early:
            self.open()
        self.start()

    @rule()
    def close(self) -> None:
        self.loader.close()
        self.opened = False
        if self.live:
            self.expect_end_of_iterator(NotOpenError)

    @rule()
    def start(self) -> None:
        whole = self.way["whole_epochs"]
        if not self.opened or (self.live and not whole):
            with pytest.raises(InUseError if self.opened else NotOpenError):
                iter(self.loader)
            return
        self.iterator = iter(self.loader)
        if whole and (self.offset > self.begun or not self.expect_batches()):
            self.expect_next_epoch()
        self.owed = self.expect_batches()

    @rule(count=st.integers(1, 9))
    def take(self, count: int) -> None:
        if not self.opened:
            self.open()
        if self.iterator is None:
            self.start()
        for _ in range(count):
            self.take_one()

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def take_in_a_thread(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.take_one).result()

    @rule()
    def take_in_a_child(self) -> None:
        """A fork, which reads on for itself and changes nothing here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Later Pythons warn of forks beside threads.
            child = os.fork()
        if child == 0:
            exit_code = 1
            try:
                if self.live:
                    self.expect_end_of_iterator(NotOpenError)
                for _ in range(2):
                    self.start()
                    while self.live:
                        self.take_one()
                exit_code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(exit_code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def close_iterator(self) -> None:
        self.iterator.close()
        if self.live:
            self.expect_end_of_iterator(NotOpenError)

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def drop_iterator(self) -> None:
        self.iterator = self.owed = None

    @rule(target=states)
    def save(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(self.loader.state_dict()))
        return state

    @rule(state=states)
    def load(self, state: dict[str, Any]) -> None:
        if self.live and not self.way["whole_epochs"]:
            with pytest.raises(InUseError):
                self.loader.load_state_dict(state)
            return
        self.loader.load_state_dict(state)
        if self.live:
            self.expect_end_of_iterator(NotOpenError)
        self.epoch, self.offset = state["epoch"], state["observation_offset"]
        self.begun = self.offset

    @rule(state=states, key=st.sampled_from(["shuffle_seed", "drop_last", "version"]))
    def load_what_does_not_belong_here(self, state: dict[str, Any], key: str) -> None:
        """It is refused, and changes nothing."""
        state = {**state, key: not state[key] if key == "drop_last" else 1 + (state.get(key) or 0)}
        with pytest.raises((StateMismatchError, StateSchemaError, InUseError)):
            self.loader.load_state_dict(state)

    @rule()
    def copy_by_pickle(self) -> None:
        if self.opened:
            with pytest.raises(InUseError):
                pickle.dumps(self.loader)
        else:
            self.iterator = self.owed = None
            self.loader = pickle.loads(pickle.dumps(self.loader))

    @invariant()
    def position_is_as_expected(self) -> None:
        state = self.loader.state_dict()
        assert (state["epoch"], state["observation_offset"]) == (self.epoch, self.offset)
        assert f"epoch {self.epoch}, sample {self.offset};" in repr(self.loader)


class LifeOfProcesses(Life):
    """As above, where processes make the batches."""

    method = "process"


@pytest.mark.slow
def test_any_life() -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=60, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")  # a forked child cannot use the fork server of its parent
def test_any_life_with_processes() -> None:
    run_state_machine_as_test(LifeOfProcesses, settings=settings(max_examples=12, stateful_step_count=30))
