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
