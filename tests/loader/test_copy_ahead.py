"""Batches on their way to CUDA, through the whole loader: a fake device that copies as late as it may.

The fake plays what a real device promises and no more: copies are done in the order of their stream, when someone waits
for an event behind them; pinned memory must stay as it is until then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from guideloom import StatefulDataLoader
from guideloom._loader import bridge
from guideloom._loader.sharing import Sharing
from guideloom.errors import ArgumentError
from tests.loader.fakes import RowDataset, rows

NOT_YET = -1


class LateStream:
    """A stream whose copies are done when they are waited for."""

    def __init__(self) -> None:
        self.queued: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, until: int) -> None:
        for target, source in self.queued[:until]:
            target.copy_(source)


class LateDevice:
    """Stands in for ``Runtime``; the methods have its names."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.streams: list[LateStream] = []
        self.kept: list[int] = []
        self.threads: set[str] = set()
        self.pinning: set[str] = set()
        self.four_queued = threading.Event()

    def cuda_available(self) -> bool:
        return True

    def current_cuda_device(self) -> int:
        return 0

    def set_cuda_device(self, index: int) -> None:
        assert index == 0
        self.here.chosen = True

    def pin(self, leaf: Any) -> Any:
        return leaf.clone()

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        name = threading.current_thread().name
        # Else memory of another device's context would be taken.
        assert name == "MainThread" or self.here.chosen
        self.pinning.add(name.split("-")[-1])
        return torch.empty(shape, dtype=dtype)

    def new_stream(self, device: torch.device) -> LateStream:
        self.streams.append(LateStream())
        return self.streams[-1]

    @contextmanager
    def on_stream(self, stream: LateStream) -> Iterator[None]:
        self.here.stream = stream
        try:
            yield
        finally:
            self.here.stream = None

    def move(self, leaf: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert non_blocking
        self.threads.add(threading.current_thread().name.split("-")[-1])
        stream = getattr(self.here, "stream", None)
        if stream is None:
            return leaf.clone()
        target = torch.full_like(leaf, NOT_YET)
        stream.queued.append((target, leaf))
        if len(stream.queued) >= 4:
            self.four_queued.set()
        return target

    def record(self, stream: LateStream) -> tuple[LateStream, int]:
        return stream, len(stream.queued)

    def await_event(self, event: tuple[LateStream, int], device: torch.device) -> None:
        stream, until = event
        stream.run(until)

    def keep_for_caller(self, tensor: torch.Tensor, device: torch.device) -> None:
        self.kept.append(tensor.data_ptr())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    fake = LateDevice()
    for name in vars(bridge.Runtime):
        if not name.startswith("_"):
            monkeypatch.setattr(bridge.Runtime, name, lambda self, *given, name=name: getattr(fake, name)(*given))
    return fake


def make(collate_fn: Any = None, **kwargs: Any) -> StatefulDataLoader:
    options = {"device": "cuda:0", "pin_memory": True, "prefetch": 4, "local_batch_size": 5, **kwargs}
    return StatefulDataLoader(RowDataset(200), collate_fn, **options)


def first_column(batch: Any) -> list[int]:
    tensor = batch if isinstance(batch, torch.Tensor) else batch["rows"]
    return [int(value) // 10 for value in tensor[:, 0]]


WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 1},
    {"num_workers": 2},
    {"num_workers": 2, "parallel_method": "process"},
]


@pytest.mark.parametrize("copy_ahead", [False, True])
@pytest.mark.parametrize("collate_fn", [None, rows])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_batch_is_whole_when_it_is_given(
    device: LateDevice, way: dict[str, Any], collate_fn: Any, copy_ahead: bool
) -> None:
    with make(collate_fn, copy_ahead=copy_ahead, **way) as loader:
        for _ in range(2):
            assert [first_column(batch) for batch in loader] == [list(range(5 * n, 5 * n + 5)) for n in range(40)]
    assert (len(device.kept) >= 80) is copy_ahead
    if copy_ahead:
        # One stream for all epochs, and none of the copies in the way of the caller's own work.
        assert len(device.streams) == 1
        assert sum(len(stream.queued) for stream in device.streams) >= 80
    else:
        assert device.streams == []
        assert device.threads == {"MainThread"}


def test_each_thread_that_pins_has_chosen_the_device(device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sharing, "note", lambda self, *observed: None)
    with make(num_workers=2) as loader:
        assert len(list(loader)) == 40
        assert "reading" not in device.pinning
        loader._sharing.width = 2
        assert len(list(loader)) == 40
        assert "reading" in device.pinning


def test_batches_are_copied_before_they_are_asked_for(device: LateDevice) -> None:
    with make(rows, copy_ahead=True) as loader:
        iterator = iter(loader)
        next(iterator)
        assert device.four_queued.wait(30)  # the first, and three behind it: room for one alone wakes nobody
        assert device.threads == {"batching"}
        iterator.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pin_memory": False}, "pin_memory=True"),
        ({"prefetch": 0}, "prefetch"),
        ({"device": "cpu", "pin_memory": False}, "CUDA"),
    ],
)
def test_what_copying_ahead_needs(device: LateDevice, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(copy_ahead=True, **wrong)
