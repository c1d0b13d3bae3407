"""Ends that come early, late or from outside: in real processes, over a real data set, each within a time."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from guideloom import StreamDataset
from guideloom.testing import make_stream

pytestmark = pytest.mark.slow

THREADS: dict[str, Any] = {"num_workers": 3, "prefetch": 4}
PROCESSES: dict[str, Any] = {"num_workers": 2, "prefetch": 2, "parallel_method": "process"}
WAYS = [THREADS, PROCESSES]

PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from guideloom import StatefulDataLoader, StreamDataset, StreamStorage
from guideloom.io import PosixPreadIO
from guideloom.testing import IdStreamFormat

dataset = StreamDataset(StreamStorage(Path({folder!r}), IdStreamFormat("<i4"), PosixPreadIO()), 4)
way = {way!r}

def hang_at_20(samples):
    if samples[0].elements[0] >= 80:
        os.write(1, b"stuck\\n")
        threading.Event().wait()
    return samples

def make(collate=None):
    return StatefulDataLoader(dataset, collate, local_batch_size=1, shuffle=False, device="cpu", **way)

if __name__ == "__main__":
    print("go", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data") / "stream"
    make_stream(directory, [200_000, 200_000], "<i4")
    return directory


def start(folder: Path, way: dict[str, Any], body: str) -> subprocess.Popen[str]:
    script = folder.parent / f"program-{random.getrandbits(64):x}.py"
    program = PROGRAM.format(folder=str(folder), way=way)
    script.write_text(program + textwrap.indent(textwrap.dedent(body), "    "))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str], within_s: float = 45) -> tuple[int, str]:
    # An exit takes about a second, but without a cache of kernels it waits for the one that is compiled. One that took
    # a hanging thread for a working one would take a minute.
    try:
        _, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        raise AssertionError(f"it hangs: {errors}") from None
    return process.returncode, errors


EPOCHS = """
while True:
    with make() as loader:
        for number, batch in enumerate(loader):
            if number == 30:
                break
"""


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_ctrl_c_at_any_moment(way: dict[str, Any], folder: Path) -> None:
    """From before the first open on, through starts and ends of epochs."""
    choose = random.Random(str(way))
    for _ in range(4):
        process = start(folder, way, EPOCHS)
        assert line_of(process) == "go"
        # Nothing more is printed: this waits, and wakes early if the program dies.
        assert process.stdout is not None
        select.select([process.stdout], [], [], choose.choice([choose.uniform(0, 0.1), choose.uniform(0, 1.5)]))
        process.send_signal(signal.SIGINT)
        code, errors = ended(process)
        assert code == -signal.SIGINT, errors
        # One traceback, unless it struck where Python's own library deals with an exception: that is told before it.
        earlier = errors.count("During handling of the above exception")
        assert errors.count("Traceback") == 1 + earlier and errors.rstrip().endswith("KeyboardInterrupt"), errors


STUCK = """
loader = make(hang_at_20)
loader.open()
iterator = iter(loader)
for _ in range(20):
    next(iterator)
# A worker is stuck by now, or soon.
"""


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("how", "code", "last"),
    [
        ("", 0, ""),
        ("del loader, iterator", 0, ""),
        ("os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()", -signal.SIGINT, "KeyboardInterrupt"),
    ],
    ids=["end", "del", "ctrl-c"],
)
def test_an_end_while_a_worker_is_stuck(way: dict[str, Any], how: str, code: int, last: str, folder: Path) -> None:
    process = start(folder, way, STUCK + how)
    assert line_of(process) == "go"
    found, errors = ended(process)
    assert found == code, errors
    assert errors.rstrip().endswith(last) and errors.count("Traceback") == bool(last), errors


def test_killed_and_started_again_eight_at_once(folder: Path) -> None:
    """Nothing of a killed run is in the way of the next one, nor any of the runs in that of another."""
    body = """
    with make() as loader:
        for number, batch in enumerate(loader):
            assert batch.tolist() == [list(range(4 * number, 4 * number + 4))]
            if number == 50:
                print("half", flush=True)
            if number == 100:
                break
        sys.stdin.readline()  # until it is killed, however long the other ones take, or told to end
    """
    for kill, num_runs in ((True, 2), (False, 8)):
        running = [start(folder, PROCESSES if number % 2 else THREADS, body) for number in range(num_runs)]
        for process in running:
            assert [line_of(process), line_of(process)] == ["go", "half"]
            if kill:
                process.kill()
        for process in running:
            code, errors = ended(process, 60)
            assert (code, errors) == ((-signal.SIGKILL, "") if kill else (0, "")), errors


CHILDREN = """
import multiprocessing

def child(dataset, answers):
    with dataset.sync_reader() as reader:
        answers.put([sample.elements.tolist() for sample in reader[5:8]])

if True:
    with dataset.sync_reader() as reader, StatefulDataLoader(dataset, None, device="cpu", prefetch=2) as loader:
        expected = [sample.elements.tolist() for sample in reader[5:8]]
        iterator = iter(loader)
        next(iterator)
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            answers = context.SimpleQueue()
            process = context.Process(target=child, args=(dataset, answers))
            process.start()
            assert answers.get() == expected
            process.join()
            assert process.exitcode == 0
        next(iterator)
    print("done", flush=True)
"""


def test_a_data_set_that_is_open_here_is_read_in_children(folder: Path) -> None:
    head, _, body = CHILDREN.partition("if True:\n")
    process = start(folder, {}, textwrap.dedent(body))
    script = Path(process.args[-1])  # type: ignore[index, arg-type]
    process.kill()
    process.communicate()
    text = script.read_text()
    script.write_text(text.replace("def hang_at_20", f"{head}\ndef hang_at_20"))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout) == (0, "go\ndone\n"), result.stderr


def test_an_open_reader_is_not_pickled_in_silence(folder: Path) -> None:
    import pickle

    from guideloom import StreamStorage
    from guideloom.testing import IdStreamFormat

    dataset = StreamDataset(StreamStorage(folder, IdStreamFormat("<i4")), 4)
    with dataset.sync_reader() as reader:
        try:
            other = pickle.loads(pickle.dumps(reader))
        except (TypeError, RuntimeError, pickle.PicklingError):
            return
        with pytest.raises((RuntimeError, OSError)):
            other[0]
