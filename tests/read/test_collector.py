"""Python's collector while windows with many spans are unpacked: it visits young objects, and still finds garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StatefulDataLoader, StreamWithMetaStorage
from guideloom._read import spans
from guideloom._read.collector import Collector, YoungObjects
from guideloom.io import MmapIO
from guideloom.testing import IdSpanFormat, make_spans

LENGTH, BATCH_SIZE, NUM_BATCHES = 64, 32, 240
SPANS_IN_A_BATCH = LENGTH * BATCH_SIZE // 2


class Arrays(IdSpanFormat):
    """An array for each span: what the collector counts."""

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        return [np.frombuffer(payload, np.uint8) for payload in document_data]


class Cycle:
    """Only the collector frees it."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays
        self.itself = self


class Cycles(Arrays):
    """As above, in a cycle; remembers all that live."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(dtype)
        self.alive: weakref.WeakSet[Cycle] = weakref.WeakSet()

    def unpack(self, *arguments: Any) -> Any:
        cycle = Cycle(super().unpack(*arguments))
        self.alive.add(cycle)
        return cycle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    make_spans(folder, [[2] * (NUM_BATCHES * SPANS_IN_A_BATCH)], np.dtype("<i4"))
    epoch(folder, Arrays(np.dtype("<i4")), prefetch=4)  # imports and kernels leave garbage of their own
    return folder


@pytest.fixture(autouse=True)
def as_python_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(700, 10, 10)
    monkeypatch.setattr(spans, "COLLECTOR", Collector())
    yield
    gc.enable()
    gc.set_threshold(*before)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the collections of each generation."""
    found = [0, 0, 0]

    def count(phase: str, info: dict[str, int]) -> None:
        found[info["generation"]] += phase == "start"

    gc.callbacks.append(count)
    try:
        yield found
    finally:
        gc.callbacks.remove(count)


def epoch(folder: Path, span_format: Any, look: Callable[[], object] = lambda: None, **settings: Any) -> None:
    storage = StreamWithMetaStorage(folder, span_format, MmapIO())
    with StatefulDataLoader.from_storage(
        storage, list, sequence_length=LENGTH, local_batch_size=BATCH_SIZE, shuffle=True, **settings
    ) as loader:
        num = 0
        for _ in loader:
            num += 1
            look()
    assert num == NUM_BATCHES


@pytest.mark.parametrize("settings", [{}, {"prefetch": 4}, {"prefetch": 8, "num_workers": 2}], ids=str)
def test_samples_that_are_dropped_never_count_as_old(settings: dict[str, int], folder: Path) -> None:
    with counted() as found:
        epoch(folder, Arrays(np.dtype("<i4")), **settings)
    # A middle generation visited whenever it may be would have been so some 30 times.
    assert found[0] >= NUM_BATCHES
    assert found[1] + found[2] <= 6


def test_garbage_of_samples_is_freed_as_soon_as_ever(folder: Path) -> None:
    span_format = Cycles(np.dtype("<i4"))
    alive: list[int] = []
    gc.freeze()  # a pass over all objects comes when they are a fourth more, and pytest's are many
    try:
        gc.collect()
        with counted() as found:
            epoch(folder, span_format, lambda: alive.append(len(span_format.alive)))
    finally:
        gc.unfreeze()
    # Those of five batches until a visit to the middle generation, and one more batch for each of eleven such visits.
    assert 5 * BATCH_SIZE <= max(alive) <= 20 * BATCH_SIZE
    assert found[2] >= 2


class Fake:
    """The collector as a script: what it has counted at each batch's begin, and what its visits find."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *garbage: int) -> None:
        self.young_visits = 0
        self.passes = 7
        self.garbage = [*garbage]
        for name in ("collect", "get_count", "get_stats"):
            monkeypatch.setattr(gc, name, getattr(self, name))

    def collect(self, generation: int) -> int:
        assert generation == 1
        self.young_visits = 0
        return self.garbage.pop(0) if self.garbage else 0

    def get_count(self) -> tuple[int, int, int]:
        return 600, self.young_visits, 0

    def get_stats(self) -> list[dict[str, int]]:
        return [{"collections": 0}, {"collections": 0}, {"collections": self.passes}]

    def young_visits_until_the_next(self, collector: Collector) -> int:
        """Visits to the young objects until the middle generation is visited, or is no more."""
        for number in range(1, 1000):
            self.young_visits += 1
            collector.begin_batch()
            if not self.young_visits:
                return number
        return 0


@pytest.mark.parametrize("middle", [3, 10])
def test_the_middle_generation_is_visited_the_later_the_cleaner_it_is(
    middle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.set_threshold(700, middle, 10)
    fake, collector = Fake(monkeypatch, 0, 0, 0, 0, 3, 0, 1, 1), Collector()
    times = [1, 4, 16, 32, 32, 1, 4, 1, 1]
    assert [fake.young_visits_until_the_next(collector) for _ in times] == [time * middle + 1 for time in times]


def test_a_pass_over_all_that_is_due_is_left_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, collector = Fake(monkeypatch), Collector()
    waits = [fake.young_visits_until_the_next(collector) for _ in range(12)]
    assert all(waits[:11]) and waits[11] == 0
    monkeypatch.setattr(gc, "collect", lambda generation: pytest.fail("the collector is to begin by itself"))
    collector.begin_batch().make_room(500)
    fake.passes += 1
    monkeypatch.setattr(gc, "collect", fake.collect)
    assert fake.young_visits_until_the_next(collector) == 1
    # One that came meanwhile is seen at the next visit, and ten more may follow it.
    fake.passes += 1
    assert all(fake.young_visits_until_the_next(collector) for _ in range(11))
    assert not fake.young_visits_until_the_next(collector)


@pytest.mark.parametrize("off", [gc.disable, lambda: gc.set_threshold(0)], ids=["disabled", "threshold 0"])
def test_a_collector_that_is_off_stays_off(off: Callable[[], object], folder: Path) -> None:
    off()
    with counted() as found:
        epoch(folder, Arrays(np.dtype("<i4")))
    assert found == [0, 0, 0]


def test_a_threshold_of_the_users_own_is_kept_to(folder: Path) -> None:
    gc.set_threshold(100_000, 10, 10)
    with counted() as found:
        epoch(folder, Arrays(np.dtype("<i4")))
    assert sum(found) <= NUM_BATCHES * SPANS_IN_A_BATCH // 100_000 + 1


def test_no_visit_where_it_would_not_help() -> None:
    young = YoungObjects(525)
    with counted() as found:
        young.make_room(525)  # more than may be young at a time
        gc.collect(0)
        young.make_room(100)
    assert found == [1, 0, 0]
    held = [[] for _ in range(500)]
    with counted() as found:
        young.make_room(100)
        young.make_room(100)
    assert found == [1, 0, 0]
    assert len(held) == 500
