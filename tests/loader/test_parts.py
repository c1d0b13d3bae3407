"""How batches are cut into parts where reading is shared: each thread has one, and they are put together again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from guideloom import StatefulDataLoader
from guideloom._loader.sharing import Sharing
from tests.loader.fakes import HookedDataset


@pytest.mark.parametrize(
    ("batch_size", "prefetch", "first_of_parts"),
    [
        (8, 1, [0, 2, 4, 6]),
        (8, 2, [0, 4, 8, 12]),
        (8, 4, [0, 8, 16, 24]),
        (8, 0, [0, 2, 4, 6]),
        (7, 1, [0, 3, 6]),
        (7, 2, [0, 3, 6, 7, 10, 13]),
        (3, 1, [0, 1, 2]),
    ],
)
@pytest.mark.filterwarnings("ignore:prefetch:UserWarning")
def test_threads_that_share_read_parts_at_once(
    batch_size: int, prefetch: int, first_of_parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sharing, "note", lambda self, *observed: None)
    all_read = threading.Barrier(len(first_of_parts))

    def meet(index: int) -> None:
        if index in first_of_parts:
            all_read.wait(30)

    options: dict[str, Any] = {"local_batch_size": batch_size, "prefetch": prefetch, "drop_last": False}
    dataset = HookedDataset(50, meet)
    with StatefulDataLoader(dataset, list, device="cpu", num_workers=len(first_of_parts), **options) as loader:
        loader._sharing.width = len(first_of_parts)
        batches = list(loader)
    assert batches == [list(range(at, min(at + batch_size, 50))) for at in range(0, 50, batch_size)]


def test_parts_are_put_together_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sharing, "note", lambda self, *observed: None)
    gate, alone = threading.Event(), []

    class Slots(dict[int, Any]):
        def get(self, number: int, default: Any = None) -> Any:
            if not mutex.locked():
                alone.append(number)
            return super().get(number, default)

    dataset = HookedDataset(40, lambda index: gate.wait(30))
    with StatefulDataLoader(dataset, list, device="cpu", local_batch_size=8, prefetch=1, num_workers=4) as loader:
        loader._sharing.width = 4
        iterator = iter(loader)
        feed: Any = iterator._feed
        mutex, feed._slots = feed._mutex, Slots(feed._slots)
        gate.set()
        assert list(iterator) == [list(range(at, at + 8)) for at in range(0, 40, 8)]
    assert alone == []
