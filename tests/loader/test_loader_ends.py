"""How threads end: exhaustion, errors, close, garbage; each under pytest's timeout, and none left behind."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from itertools import islice
from typing import Any

import pytest

from guideloom import StatefulDataLoader
from guideloom._loader import feeds, outbox
from guideloom.errors import NotOpenError
from tests.loader.fakes import Gate, HookedDataset, ItemDataset, failing_on_seven, make_items

WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 1},
    {"prefetch": 8},
    {"num_workers": 1, "prefetch": 1, "local_batch_size": 1},
    {"num_workers": 3, "prefetch": 3},
    {"num_workers": 4, "prefetch": 8},
]
THREADED = WAYS[1:]


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("guideloom")]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_exhaustion_ends_the_threads(way: dict[str, Any]) -> None:
    with make_items(20, **way) as loader:
        for _ in range(3):
            assert len(list(loader)) == 20
            assert ours() == []


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("where", ["read", "collate"])
def test_an_error_is_raised_as_itself_at_its_batch(way: dict[str, Any], where: str) -> None:
    error = KeyError("seven")

    def on_seven(value: Any) -> None:
        if value == 7 or value == [7]:
            raise error

    def collate(samples: list[int]) -> list[int]:
        if where == "collate":
            on_seven(samples)
        return samples

    dataset = HookedDataset(20, on_seven if where == "read" else lambda index: None)
    with StatefulDataLoader(dataset, collate, device="cpu", **way) as loader:
        iterator = iter(loader)
        assert list(islice(iterator, 7)) == [[i] for i in range(7)]
        with pytest.raises(KeyError) as caught:
            next(iterator)
        assert caught.value is error
        assert loader.state_dict()["observation_offset"] == 7
        with pytest.raises(NotOpenError):
            next(iterator)
        assert ours() == []
        # The iterator is not live any more: the same batch fails again.
        with pytest.raises(KeyError):
            next(iter(loader))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "error", [StopIteration("mine"), SystemExit(3), MemoryError("much"), GeneratorExit()], ids=repr
)
def test_no_error_ends_the_epoch_in_silence(way: dict[str, Any], error: BaseException) -> None:
    def collate(samples: list[int]) -> list[int]:
        if samples == [3]:
            raise error
        return samples

    wanted = RuntimeError if isinstance(error, StopIteration) else type(error)
    with make_items(8, collate_fn=collate, **way) as loader:
        iterator = iter(loader)
        assert list(islice(iterator, 3)) == [[0], [1], [2]]
        with pytest.raises(wanted):
            next(iterator)
        assert loader.state_dict()["observation_offset"] == 3


@pytest.mark.parametrize("way", [{"prefetch": 2}, {"num_workers": 2, "prefetch": 2}], ids=str)
def test_a_thread_that_cannot_begin_says_so(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no such device")

    monkeypatch.setattr(feeds, "_nothing", refuse)
    with make_items(8, **way) as loader, pytest.raises(OSError, match="no such device"):
        next(iter(loader))
    assert ours() == []


def test_a_start_without_room_for_a_thread_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    dataset = ItemDataset(20)
    with StatefulDataLoader(dataset, list, device="cpu", num_workers=2, prefetch=2) as loader:
        monkeypatch.setattr(threading.Thread, "start", start_one)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            iter(loader)
        monkeypatch.undo()
    assert len(begun) == 1 and ours() == []
    assert dataset.closed == 1


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_in_the_loop_body(way: dict[str, Any]) -> None:
    with make_items(100, **way) as loader:
        with pytest.raises(ZeroDivisionError):
            for batch in loader:
                if batch == [5]:
                    _ = 1 / 0
        gc.collect()
        assert loader.state_dict()["observation_offset"] == 6
        assert next(iter(loader)) == [6]
    assert ours() == []


@pytest.mark.parametrize("way", THREADED, ids=str)
def test_close_with_a_full_queue(way: dict[str, Any]) -> None:
    with make_items(1000, **way) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        assert ours() == []
        assert loader.state_dict()["observation_offset"] == 1


@pytest.mark.parametrize("way", THREADED, ids=str)
def test_close_before_the_first_batch(way: dict[str, Any]) -> None:
    for _ in range(5):
        with make_items(1000, **way) as loader:
            iter(loader).close()
            iter(loader)
    assert ours() == []


@pytest.mark.parametrize("way", THREADED, ids=str)
def test_close_while_a_read_hangs_waits_for_no_more_than_a_moment(way: dict[str, Any]) -> None:
    gate = Gate([5])
    dataset = HookedDataset(100, gate)
    loader = StatefulDataLoader(dataset, list, device="cpu", **way)
    loader.open()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    assert gate.reached.wait(30)
    iterator.close()
    loader.close()
    # The read still runs, so its reader is still open; it is closed after it.
    assert dataset.closed == 0
    gate.opened.set()
    for thread in threading.enumerate():
        if thread.name.startswith("guideloom"):
            thread.join(30)
    assert dataset.closed == 1


def test_close_from_another_thread_while_the_caller_waits() -> None:
    gate = Gate([3])
    loader = StatefulDataLoader(HookedDataset(20, gate), list, device="cpu", prefetch=2)
    loader.open()
    iterator = iter(loader)
    assert list(islice(iterator, 3)) == [[0], [1], [2]]
    found: list[BaseException] = []

    def wait_for_it() -> None:
        try:
            next(iterator)
        except NotOpenError as error:
            found.append(error)

    caller = threading.Thread(target=wait_for_it)
    caller.start()
    assert gate.reached.wait(30)
    loader.close()
    caller.join(30)
    assert not caller.is_alive()
    assert len(found) == 1
    assert loader.state_dict()["observation_offset"] == 3
    gate.opened.set()


@pytest.mark.parametrize("way", [{"prefetch": 2}, {"num_workers": 2, "prefetch": 2}], ids=str)
def test_a_thousand_partial_iterations_leave_no_thread(way: dict[str, Any]) -> None:
    before = threading.active_count()
    most = 0
    with make_items(50, **way) as loader:
        for _ in range(1000):
            loader.load_state_dict({**loader.state_dict(), "observation_offset": 0})
            for batch in loader:
                if batch == [2]:
                    break
            most = max(most, threading.active_count())
    assert threading.active_count() == before
    # Iterators that were dropped end without being waited for, but they do end.
    assert most - before < 200


def test_a_collected_cycle_stops_its_threads() -> None:
    loader = make_items(1000, prefetch=2)
    loader.open()
    cycle: list[Any] = [iter(loader)]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("guideloom"):
            thread.join(30)
    assert ours() == []
    loader.close()


def test_a_loader_that_is_dropped_open_ends_its_threads() -> None:
    loader = make_items(1000, prefetch=2)
    loader.open()
    iterator = iter(loader)
    next(iterator)
    del loader, iterator
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("guideloom"):
            thread.join(30)
    assert ours() == []


def test_a_reader_whose_close_fails_says_so() -> None:
    class Broken(ItemDataset):
        def sync_reader(self) -> Any:
            reader = super().sync_reader()

            def close() -> None:
                raise OSError("cannot close")

            reader.close = close  # type: ignore[method-assign]
            return reader

    loader = StatefulDataLoader(Broken(), list, device="cpu")
    loader.open()
    with pytest.raises(OSError, match="cannot close"):
        loader.close()
    loader.close()


def test_a_failing_function_of_the_module_in_threads() -> None:
    with make_items(20, collate_fn=failing_on_seven, local_batch_size=2, num_workers=2, prefetch=2) as loader:
        iterator = iter(loader)
        assert list(islice(iterator, 3)) == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(KeyError, match="seven"):
            next(iterator)


@pytest.mark.parametrize("way", THREADED, ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_what_an_iterator_held_goes_without_the_collector(way: dict[str, Any], whole: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        with make_items(20, **way) as loader:
            iterator = iter(loader)
            feed = weakref.ref(iterator._feed)
            batches = list(iterator) if whole else [next(iterator)]
            assert len(batches) == (20 if whole else 1)
            iterator.close()
            del iterator
            assert feed() is None
    finally:
        gc.enable()


class Kept:
    """A batch that can be watched."""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_was_closed_keeps_no_batches(num_workers: int) -> None:
    made: list[weakref.ref[Kept]] = []
    third = threading.Event()

    def collate(samples: list[int]) -> Kept:
        batch = Kept()
        made.append(weakref.ref(batch))
        if len(made) == 3:
            third.set()  # so the second is in the queue
        return batch

    with make_items(20, prefetch=4, num_workers=num_workers, collate_fn=collate) as loader:
        iterator = iter(loader)
        next(iterator)
        assert third.wait(60)
        iterator.close()
        assert [batch() for batch in made if batch() is not None] == []


def test_the_end_is_the_end_for_all_who_wait_for_it() -> None:
    """Also for who waits while another thread is told."""
    with make_items(1, local_batch_size=1) as loader:
        iterator: Any = iter(loader)
        assert next(iterator) == [0]
        told: list[object] = []
        threads = [threading.Thread(target=lambda: told.append(next(iterator, None))) for _ in range(3)]
        with iterator._lock:
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        assert told == [None, None, None]
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.filterwarnings("ignore:prefetch:UserWarning")
@pytest.mark.parametrize("way", [*WAYS, {"num_workers": 2, "local_batch_size": 4}], ids=str)
def test_threads_that_share_an_iterator_get_each_batch_once(way: dict[str, Any]) -> None:
    together = threading.Barrier(4)
    taken: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with make_items(400, **way) as loader:
            iterator = iter(loader)

            def take_all() -> None:
                together.wait()
                for batch in iterator:
                    taken.extend(batch)

            threads = [threading.Thread(target=take_all) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(taken) == list(range(400))
            assert loader.state_dict()["epoch"] == 1
    finally:
        sys.setswitchinterval(interval)


class OpensGate(logging.Handler):
    """Opens a gate at the second warning, as whoever reads the log would see to the storage."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(logging.WARNING)
        self.gate = gate
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) == 2:
            self.gate.opened.set()


@pytest.mark.parametrize("way", THREADED, ids=str)
def test_a_wait_without_end_is_told_in_the_log(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "STALLED_S", 0.05)
    gate = Gate([5])
    told = OpensGate(gate)
    logging.getLogger("guideloom").addHandler(told)
    try:
        with StatefulDataLoader(HookedDataset(20, gate), list, device="cpu", **way) as loader:
            assert [sample for batch in loader for sample in batch] == list(range(20))
    finally:
        logging.getLogger("guideloom").removeHandler(told)
    assert "no batch for" in told.lines[0] and told.lines[0] != told.lines[1]
