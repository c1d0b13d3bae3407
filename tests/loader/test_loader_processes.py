"""parallel_method="process": the same batches, errors as themselves, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from guideloom import StatefulDataLoader
from guideloom._loader import processes, worker_body
from guideloom.errors import ArgumentError
from guideloom.testing import plain
from tests.loader import fakes
from tests.loader.fakes import ItemDataset, RowDataset, make_items, make_rows

ROOT = Path(__file__).resolve().parents[2]
WAY: dict[str, Any] = {"parallel_method": "process", "num_workers": 2, "prefetch": 4}


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("guideloom"):
            thread.join(10)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_same_batches_in_the_same_order(drop_last: bool) -> None:
    options = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 4, "drop_last": drop_last}
    with make_rows(31, **options) as alone, make_rows(31, **options, **WAY) as processes:
        assert [plain(list(processes)) for _ in range(2)] == [plain(list(alone)) for _ in range(2)]
        assert processes.state_dict() == alone.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: context)
    with make_rows(12, local_batch_size=3, **WAY) as loader:
        batches = list(loader)
    failing = make_items(4, collate_fn=partial(fail_with, RuntimeError("boom")), **WAY)
    with failing, pytest.raises(RuntimeError, match="boom"):
        list(failing)
    assert [batch[:, 0].tolist() for batch in batches] == [[30 * n, 30 * n + 10, 30 * n + 20] for n in range(4)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_who_gives_a_process_what_cannot_be_pickled_is_told_what_to_do(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: context)
    with make_rows(12, collate_fn=lambda samples: len(samples), local_batch_size=3, **WAY) as loader:
        if method == "fork":
            assert list(loader) == [3, 3, 3, 3]
        else:
            with pytest.raises((pickle.PicklingError, AttributeError)) as caught:
                iter(loader)
            assert 'at the top level of a module, or pass parallel_method="thread"' in caught.value.__notes__[-1]


def test_a_function_that_a_process_does_not_find_is_an_error_with_what_to_do() -> None:
    program = f"""
        import multiprocessing, sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.loader.fakes import make_items

        def collate(samples):
            return samples

        if __name__ == "__main__":
            multiprocessing.set_start_method("spawn")
            with make_items(4, collate_fn=collate, parallel_method="process", num_workers=1, prefetch=1) as loader:
                try:
                    next(iter(loader))
                except AttributeError as error:
                    print(error, *error.__notes__)
    """
    # Nothing imports what is given so: as it is with a cell of a notebook.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "attribute 'collate'" in done.stdout
    assert 'not in a notebook or at a prompt, or pass parallel_method="thread"' in done.stdout
    assert done.stderr == ""


def fail_with(error: BaseException, samples: list[int]) -> Any:
    if samples == [3]:
        raise error
    return samples


@pytest.mark.parametrize(
    "error",
    [
        KeyError("three"),
        OSError(5, "bad disk", "/some/file"),
        # Of a connection of the user's, not of ours.
        ConnectionResetError("by peer"),
        EOFError("of some file"),
        StopIteration("x"),
        SystemExit(4),
    ],
    ids=repr,
)
def test_an_error_arrives_as_itself_at_its_batch(error: BaseException) -> None:
    wanted = RuntimeError if isinstance(error, StopIteration) else type(error)
    with make_items(20, collate_fn=partial(fail_with, error), **WAY) as loader:
        iterator = iter(loader)
        assert list(islice(iterator, 3)) == [[0], [1], [2]]
        with pytest.raises(wanted) as caught:
            next(iterator)
        if wanted is type(error):
            assert caught.value.args == error.args
            assert "in worker process" in caught.value.__notes__[0]
            assert "fail_with" in caught.value.__notes__[0]
        assert loader.state_dict()["observation_offset"] == 3


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize("kind", [fakes.Unpicklable, fakes.TwoArguments])
def test_an_error_that_cannot_be_pickled_is_told(kind: type[Exception]) -> None:
    def collate(samples: list[int]) -> Any:
        raise kind("details of it", 7)

    with make_items(20, collate_fn=collate, **WAY) as loader, pytest.raises(RuntimeError) as caught:
        next(iter(loader))
    assert f"{kind.__name__}: details of it" in str(caught.value)
    assert "collate" in caught.value.__notes__[0]


@pytest.mark.usefixtures("_forked")
def test_a_batch_that_cannot_be_pickled_is_an_error() -> None:
    loader = make_items(20, collate_fn=lambda samples: iter(lambda: 1, 2), **WAY)
    with loader, pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        next(iter(loader))


@pytest.mark.usefixtures("_forked")
def test_a_worker_that_is_killed_is_an_error_with_its_exit_code() -> None:
    def collate(samples: list[int]) -> Any:
        if samples == [5]:
            os.kill(os.getpid(), signal.SIGKILL)
        return samples

    with make_items(40, collate_fn=collate, **WAY) as loader:
        iterator = iter(loader)
        got = []
        with pytest.raises(RuntimeError, match=r"exit code -9, killed by signal 9, for lack of memory"):
            while True:
                got.append(next(iterator))
        assert got == [[i] for i in range(len(got))]
        assert 3 <= len(got) <= 5
        assert loader.state_dict()["observation_offset"] == len(got)


@pytest.mark.usefixtures("_forked")
def test_a_data_set_that_does_not_open_in_the_worker() -> None:
    class Fragile(ItemDataset):
        def sync_reader(self) -> Any:
            if os.getpid() != parent:
                raise FileNotFoundError("gone meanwhile")
            return super().sync_reader()

    parent = os.getpid()
    loader = StatefulDataLoader(Fragile(8), list, device="cpu", **WAY)
    with loader, pytest.raises(FileNotFoundError, match="gone meanwhile"):
        next(iter(loader))


@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize("more", [-1, 1])
def test_a_data_set_of_another_size_in_the_worker_is_refused(more: int) -> None:
    class Changing(ItemDataset):
        def sync_reader(self) -> Any:
            if os.getpid() != parent:
                self.size += more
            return super().sync_reader()

    parent = os.getpid()
    loader = StatefulDataLoader(Changing(8), list, device="cpu", **WAY)
    with loader, pytest.raises(ArgumentError, match=f"has {8 + more} samples in the worker process and 8 in its par"):
        next(iter(loader))


def test_partial_iterations_leave_no_process() -> None:
    with make_items(40, **WAY) as loader:
        for _ in range(10):
            next(iter(loader))
    assert loader.state_dict()["observation_offset"] == 10


def mixed(samples: list[Any]) -> Any:
    rows = np.stack(samples)
    return {
        "big": torch.full((1000, 100), int(rows[0, 0])),
        "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "strided": torch.arange(6).reshape(2, 3).t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty((0, 4)),
        "array": np.arange(50_000),
        "text": [str(row) for row in rows],
    }


def test_tensors_and_arrays_of_any_kind_cross_whole_and_writable() -> None:
    with make_rows(4, collate_fn=mixed, **WAY) as loader, make_rows(4, collate_fn=mixed) as alone:
        for found, expected in zip(loader, alone, strict=True):
            assert plain({k: v.float() if k == "half" else v for k, v in found.items()}) == plain(
                {k: v.float() if k == "half" else v for k, v in expected.items()}
            )
            assert found["half"].dtype == torch.bfloat16
            found["big"].add_(1)
            found["array"][0] = 7


def test_numeric_batches() -> None:
    with StatefulDataLoader(RowDataset(10_000), None, device="cpu", local_batch_size=5000, **WAY) as loader:
        batches = list(loader)
    assert [batch["rows"].shape for batch in batches] == [(5000, 2), (5000, 2)]
    assert batches[1]["rows"][0].tolist() == [50_000, 50_001]
    batches[0]["rows"].add_(1)


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed() -> None:
    script = textwrap.dedent(
        f"""
        import multiprocessing, os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.loader.fakes import make_items
        loader = make_items(10**6, parallel_method="process", num_workers=3, prefetch=4)
        loader.open()
        iterator = iter(loader)
        next(iterator)
        print(*[process.pid for process in multiprocessing.active_children()], flush=True)
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 3
        parent.kill()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE] == []


def test_an_interrupt_waits_until_the_workers_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be given the signal, whatever the main thread blocks; Python interrupts the main one."""
    started, sleeping = [], threading.Event()
    sleeper = threading.Thread(target=sleeping.wait, daemon=True)
    sleeper.start()
    arrived, wakes = os.pipe()
    os.set_blocking(wakes, False)

    class Interrupted(processes.Worker):
        def __init__(self, *args: Any) -> None:
            signal.pthread_kill(sleeper.ident or 0, signal.SIGINT)
            assert os.read(arrived, 1)
            super().__init__(*args)
            started.append(self.process)

    monkeypatch.setattr(processes, "Worker", Interrupted)
    before = signal.set_wakeup_fd(wakes)
    try:
        with StatefulDataLoader(RowDataset(), None, num_workers=2, prefetch=2, parallel_method="process") as loader:
            with pytest.raises(KeyboardInterrupt):
                iter(loader)
            assert len(started) == 2
            monkeypatch.undo()
            assert len(list(loader)) == len(loader)
        assert not multiprocessing.active_children()
    finally:
        signal.set_wakeup_fd(before)
        sleeping.set()
        for end in (arrived, wakes):
            os.close(end)


def _say_why_not(connection: Any) -> None:
    with StatefulDataLoader(RowDataset(), None, **WAY) as loader:
        try:
            iter(loader)
        except ArgumentError as error:
            connection.send(str(error))


def test_a_daemonic_process_is_told_that_it_may_have_no_workers() -> None:
    told, connection = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_say_why_not, args=(connection,), daemon=True)
    process.start()
    connection.close()
    assert 'use parallel_method="thread"' in told.recv()
    process.join(20)
    assert process.exitcode == 0
    told.close()


@pytest.mark.parametrize("name", ["register", "Worker"])
def test_a_start_that_breaks_off_leaves_no_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = getattr(processes, name)

    def breaks_off(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == (1 if name == "register" else 2):
            raise KeyboardInterrupt
        return whole(*args)

    with StatefulDataLoader(RowDataset(), None, num_workers=2, prefetch=2, parallel_method="process") as loader:
        monkeypatch.setattr(processes, name, breaks_off)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert not multiprocessing.active_children()


SIGNALLED = """
import multiprocessing, os, signal, sys
sys.path.insert(0, {root!r})
from tests.loader.fakes import make_items

def handler(number, frame):
    os.write(1, b"handled\\n")

if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]
    for number in numbers:
        signal.signal(number, handler)
    loader = make_items(80, parallel_method="process", num_workers=2, prefetch=2)
    loader.open()
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    for number in numbers:
        os.killpg(0, number)
    print(len(list(iterator)), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_signals_that_the_caller_handles_are_left_to_it(method: str, tmp_path: Path) -> None:
    """A batch system signals all processes of a job; the program goes on, and ends, as its handler wants."""
    script = tmp_path / "program.py"
    script.write_text(SIGNALLED.format(root=str(ROOT), method=method))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as program:
        try:
            output, errors = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (program.returncode, errors) == (0, "")
    assert output.splitlines() == ["handled"] * 4 + ["76"]


def drawn(samples: list[int]) -> tuple[int, float, float]:
    return os.getpid(), float(np.random.rand()), float(torch.rand((), device="cpu"))  # noqa: NPY002


def draws_of_workers() -> list[list[tuple[float, float]]]:
    with make_items(40, collate_fn=drawn, **WAY) as loader:
        draws: dict[int, list[tuple[float, float]]] = {}
        for process, *numbers in loader:
            draws.setdefault(process, []).append((numbers[0], numbers[1]))
    return list(draws.values())


def test_workers_draw_different_random_numbers() -> None:
    before = np.random.get_state()[1], torch.get_rng_state()  # noqa: NPY002
    with torch.device("meta"):  # whatever device is the default: here one that draws nothing
        workers = [*draws_of_workers(), *draws_of_workers()]
    for generator in range(2):
        numbers = [draw[generator] for worker in workers for draw in worker]
        assert len(set(numbers)) == len(numbers) == 80
    after = np.random.get_state()[1], torch.get_rng_state()  # noqa: NPY002
    assert np.array_equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def found_in_worker(samples: list[int]) -> tuple[bool, str, int]:
    in_worker = multiprocessing.parent_process() is not None
    return in_worker, type(np.random.get_bit_generator()).__name__, torch.get_num_threads()


@pytest.mark.usefixtures("_forked")
def test_a_worker_has_one_thread_of_torch_and_keeps_a_generator_of_the_users_own() -> None:
    before = np.random.get_bit_generator(), torch.get_num_threads()
    np.random.set_bit_generator(np.random.PCG64(1))
    torch.set_num_threads(2)
    try:
        with make_items(8, collate_fn=found_in_worker, **WAY) as loader:
            assert set(loader) == {(True, "PCG64", 1)}
    finally:
        np.random.set_bit_generator(before[0])
        torch.set_num_threads(before[1])


def test_a_worker_draws_though_a_thread_of_its_parent_drew_while_it_was_forked() -> None:
    drawing, forked = threading.Event(), threading.Event()

    def draw() -> None:
        with np.random.get_bit_generator().lock:
            drawing.set()
            forked.wait()

    thread = threading.Thread(target=draw)
    process = multiprocessing.get_context("fork").Process(target=draw_as_worker)
    thread.start()
    drawing.wait()
    try:
        process.start()
        process.join(30)
        assert process.exitcode == 0
    finally:
        forked.set()
        thread.join()
        process.kill()
        process.join()


def test_what_a_worker_draws_follows_from_its_parents_generators_and_its_number() -> None:
    before = np.random.get_bit_generator(), torch.get_rng_state()

    def drawn_by(seed: int, number: int) -> tuple[float, float]:
        np.random.set_bit_generator(np.random.MT19937(seed))
        torch.manual_seed(seed)
        worker_body._draw_other_numbers(number)
        return float(np.random.rand()), float(torch.rand((), device="cpu"))  # noqa: NPY002

    try:
        first = drawn_by(7, 0)
        assert drawn_by(7, 0) == first
        for other in (drawn_by(7, 1), drawn_by(8, 0)):
            assert other[0] != first[0] and other[1] != first[1]
    finally:
        np.random.set_bit_generator(before[0])
        torch.set_rng_state(before[1])


def draw_as_worker() -> None:
    parents = np.random.get_bit_generator()
    worker_body._draw_other_numbers(3)
    assert np.random.get_bit_generator() is not parents
    np.random.standard_normal()  # noqa: NPY002


def test_signals_stay_blocked_while_the_first_process_of_another_method_is_started() -> None:
    program = """
        import multiprocessing, signal
        from multiprocessing import resource_tracker
        from guideloom._loader.workers import interrupts_blocked

        multiprocessing.set_start_method("spawn")
        for number in (signal.SIGHUP, signal.SIGQUIT):  # a shell's background may ignore them
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: None)
        with interrupts_blocked():
            resource_tracker.getfd()  # as each start does
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print(*sorted(signal.Signals(number).name for number in blocked))
        print(*signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["SIGINT SIGTERM", ""]
