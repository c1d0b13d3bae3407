"""What is left after an interrupt at any point: nothing open, nothing held, nothing lost but what was on its way."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from guideloom import DocumentStorage, StatefulDataLoader, StreamDataset, StreamStorage
from guideloom._base import threads
from guideloom._base.interrupts import interrupts_later
from guideloom._base.locks import _Lock, new_lock, new_rlock
from guideloom._base.threads import map_in_threads
from guideloom._storage import disk
from guideloom.errors import CommitError, NotOpenError
from guideloom.io import PosixPreadIO
from guideloom.testing import IdStreamFormat, make_stream
from tests.storage.support import Raw
from tests.sweeps.interrupted import NUMBER, Interrupted, LateError, interrupt_everywhere
from tests.sweeps.support import BACKENDS

# Between the call of ``open`` and the `with` the file goes with its object, at once, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

# --- locks ---


def wrapped_lock() -> Any:
    """Return what ``new_lock`` gives where Python loses locks, on any Python."""
    return _Lock(threading.Lock())


@pytest.mark.parametrize("make", [new_lock, new_rlock, wrapped_lock])
def test_an_interrupt_leaves_no_lock_locked(make: Callable[[], Any]) -> None:
    def use(lock: Any) -> None:
        for _ in range(2):
            with lock:
                CALLS.clear()

    def check(lock: Any, interrupted: bool) -> None:
        locked_elsewhere: list[bool] = []  # its own thread may take a re-entrant one though it is locked
        thread = threading.Thread(target=lambda: locked_elsewhere.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert locked_elsewhere == [True]

    assert interrupt_everywhere(make, use, check) >= 2


# --- threads ---


def test_an_interrupt_while_threads_work_waits_for_them() -> None:
    def act(begun: list[int]) -> None:
        def step(number: int) -> int:
            begun.append(number)
            running.append(number)
            running.pop()
            return number

        assert map_in_threads(step, range(6), 3, "guideloom-test") == list(range(6))

    def check(begun: list[int], interrupted: bool) -> None:
        assert running == []
        assert interrupted or sorted(begun) == list(range(6))

    running: list[int] = []
    assert interrupt_everywhere(list, act, check) > 100


@pytest.mark.parametrize("most_threads", [1, 3])
def test_the_first_items_error_is_raised_and_no_step_begins_after_it(most_threads: int) -> None:
    begun: list[int] = []

    def step(number: int) -> None:
        begun.append(number)
        raise LookupError(number)

    with pytest.raises(LookupError) as caught:
        map_in_threads(step, range(100), most_threads, "guideloom-test")
    assert caught.value.args == (0,)
    assert len(begun) <= most_threads


def test_of_several_errors_the_first_items_is_raised() -> None:
    both = threading.Barrier(2)

    def step(number: int) -> None:
        both.wait(60)
        raise LookupError(number)

    with pytest.raises(LookupError) as caught:
        map_in_threads(step, range(2), 2, "guideloom-test")
    assert caught.value.args == (0,)


def test_no_step_begins_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    at_work, over, cleared = threading.Event(), threading.Event(), threading.Event()
    wait = threads._await

    def wait_interrupted(*args: Any) -> None:
        if not over.is_set():
            at_work.wait(60)
            over.set()
            raise Interrupted
        wait(*args)

    def step(number: int) -> None:
        begun.append(number)
        at_work.set()
        cleared.wait(5)

    class Cleared(threads.deque):  # type: ignore[name-defined,misc]
        def clear(self) -> None:
            super().clear()
            cleared.set()

    monkeypatch.setattr(threads, "deque", Cleared)
    monkeypatch.setattr(threads, "_await", wait_interrupted)
    with pytest.raises(Interrupted):
        map_in_threads(step, range(2), 1, "guideloom-test")
    assert begun == [0]


# --- handlers that wait ---


def calls_of(
    number: signal.Signals, error: type[BaseException] | None = None
) -> Callable[[int, FrameType | None], None]:
    def handle(found: int, frame: FrameType | None) -> None:
        assert found == number
        CALLS.append(number.name)
        if error is not None:
            raise error(number.name)

    return handle


CALLS: list[str] = []


@pytest.fixture
def _handlers() -> Any:
    CALLS.clear()
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_handlers_run_at_the_end_of_the_block_each_once() -> None:
    signal.signal(signal.SIGUSR1, calls_of(signal.SIGUSR1, LookupError))
    signal.signal(signal.SIGUSR2, calls_of(signal.SIGUSR2))
    signal.signal(signal.SIGTERM, calls_of(signal.SIGTERM, TimeoutError))
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)]
    with pytest.raises((LookupError, TimeoutError)) as caught, interrupts_later():
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)
        assert CALLS == []
    assert sorted(CALLS) == ["SIGTERM", "SIGUSR1", "SIGUSR2"]
    # One was raised while the other left the block: both are seen.
    assert isinstance(caught.value.__context__, LookupError | TimeoutError)
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)] == handlers


@pytest.mark.usefixtures("_handlers")
def test_an_error_of_the_block_is_not_hidden_by_what_a_handler_raises() -> None:
    signal.signal(signal.SIGUSR1, calls_of(signal.SIGUSR1, TimeoutError))
    with pytest.raises(TimeoutError) as caught, interrupts_later():
        signal.raise_signal(signal.SIGUSR1)
        raise LookupError
    assert isinstance(caught.value.__context__, LookupError)


@pytest.mark.usefixtures("_handlers")
def test_a_process_forked_in_the_block_runs_its_handlers_at_once() -> None:
    signal.signal(signal.SIGUSR1, calls_of(signal.SIGUSR1))
    with interrupts_later():
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGUSR1)
            os._exit(len(CALLS))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_handlers_are_back_whenever_the_block_is_interrupted() -> None:
    others = {number: signal.getsignal(number) for number in signal.valid_signals()}
    del others[NUMBER]

    def act(state: list[str]) -> None:
        with interrupts_later():
            state.append("in")

    def check(state: list[str], interrupted: bool) -> None:
        assert {number: signal.getsignal(number) for number in others} == others

    assert interrupt_everywhere(list[str], act, check) > 10


# --- files ---


def test_an_interrupt_while_a_file_is_made_leaves_neither_file_nor_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def act(made: list[int]) -> None:
        made.append(disk.create(str(path)))

    def check(made: list[int], interrupted: bool) -> None:
        assert path.exists() == bool(made)
        for descriptor in made:
            os.close(descriptor)
            path.unlink()

    assert interrupt_everywhere(list[int], act, check) >= 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("verify", "capacity"), [(False, None), (True, None), (False, 1)])
def test_an_interrupt_while_reading_leaves_a_reader_that_reads_and_closes(
    tmp_path: Path, backend: str, verify: bool, capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(tmp_path, [4, 5, 3])
    if capacity is not None:
        monkeypatch.setattr("guideloom._read.files.default_capacity", lambda: capacity)
    storage = StreamStorage(tmp_path, IdStreamFormat("<i8"), BACKENDS[backend](), verify=verify)
    expected = [list(range(start, start + 3)) for start in (0, 3, 6, 9)]

    def make() -> Any:
        reader = StreamDataset(storage, 3).sync_reader()
        reader.open()
        return reader

    def act(reader: Any) -> None:
        assert [window.elements.tolist() for window in reader[:]] == expected
        reader.close()

    def check(reader: Any, interrupted: bool) -> None:
        # One that was about to close may be closed.
        with suppress(NotOpenError):
            assert [window.elements.tolist() for window in reader[:]] == expected
        reader.close()

    assert interrupt_everywhere(make, act, check, every=1 if capacity else 3) > 20


@pytest.mark.parametrize("backend", ["pread", "mmap", "seek"])
def test_an_interrupt_while_opening_leaves_nothing_open(tmp_path: Path, backend: str) -> None:
    make_stream(tmp_path, [4, 5])
    storage = StreamStorage(tmp_path, IdStreamFormat("<i8"), BACKENDS[backend]())

    def act(state: None) -> None:
        with storage.sync_reader() as reader:
            assert reader.read(0, 2).elements.tolist() == [0, 1]

    assert interrupt_everywhere(lambda: None, act, lambda state, interrupted: None, every=3) > 20


def test_a_reader_that_nobody_closes_closes_its_files_when_it_is_dropped(tmp_path: Path) -> None:
    storage = make_stream(tmp_path, [4], read_interface=PosixPreadIO())
    reader: Any = storage.sync_reader()
    reader.open()
    reader.read(0, 2)
    descriptors = list(reader.opened[1]._handles.values())
    assert len(descriptors) == 1
    del reader
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


# --- the loader ---

WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 2},
    {"num_workers": 2, "prefetch": 2},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_interrupt_while_threads_start_loses_no_thread_and_no_batch(tmp_path: Path, way: dict[str, Any]) -> None:
    dataset = StreamDataset(make_stream(tmp_path, [24], read_interface=PosixPreadIO()), 3)

    def make() -> StatefulDataLoader:
        loader = StatefulDataLoader(dataset, None, device="cpu", local_batch_size=2, **way)
        loader.open()
        return loader

    def act(loader: StatefulDataLoader) -> None:
        iterator = iter(loader)
        next(iterator)
        iterator.close()

    def check(loader: StatefulDataLoader, interrupted: bool) -> None:
        begin = loader.state_dict()["observation_offset"]
        assert begin in (0, 2)
        rest = [batch.tolist() for batch in loader]
        assert rest == [[list(range(3 * i, 3 * i + 3)) for i in (first, first + 1)] for first in range(begin, 8, 2)]
        loader.close()

    assert interrupt_everywhere(make, act, check, every=3 if way else 1) > 20


# --- writers ---


OLD = [b"old 0", b"old 1"]
NEW = [b"%d" % number * 9 for number in range(4)]


class Written:
    """A writer at work in a folder of its own, and what it was given."""

    def __init__(self, folder: Path, mode: Any) -> None:
        self.folder = folder
        self.storage = DocumentStorage(folder, Raw(), PosixPreadIO())  # type: ignore[arg-type]
        if mode != "create":
            with self.storage.sync_writer() as writer:
                for document in OLD:
                    writer.append(0, document)
        self.old = [] if mode == "create" else OLD
        self.kept = OLD if mode == "append" else []
        self.writer: Any = self.storage.sync_writer(mode=mode)
        self.appended: list[bytes] = []
        self.begun: list[bytes] = []

    def append_all(self) -> None:
        for document in NEW:
            self.begun = [*self.appended, document]
            self.writer.append(0, document)
            self.appended = self.begun

    def found(self) -> list[bytes]:
        if not any(".commit." in name for name in os.listdir(self.folder)):
            return []
        with self.storage.sync_reader() as reader:
            return [bytes(document) for document in reader.read_many(range(reader.total_length))]

    def temporaries(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.startswith(".tmp")]


def folders_in(parent: Path, mode: Any) -> Callable[[], Written]:
    numbers = itertools.count()

    def make() -> Written:
        return Written(parent / str(next(numbers)), mode)

    return make


# Some points of each run; those of two runs have hardly any in common. 1 tries all, in a minute.
EVERY = 7


@pytest.fixture
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guideloom._storage.session._MAX_BUFFER_BYTES", 40)


@pytest.mark.usefixtures("_small_buffers")
@pytest.mark.parametrize("error", [Interrupted, LateError])
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_an_append_that_was_interrupted_is_committed_whole_or_not_at_all(
    tmp_path: Path, mode: Any, error: type[BaseException]
) -> None:
    """By a caller who catches what the handler raised, and closes."""

    def make() -> Written:
        written = made()
        written.writer.open()
        return written

    def check(written: Written, interrupted: bool) -> None:
        given_up = False
        try:
            written.writer.close()
        except CommitError:
            given_up = interrupted
        allowed = [written.kept + written.appended, written.kept + written.begun]
        if given_up:
            allowed = [written.old]
        elif not written.appended:
            allowed.append(written.old)  # a shard that was not touched is not replaced either
        assert written.found() in allowed
        assert written.temporaries() == []

    made = folders_in(tmp_path, mode)
    assert interrupt_everywhere(make, Written.append_all, check, error) > 50


@pytest.mark.slow
@pytest.mark.usefixtures("_small_buffers")
@pytest.mark.parametrize("error", [Interrupted, LateError])
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_a_writer_that_is_interrupted_at_any_point_commits_all_or_nothing(
    tmp_path: Path, mode: Any, error: type[BaseException]
) -> None:
    def act(written: Written) -> None:
        with written.writer:
            written.append_all()

    def check(written: Written, interrupted: bool) -> None:
        if written.folder.exists():
            written.writer.abandon()  # for an interrupt at the very begin of `__exit__`
            assert written.found() in (written.old, written.kept + NEW)
            assert written.temporaries() == []
        with written.storage.sync_writer(mode="overwrite") as writer:
            writer.append(0, b"after")
        assert written.found() == [b"after"]

    assert interrupt_everywhere(folders_in(tmp_path, mode), act, check, error, every=EVERY) > 50


@pytest.mark.parametrize("error", [Interrupted, LateError])
def test_what_is_said_to_be_committed_is_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whoever appended again what is said not to be committed would have it twice."""
    link = os.link

    def link_and_raise(source: str, target: str) -> None:
        link(source, target)
        signal.raise_signal(NUMBER)

    def refuse(number: int, frame: FrameType | None) -> None:
        raise error("interrupted")

    written = Written(tmp_path / "data", "create")
    written.writer.open()
    written.append_all()
    written.writer.append(1, b"other")
    monkeypatch.setattr(os, "link", link_and_raise)
    before = signal.signal(NUMBER, refuse)
    try:
        with pytest.raises(error) as caught:
            written.writer.close()
    finally:
        signal.signal(NUMBER, before)
    assert "Shards that are committed: 0" in caught.value.__notes__
    assert written.found() == NEW
