"""Ctrl-C and the end of the interpreter, in this process and in real ones."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from guideloom._loader import exits, feeds
from guideloom.errors import InUseError
from tests.loader.fakes import make_items

ROOT = Path(__file__).resolve().parents[2]

WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch": 4},
    {"num_workers": 3, "prefetch": 4},
    {"num_workers": 2, "prefetch": 2, "parallel_method": "process"},
]


_HIDDEN = ("__del__", "gc_callback", "_remove")


@pytest.fixture
def _alarm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        # In a finaliser or a callback of the collector, and in what they call, Python itself would swallow the
        # interrupt, and threading would list a thread for ever whose start it met.
        at = frame
        while at is not None and at.f_code.co_filename != threading.__file__ and at.f_code.co_name not in _HIDDEN:
            at = at.f_back
        if frame is None or at is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60, method="thread")  # the other method uses the same signal
@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_interrupt_at_any_moment_loses_neither_batch_nor_process(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may lose the batch that was on its way to it, and no other."""
    # On a machine with other work, a feed that lost its iterator to an interrupt may take longer to end its workers.
    monkeypatch.setattr(feeds, "GONE_S", 20.0)
    most_processes = way["num_workers"] if "parallel_method" in way else 0
    choose = random.Random(1)
    last: int | None = None

    # A function of its own: Python from 3.12 on does not catch what strikes as a loop in a try block jumps from an if.
    def take(batches: Iterator[Any], position: int) -> None:
        nonlocal last
        for number, batch in enumerate(batches, position):
            assert batch == [number]
            last = number
            if number - position > 20_000:
                break  # the interpreter swallowed the interrupt: it fell into a finaliser

    with make_items(10**9, **way) as loader:
        for _ in range(60):
            position = loader.state_dict()["observation_offset"]
            last = None
            iterator = None
            try:
                signal.setitimer(signal.ITIMER_REAL, choose.uniform(0.0001, 0.01))
                iterator = iter(loader)
                take(iterator, position)
            except KeyboardInterrupt:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            delivered = position if last is None else last + 1
            if iterator is not None:
                iterator.close()
            del iterator
            ahead = loader.state_dict()["observation_offset"] - delivered
            assert ahead in (0, 1), (ahead, position, last)
            assert len(multiprocessing.active_children()) <= most_processes
    # Threads that an interrupt kept from being counted were told to stop; they may be on their way.
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("guideloom")]
    for thread in ours:
        thread.join(5)
    assert [thread.name for thread in ours if thread.is_alive()] == []
    assert multiprocessing.active_children() == []


def start(way: dict[str, Any], body: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, {root!r})
        from tests.loader.fakes import make_items
        if __name__ == "__main__":
            loader = make_items(10**9, **{way!r})
            loader.open()
            iterator = iter(loader)
        """
    ).format(root=str(ROOT), way=way)
    script += textwrap.indent(textwrap.dedent(body), "    ")
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_the_interpreter_ends_with_a_live_iterator_in_a_global() -> None:
    running = [start(way, "for _ in range(3): next(iterator)\nprint('last', flush=True)") for way in WAYS]
    for way, process in zip(WAYS, running, strict=True):
        assert process.stdout is not None
        assert process.stdout.readline() == "last\n", way
        # What is left is the exit itself, which without a cache of kernels waits for the one that is compiled.
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, ""), way


@pytest.mark.slow
def test_an_uncaught_error_in_the_loop_ends_the_interpreter() -> None:
    running = [start(way, "for batch in iterator: 1 / 0") for way in WAYS]
    for way, process in zip(WAYS, running, strict=True):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1, way
        assert errors.count("Traceback") == 1, errors
        assert errors.endswith("ZeroDivisionError: division by zero\n"), errors


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(3))
def test_ctrl_c_ends_the_interpreter(moment: int) -> None:
    choose = random.Random(moment)
    body = "for number, batch in enumerate(iterator):\n    print(number, flush=True)"
    running = [start(way, body) for way in WAYS]
    for way, process in zip(WAYS, running, strict=True):
        assert process.stdout is not None
        for _ in range(choose.randrange(1, 200)):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT, (way, errors)
        assert errors.count("Traceback") == 1, errors
        assert errors.endswith("KeyboardInterrupt\n"), errors


def test_a_forked_child_starts_its_own_iterator() -> None:
    context = multiprocessing.get_context("fork")
    for way in ({}, {"prefetch": 2}, {"num_workers": 2, "prefetch": 2}):
        with make_items(20, **way) as loader:
            iterator = iter(loader)
            assert next(iterator) == [0]
            answers = context.SimpleQueue()

            def child(answers: Any = answers, loader: Any = loader, iterator: Any = iterator, way: Any = way) -> None:
                said = ""
                if way:
                    try:
                        next(iterator)
                    except RuntimeError as error:
                        said = str(error)
                answers.put((said, list(loader)))

            process = context.Process(target=child)
            process.start()
            said, batches = answers.get()
            process.join(30)
            assert process.exitcode == 0
            assert "forked" in said if way else said == ""
            assert batches == [[i] for i in range(1, 20)]
            assert next(iterator) == [1]
            with pytest.raises(InUseError):
                iter(loader)


def run(script: str, *arguments: object) -> tuple[int, str]:
    """Run a script to its end; its exit code and what it wrote to stderr."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        check=False,
    )
    return process.returncode, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["collate_fn", "unpack"])
def test_the_interpreter_outlives_no_work_of_torch_in_a_thread(where: str, tmp_path: Path) -> None:
    code, errors = run(
        """
        import sys, threading, time
        from pathlib import Path
        import torch
        from guideloom import DocumentStorage, StatefulDataLoader

        begun = threading.Event()

        def work(data):
            begun.set()
            numbers, until = torch.ones(400, 400), time.monotonic() + 2.5
            while time.monotonic() < until:  # torch's C++ code does nearly all of it, without the interpreter lock
                numbers = torch.tanh(numbers @ numbers)
            return data

        class Format:
            def pack(self, data):
                return data

            def unpack(self, encoded, shard):
                return bytes(encoded) if sys.argv[2] == "collate_fn" else work(bytes(encoded))

        storage = DocumentStorage(Path(sys.argv[1]), Format())
        with storage.sync_writer() as writer:
            for _ in range(9):
                writer.append(0, b"document")
        loader = StatefulDataLoader.from_storage(
            storage, work if sys.argv[2] == "collate_fn" else list, prefetch=2, device="cpu"
        )
        loader.open()
        batches = iter(loader)
        begun.wait()
        sys.exit(5)
        """,
        tmp_path / "data",
        where,
    )
    assert code == 5, errors
    assert errors.count("\n") == 1
    assert "guideloom-batching still works at exit, in collate_fn or unpack" in errors


def test_the_module_that_compiles_is_known_by_name() -> None:
    assert import_module(exits._COMPILES).Kernel


def test_a_thread_that_computes_is_told_from_one_that_waits() -> None:
    begun, end = threading.Event(), threading.Event()

    def compute() -> None:
        while not end.is_set():
            sum(range(10_000))
            begun.set()

    computing, waiting = threading.Thread(target=compute), threading.Thread(target=end.wait)
    for thread in (computing, waiting):
        thread.start()
    begun.wait()
    first, still = exits._used_ticks(computing), exits._used_ticks(waiting)
    while exits._used_ticks(computing) < first + 5:
        pass
    assert exits._used_ticks(waiting) == still
    end.set()
    for thread in (computing, waiting):
        thread.join()


def test_a_thread_that_runs_without_the_interpreter_lock_is_told_from_one_that_waits() -> None:
    end, data = threading.Event(), bytes(1 << 24)

    def compute() -> None:
        while not end.is_set():
            zlib.crc32(data)

    computing, waiting = threading.Thread(target=compute), threading.Thread(target=end.wait)
    for thread in (computing, waiting):
        thread.start()
    while not exits._wants_to_run(computing) or exits._wants_to_run(waiting):
        pass
    end.set()
    for thread in (computing, waiting):
        thread.join()


def test_a_thread_that_is_not_there_does_not_compute() -> None:
    assert exits._used_ticks(threading.Thread()) == 0
    assert not exits._wants_to_run(threading.Thread())


@pytest.mark.parametrize(
    ("ends_s", "does", "compiles_s", "until_s", "told"),
    [
        (3.0, "computes", (), 3.0, True),
        (100.0, "hangs", (), 0.25, False),
        (100.0, "computes", (), 60.0, True),
        (3.0, "gets no processor", (), 3.0, True),
        # Nobody is told of kernels that are compiled: until shortly before the thread ends, or from some moment on.
        (0.3, "computes", (0.0, 0.2), 0.3, False),
        (0.3, "computes", (0.2, 0.3), 0.3, False),
        # The system may have a thread for a moment longer than Python.
        (0.1, "computes, and lingers", (), 0.1, False),
    ],
)
def test_who_is_waited_for_beside_a_thread_that_ends_at_once(
    ends_s: float,
    does: str,
    compiles_s: tuple[float, ...],
    until_s: float,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]

    class Thread:
        """Ends at a time, and does something until then."""

        def __init__(self, ends_s: float, does: str, compiles_s: tuple[float, ...]) -> None:
            self.name, self.ends_s, self.does, self.compiles_s = "a thread", ends_s, does, compiles_s

        def is_alive(self) -> bool:
            return now[0] < self.ends_s

        def join(self, timeout_s: float) -> None:
            now[0] = max(now[0], min(now[0] + timeout_s, self.ends_s))

        def used_ticks(self) -> int:
            there = self.is_alive() or self.does.endswith("lingers")
            return int(100 * now[0]) if self.does.startswith("computes") and there else 0

        def wants_to_run(self) -> bool:
            return self.does == "gets no processor" and self.is_alive()

        def compiles(self) -> bool:
            return bool(self.compiles_s) and self.compiles_s[0] <= now[0] < self.compiles_s[1]

    monkeypatch.setattr(exits, "perf_counter", lambda: now[0])
    monkeypatch.setattr(exits, "_compiles", Thread.compiles)
    monkeypatch.setattr(exits, "_used_ticks", Thread.used_ticks)
    monkeypatch.setattr(exits, "_wants_to_run", Thread.wants_to_run)
    threads: list[Any] = [Thread(0.001, "computes", ()), Thread(ends_s, does, compiles_s)]
    exits._await_work(threads)
    assert now[0] == pytest.approx(until_s)
    assert len(caplog.records) == told
