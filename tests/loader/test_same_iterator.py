"""Who asks, starts or closes in the middle of another call: each batch comes once, and no epoch ends before its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import pytest

from guideloom import StatefulDataLoader
from guideloom.errors import InUseError, NotOpenError
from tests.loader.fakes import Gate, HookedDataset, RowDataset, make_items

SIZE, BEFORE = 40, 25
WAYS: list[dict[str, Any]] = [{}, {"prefetch": 2}, {"prefetch": 4, "num_workers": 1}, {"num_workers": 2}]


def items(way: dict[str, Any]) -> StatefulDataLoader:
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return make_items(SIZE, **{"local_batch_size": 1, **way})


def rows(way: dict[str, Any]) -> StatefulDataLoader:
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return StatefulDataLoader(RowDataset(SIZE), None, device="cpu", local_batch_size=1, **way)


def ids(batch: Any) -> list[int]:
    return list(batch) if isinstance(batch, list) else [int(batch["rows"][0, 0]) // 10]


@contextmanager
def acting_at(point: int, act: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Have a signal's handler act at one point of what runs here; gives whether that was reached."""
    seen = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return"):
            seen += 1
            if seen == point:
                signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: act())
    sys.setprofile(count)
    try:
        yield lambda: seen >= point
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


def start_into(started: list[Any], loader: StatefulDataLoader) -> None:
    try:
        started.append(iter(loader))
    except InUseError:
        started.append(None)


def asked_at(point: int, loader: StatefulDataLoader) -> tuple[bool, bool]:
    """Take an epoch, and have a handler ask for a batch at one point; whether that was reached, and refused."""
    refused = False
    taken: list[int] = []

    def ask() -> None:
        nonlocal refused
        try:
            taken.extend(ids(next(iterator)))
        except InUseError:
            refused = True

    with loader:
        iterator = iter(loader)
        for batch in islice(iterator, BEFORE):
            taken.extend(ids(batch))
        with acting_at(point, ask) as is_reached:
            taken.extend(ids(next(iterator)))
        assert loader.state_dict()["observation_offset"] == len(taken)
        for batch in iterator:
            taken.extend(ids(batch))
    assert sorted(taken) == list(range(SIZE)), f"at point {point}"
    return is_reached(), refused


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("make", [items, rows])
def test_a_handler_may_ask_at_any_point(make: Callable[..., StatefulDataLoader], way: dict[str, Any]) -> None:
    """It is told that a batch is being taken, or gets the next one; it neither gets the same one nor waits for ever."""
    num_refused, point, reached = 0, 1, True
    while reached:
        reached, refused = asked_at(point, make(way))
        num_refused += refused
        point += 1
    assert num_refused > 5


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_handler_may_close_at_any_point(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that is being taken is given, or comes again: it is neither lost nor given twice."""
    # Where it holds what the threads need to end, it waits in vain.
    monkeypatch.setattr("guideloom._loader.iterator.CLOSE_TIMEOUT_S", 0.02)
    closed, point, reached = 0, 1, True
    while reached:
        taken: list[int] = []
        with items(way) as loader:
            iterator = iter(loader)
            for batch in islice(iterator, BEFORE):
                taken.extend(ids(batch))
            with acting_at(point, iterator.close) as is_reached:
                try:
                    taken.extend(ids(next(iterator)))
                except NotOpenError:
                    closed += 1
            reached = is_reached()
            if reached:
                for batch in loader:
                    taken.extend(ids(batch))
                assert taken == list(range(SIZE)), f"at point {point}"
        point += 1
    assert closed > 5


@pytest.mark.parametrize("way", [{}, {"num_workers": 2}], ids=str)
def test_a_batch_that_another_thread_took_when_it_was_closed_comes_again(way: dict[str, Any]) -> None:
    gate = Gate([3])
    dataset = HookedDataset(SIZE, gate)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        loader = StatefulDataLoader(dataset, list, device="cpu", **way)
    with loader:
        iterator = iter(loader)
        taken = [next(iterator)[0] for _ in range(3)]
        errors: list[BaseException] = []

        def take() -> None:
            try:
                taken.extend(next(iterator))
            except BaseException as error:  # noqa: BLE001  looked at below
                errors.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        assert gate.reached.wait(30)
        iterator.close()
        gate.opened.set()
        thread.join()
        assert [type(error) for error in errors] == [NotOpenError]
        assert "while it waited" in str(errors[0])
        assert loader.state_dict()["observation_offset"] == 3
        taken.extend(sample for batch in loader for sample in batch)
    assert taken == list(range(SIZE))


def test_threads_that_close_lose_no_batch_and_get_none_twice() -> None:
    """Whatever the moment: a batch is counted before the iterator is closed, or it comes again."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turns in range(150):
            with items({}) as loader:
                iterator, begun = iter(loader), threading.Event()
                taken: list[int] = []

                def take(iterator: Any = iterator, begun: threading.Event = begun, taken: list[int] = taken) -> None:
                    try:
                        for batch in iterator:
                            taken.extend(batch)
                            begun.set()
                    except NotOpenError:
                        pass

                threads = [threading.Thread(target=take) for _ in range(2)]
                for thread in threads:
                    thread.start()
                begun.wait()
                for _ in range(turns):
                    pass
                iterator.close()
                if loader.state_dict()["epoch"] == 0:
                    taken.extend(sample for batch in loader for sample in batch)
                for thread in threads:
                    thread.join()
                assert sorted(taken) == list(range(SIZE))
                assert loader.state_dict()["epoch"] == 1
    finally:
        sys.setswitchinterval(interval)


def test_who_closes_while_a_batch_is_counted_goes_on_behind_it() -> None:
    with items({}) as loader:
        iterator: Any = iter(loader)
        assert next(iterator) == [0]
        position, following = iterator._position, []

        def close_and_go_on() -> None:
            iterator.close()
            following.extend(next(iter(loader)))

        other = threading.Thread(target=close_and_go_on)

        class Counting:
            @property
            def offset(self) -> int:
                found: int = position.offset
                other.start()
                other.join(0.1)  # in vain: it waits until this batch is counted
                return found

            @offset.setter
            def offset(self, value: int) -> None:
                position.offset = value

        iterator._position = Counting()
        assert next(iterator) == [1]
        other.join()
        assert following == [2]


@pytest.mark.parametrize("takes", [False, True])
def test_a_child_may_close_or_go_on_while_its_parents_thread_counted_a_batch(takes: bool) -> None:
    with items({}) as loader:
        iterator = iter(loader)
        holding, end = threading.Event(), threading.Event()

        def hold() -> None:
            with iterator._lock, iterator._counting:
                holding.set()
                end.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            status = 1
            try:
                batches = [next(iterator)] if takes else []
                iterator.close()
                batches += list(loader)
                status = 0 if batches == [[number] for number in range(SIZE)] else 2
            finally:
                os._exit(status)
        end.set()
        thread.join()
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_handler_may_start_at_any_point_of_a_start(way: dict[str, Any]) -> None:
    """Of the two, one gives the epoch, and the other one is refused."""
    refused, point, reached = 0, 1, True
    while reached:
        started: list[Any] = []
        with items(way) as loader:
            with acting_at(point, partial(start_into, started, loader)) as is_reached:
                start_into(started, loader)
            reached = is_reached()
            refused += None in started
            (iterator,) = (found for found in started if found is not None)
            assert [sample for batch in iterator for sample in batch] == list(range(SIZE)), f"at point {point}"
            del started, iterator
            assert len(list(loader)) == SIZE
            assert loader.state_dict()["epoch"] == 2
        point += 1
    assert refused > 5


def test_of_two_threads_that_start_one_is_refused() -> None:
    """Also while the first one still compiles kernels, or starts its threads."""
    with items({}) as loader:
        inside, end = threading.Event(), threading.Event()
        start = loader._started

        def slow_start(opened: Any) -> Any:
            inside.set()
            assert end.wait(30)
            return start(opened)

        loader._started = slow_start  # type: ignore[method-assign]
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(list(loader)))
        thread.start()
        assert inside.wait(30)
        with pytest.raises(InUseError):
            iter(loader)
        with pytest.raises(InUseError):
            loader.load_state_dict(loader.state_dict())
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            status = 1
            try:
                del loader._started
                status = 0 if list(loader) == [[number] for number in range(SIZE)] else 2
            finally:
                os._exit(status)
        end.set()
        thread.join()
        assert os.waitpid(pid, 0)[1] == 0
        assert found == [[[number] for number in range(SIZE)]]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("when", ["start", "take"])
def test_an_epoch_whose_loader_is_closed_at_any_point_does_not_seem_over(
    when: str, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guideloom._loader.iterator.CLOSE_TIMEOUT_S", 0.02)
    monkeypatch.setattr("guideloom._loader.loader.CLOSE_TIMEOUT_S", 0.02)
    closed, point, reached = 0, 1, True
    while reached:
        taken: list[int] = []
        with items(way) as loader:
            try:
                with acting_at(point, loader.close) as is_reached:
                    iterator = iter(loader)
                    if when == "take":
                        taken.extend(next(iterator))
                taken.extend(sample for batch in iterator for sample in batch)
            except RuntimeError:
                # Ours, or what the user's reader says that was closed in the midst of a read.
                closed += 1
            reached = is_reached()
            assert loader.state_dict()["epoch"] == (not reached)
            assert loader.state_dict()["observation_offset"] == len(taken) % SIZE
        with loader:
            taken.extend(sample for batch in loader for sample in batch)
        assert taken == list(range(SIZE)) * (2 - reached), f"at point {point}"
        point += 1
    assert closed > 5


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_loader_that_was_closed_while_it_started_gives_no_iterator(way: dict[str, Any]) -> None:
    with items(way) as loader:
        start = loader._started

        def start_and_close(opened: Any) -> Any:
            iterator = start(opened)
            loader.close()
            return iterator

        loader._started = start_and_close  # type: ignore[method-assign]
        with pytest.raises(NotOpenError, match="while an iterator started"):
            iter(loader)
        assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_threads_that_were_stopped_are_no_end_of_the_epoch(way: dict[str, Any]) -> None:
    with items(way) as loader:
        iterator = iter(loader)
        taken = [next(iterator)[0] for _ in range(3)]
        iterator._feed.stop()
        with pytest.raises(NotOpenError):
            taken.extend(sample for batch in iterator for sample in batch)
        assert taken == list(range(len(taken)))
        assert loader.state_dict()["observation_offset"] == len(taken)
        assert loader.state_dict()["epoch"] == 0


def test_a_child_that_closes_the_loader_closes_the_reader() -> None:
    """Also where its parent's threads still read: they do not exist in the child."""
    dataset = HookedDataset(SIZE, gate := Gate([1]))
    with StatefulDataLoader(dataset, list, device="cpu", prefetch=2) as loader:
        iterator = iter(loader)
        assert gate.reached.wait(30)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            status = 1
            try:
                gate.closed_for.clear()
                child_iterator = iter(loader)
                next(child_iterator)
                child_iterator.close()
                assert dataset.closed == 0
                loader.close()
                status = 0 if dataset.closed == 1 else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        gate.opened.set()
        assert len(list(iterator)) == SIZE
        assert dataset.closed == 0
    assert dataset.closed == 1
