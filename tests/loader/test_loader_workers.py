"""Worker processes stay from one epoch to the next, and no longer than their loader."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import psutil
import pytest

from guideloom import StatefulDataLoader, StreamDataset
from guideloom._loader import feeds, processes, workers
from guideloom._loader.worker_body import Job
from guideloom.testing import make_stream, plain
from tests.loader.fakes import ItemDataset, make_items

ROOT = Path(__file__).resolve().parents[2]
WAY: dict[str, Any] = {"parallel_method": "process", "num_workers": 2, "prefetch": 4}


def join_our_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("guideloom"):
            thread.join(10)


@pytest.fixture(autouse=True)
def _no_process_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # On a machine with other work, too, who closes sees the end of what it ends.
    for module in ("iterator", "loader"):
        monkeypatch.setattr(f"guideloom._loader.{module}.CLOSE_TIMEOUT_S", 20.0)
    yield
    join_our_threads()
    assert multiprocessing.active_children() == []


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with other work, too, healthy workers are given the time that they need."""
    for module in (processes, workers):
        monkeypatch.setattr(module, "PATIENCE_S", 20.0)
    monkeypatch.setattr(feeds, "GONE_S", 20.0)


def with_pid(samples: list[Any]) -> tuple[int, list[Any]]:
    return os.getpid(), samples


def marked(size: int, **options: Any) -> StatefulDataLoader:
    """A loader whose batches say which process made them."""
    return make_items(size, **{"collate_fn": with_pid, **WAY, **options})


def epoch(loader: Any) -> tuple[set[int], list[Any]]:
    """Return the processes of the rest of an epoch, and what they gave."""
    batches = list(loader)
    return {pid for pid, _ in batches}, [samples for _, samples in batches]


def children() -> set[int]:
    return {process.pid or 0 for process in multiprocessing.active_children()}


@pytest.mark.parametrize(
    ("method", "prefetch"),
    [
        ("fork", 0),
        ("fork", 4),
        *(pytest.param(method, 4, marks=pytest.mark.slow) for method in ("spawn", "forkserver")),
    ],
)
@pytest.mark.filterwarnings("ignore:prefetch")
@pytest.mark.usefixtures("_patient")
def test_workers_stay_for_the_epochs_that_follow(method: str, prefetch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: context)
    options: dict[str, Any] = {"shuffle": True, "shuffle_seed": 2, "local_batch_size": 3, "drop_last": False}
    with marked(40, prefetch=prefetch, **options) as loader, make_items(40, **options) as alone:
        found = [epoch(loader) for _ in range(2)]
        # What a `break` leaves unread is thrown away, and the workers are kept.
        begun = [next(iter(loader)) for _ in range(3)]
        found.append(epoch(loader))
        found[-1][1][:0] = [samples for _, samples in begun]
        assert [batches for _, batches in found] == [list(alone) for _ in range(3)]
        assert loader.state_dict() == alone.state_dict()
        assert len(children()) == 2
        for pids, _ in found:
            assert pids <= children()


@pytest.mark.usefixtures("_patient")
def test_only_as_many_workers_as_there_are_batches_are_started() -> None:
    with marked(12, num_workers=3) as loader:
        end = {**loader.state_dict(), "observation_offset": 11}
        loader.load_state_dict(end)
        first, batches = epoch(loader)
        assert batches == [[11]] and children() == first
        assert epoch(loader)[1] == [[n] for n in range(12)]
        three = children()
        assert len(three) == 3 and first < three
        loader.load_state_dict(end)
        assert epoch(loader)[1] == [[11]]
        assert children() == three


@pytest.mark.usefixtures("_patient")
def test_a_second_loader_has_workers_of_its_own() -> None:
    with marked(20) as one, marked(20) as other:
        assert epoch(one)[1] == epoch(other)[1]
        of_both = children()
        assert len(of_both) == 4
        of_one = epoch(one)[0]
        assert not of_one & epoch(other)[0]
        other.close()
        assert of_one <= children() and len(children()) == 2
        assert epoch(one)[1] == [[n] for n in range(20)]


@pytest.mark.usefixtures("_patient")
def test_what_a_loader_holds_does_not_grow() -> None:
    def held() -> dict[str, Any]:
        of_children = {pid: psutil.Process(pid).num_fds() for pid in children()}
        return {"descriptors": os.listdir("/proc/self/fd"), "children": of_children, "threads": threading.enumerate()}

    with marked(6) as loader:
        epoch(loader)
        before = held()
        for number in range(50):
            if number % 2:
                next(iter(loader))
            else:
                epoch(loader)
        loader.load_state_dict({**loader.state_dict(), "observation_offset": 0})
        epoch(loader)
        assert held() == before


@pytest.mark.usefixtures("_patient")
def test_a_worker_that_was_killed_between_epochs_is_replaced() -> None:
    with marked(20) as loader:
        epoch(loader)
        killed, *others = multiprocessing.active_children()
        killed.kill()
        killed.join()
        pids, batches = epoch(loader)
        assert batches == [[n] for n in range(20)]
        assert killed.pid not in pids
        assert len(children()) == 2 and {process.pid for process in others} < children()


@pytest.mark.parametrize("sample", [5, 19])
@pytest.mark.usefixtures("_patient", "_forked")
def test_a_worker_that_failed_is_not_kept(sample: int, tmp_path: Path) -> None:
    def fails_once(samples: list[int]) -> tuple[int, list[int]]:
        if samples == [sample] and not (tmp_path / "failed").exists():
            (tmp_path / "failed").write_text(str(os.getpid()))
            raise KeyError(sample)
        return with_pid(samples)

    with marked(20, collate_fn=fails_once) as loader:
        with pytest.raises(KeyError):
            list(loader)
        failed = int((tmp_path / "failed").read_text())
        assert failed not in children()
        assert epoch(loader)[1] == [[n] for n in range(sample, 20)]
        assert epoch(loader)[1] == [[n] for n in range(20)]
        assert failed not in children() and len(children()) == 2


@pytest.mark.usefixtures("_forked")
def test_a_worker_that_hangs_is_ended_by_close(tmp_path: Path) -> None:
    told, tells = multiprocessing.Pipe(duplex=False)

    def hangs_once(samples: list[int]) -> tuple[int, list[int]]:
        if samples == [2] and not (tmp_path / "hung").exists():
            (tmp_path / "hung").touch()
            tells.send(os.getpid())
            signal.pause()
        return with_pid(samples)

    with marked(40, collate_fn=hangs_once) as loader, told, tells:
        iterator = iter(loader)
        assert [samples for _, samples in islice(iterator, 2)] == [[0], [1]]
        hung = told.recv()
        assert hung in children()
        iterator.close()
        assert hung not in children()
        assert epoch(loader)[1] == [[n] for n in range(2, 40)]


@pytest.mark.usefixtures("_forked")
def test_no_worker_is_started_beside_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "GONE_S", 20.0)  # on a machine with other work, too, the feed gets to end it
    told, tells = multiprocessing.Pipe(duplex=False)

    def hangs_once(samples: list[int]) -> tuple[int, list[int]]:
        if samples == [2] and not (tmp_path / "hung").exists():
            (tmp_path / "hung").touch()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tells.send(os.getpid())
            signal.pause()
        return with_pid(samples)

    with marked(40, collate_fn=hangs_once) as loader, told, tells:
        assert next(iter(loader))[1] == [0]
        hung = told.recv()
        with iter(loader) as iterator:
            assert len(children()) == 2 and hung not in children()
            assert next(iterator)[1] == [1]


def test_the_end_of_a_feed_is_awaited_for_as_long_as_it_may_take() -> None:
    # Until workers have finished what they began, then until they obey SIGTERM, then until SIGKILL has ended them.
    assert feeds.GONE_S >= processes.PATIENCE_S + 2 * workers._LAST_PATIENCE_S


def test_no_more_workers_are_kept_than_are_asked_for_and_none_once_closed() -> None:
    kept = workers.Workers()
    started = [workers.Worker(Job(ItemDataset(), None, None), number) for number in range(3)]
    ended = kept.keep(started[:1], 2) + kept.keep(started[1:], 2)
    assert len(ended) == 1 and ended[0] in started[1:]
    back = kept.take()
    assert back is not None and back is not ended[0]
    kept.close()
    assert kept.keep([back], 2) == [back] and kept.take() is None
    kept.join()
    workers.end_workers([*ended, back], perf_counter() + 20)


def test_a_loader_that_is_closed_in_the_middle_keeps_no_worker() -> None:
    loader = marked(1000)
    for _ in range(3):
        loader.open()
        iterator = iter(loader)
        next(iterator)
        assert len(children()) == 2
        loader.close()
        assert children() == set()
    assert loader.state_dict()["observation_offset"] == 3


@pytest.mark.parametrize("in_the_middle", [False, True])
@pytest.mark.usefixtures("_patient")
def test_workers_end_with_a_loader_that_is_dropped(in_the_middle: bool) -> None:
    gc.disable()
    try:
        loader = marked(20)
        loader.open()
        epoch(loader)
        left = multiprocessing.active_children()
        iterator = iter(loader)
        if in_the_middle:
            next(iterator)
        else:
            list(iterator)
        known = weakref.ref(loader)
        del loader, iterator
        assert known() is None, "something but the caller refers to the loader"
        join_our_threads()  # one of two that wait for a process is not told its exit code
        for process in left:
            process.join(20)
        # By themselves, for their pipe was closed.
        assert [process.exitcode for process in left] == [0, 0]
    finally:
        gc.enable()


class Trainer:
    """Refers to the loader that calls it."""

    def __init__(self) -> None:
        self.loader = marked(20, collate_fn=self.collate)

    def collate(self, samples: list[int]) -> Any:
        return with_pid(samples)


@pytest.mark.usefixtures("_patient", "_forked")
def test_workers_end_with_a_loader_in_a_cycle() -> None:
    trainer = Trainer()
    trainer.loader.open()
    epoch(trainer.loader)
    left = multiprocessing.active_children()
    del trainer
    gc.collect()
    for process in left:
        process.join(20)
    assert [process.exitcode for process in left] == [0, 0]


@pytest.mark.usefixtures("_patient")
def test_a_fork_between_epochs_keeps_no_pipe_and_uses_no_worker() -> None:
    context = multiprocessing.get_context("fork")
    answer, answers = context.Pipe(duplex=False)
    go, goes = context.Pipe(duplex=False)
    with marked(20) as loader:
        epoch(loader)
        of_parent = multiprocessing.active_children()

        def lingers() -> None:
            answers.send(epoch(loader))
            loader.close()
            go.recv()

        process = context.Process(target=lingers)
        process.start()
        pids, batches = answer.recv()
        assert batches == [[n] for n in range(20)]
        assert not pids & {process.pid for process in of_parent}
        assert epoch(loader)[0] <= {process.pid for process in of_parent}
        loader.close()
        # The child is there still: had it kept a pipe, they would have to be terminated.
        assert [process.exitcode for process in of_parent] == [0, 0]
        goes.send(None)
        process.join(20)
        assert process.exitcode == 0
    for end in (answer, answers, go, goes):
        end.close()


@pytest.mark.usefixtures("_patient")
def test_workers_keep_the_snapshot_of_their_loader(tmp_path: Path) -> None:
    """Also those that are started after the data changed."""
    storage = make_stream(tmp_path / "data", [40], "<i4")
    options: dict[str, Any] = {"local_batch_size": 4, "device": "cpu", **WAY}
    with StatefulDataLoader(StreamDataset(storage, 2), None, **options) as loader:
        before = plain(list(loader))
        with storage.sync_writer(mode="overwrite") as writer:
            writer.append(0, np.arange(400, dtype=np.int32)[::-1])
        assert plain(list(loader)) == before
        for process in multiprocessing.active_children()[:1]:
            process.kill()
            process.join()
        assert plain(list(loader)) == before
    with StatefulDataLoader(StreamDataset(storage, 2), None, **options) as loader:
        assert len(list(loader)) == 10 * len(before)


@pytest.mark.usefixtures("_patient", "_forked")
def test_a_close_that_is_interrupted_does_not_take_its_feed_for_ended() -> None:
    """``threading`` does that with a thread that was waited for."""
    told, tells = multiprocessing.Pipe(duplex=False)

    def waits(samples: list[int]) -> Any:
        if samples == [2]:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
            tells.send(os.getpid())
            signal.sigwait({signal.SIGUSR2})
        return samples

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def interrupt_the_wait() -> None:
        main, at = threading.main_thread().ident or 0, None
        while at is None:
            at = sys._current_frames()[main]
            while at is not None and at.f_code is not processes.ProcessFeed.join.__code__:
                at = at.f_back
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with marked(20, collate_fn=waits) as loader, told, tells:
            iterator = iter(loader)
            assert list(islice(iterator, 2)) == [[0], [1]]
            waiting = told.recv()
            interrupter = threading.Thread(target=interrupt_the_wait)
            with pytest.raises(KeyboardInterrupt):
                interrupter.start()
                iterator.close()
            interrupter.join()
            assert not iterator._feed.join(0)
            os.kill(waiting, signal.SIGUSR2)
            assert iterator._feed.join(20)
            assert waiting in children() and len(children()) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


ENDS = {
    "the end of the program": ("", 0),
    "an error": ("1 / 0", 1),
    "Ctrl-C": ("signal.pause()", -signal.SIGINT),
    "SIGKILL": ("signal.pause()", -signal.SIGKILL),
}


@pytest.mark.slow
def test_idle_workers_end_with_the_program() -> None:
    script = textwrap.dedent(
        f"""
        import multiprocessing, os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.loader.fakes import make_items
        loader = make_items(20, **{WAY!r})
        loader.open()
        list(loader)
        list(loader)
        print(*[process.pid for process in multiprocessing.active_children()], flush=True)
        """
    )
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "error", "-c", script + body],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    start_new_session=True,
                )
            )
            for body, _ in ENDS.values()
        ]
        for program in running:
            stack.callback(program.kill)
        for (way, (_, code)), program in zip(ENDS.items(), running, strict=True):
            assert program.stdout is not None
            # Those of the programs that end by themselves may be gone by now.
            left = [int(pid) for pid in program.stdout.readline().split()]
            assert len(left) == 2, way
            if code < 0:
                # As a terminal does: Ctrl-C is for all of them.
                (os.killpg if way == "Ctrl-C" else os.kill)(program.pid, -code)
            _, errors = program.communicate(timeout=20)
            assert program.returncode == code, (way, errors)
            assert errors.count("Traceback") == (way in ("an error", "Ctrl-C")), (way, errors)
            still = [psutil.Process(pid) for pid in left if psutil.pid_exists(pid)]
            _, alive = psutil.wait_procs(still, timeout=20)
            assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == [], way


@pytest.mark.slow
def test_a_forked_child_that_ends_leaves_the_workers_to_its_parent() -> None:
    """Whatever ends it: the interpreter of such a child ends all that it takes for its own processes."""
    script = textwrap.dedent(
        f"""
        import multiprocessing, os, sys, warnings
        sys.path.insert(0, {str(ROOT)!r})
        from tests.loader.test_loader_workers import epoch, marked
        multiprocessing.set_start_method("fork")  # a forked child cannot use the fork server of its parent
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        loader = marked(40)
        loader.open()
        before, _ = epoch(loader)
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child:
            print(os.waitpid(child, 0)[1], len(list(iterator)), epoch(loader)[0] <= before)
        else:
            print(len(epoch(loader)[1]), flush=True)
        """
    )
    program = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (program.returncode, program.stderr) == (0, "")
    assert program.stdout.splitlines() == ["39", "0 39 True"]


@pytest.mark.parametrize("num_dead", [1, 2])
@pytest.mark.parametrize("prefetch", [2, 4])
@pytest.mark.usefixtures("_patient")
def test_a_worker_that_dies_before_its_first_batch_is_an_error_there(
    num_dead: int, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found dead when the batch is given to it, not when its pipe is looked at: the others owe nothing then."""
    send, killed = workers.Worker.send, []

    def send_to_the_dead(worker: workers.Worker, *command: Any) -> None:
        if len(killed) < num_dead and worker not in killed:
            killed.append(worker)
            worker.process.kill()
            worker.process.join()
        send(worker, *command)

    with marked(20, prefetch=prefetch) as loader:
        monkeypatch.setattr(workers.Worker, "send", send_to_the_dead)
        with pytest.raises(RuntimeError, match=r"killed by signal 9.*before it gave batch 0"):
            list(loader)
        assert len(killed) == num_dead
        assert loader.state_dict()["observation_offset"] == 0
        monkeypatch.setattr(workers.Worker, "send", send)
        assert epoch(loader)[1] == [[number] for number in range(20)]
