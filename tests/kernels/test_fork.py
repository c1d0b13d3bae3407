"""Forks at the worst moments: while another thread makes the first calls of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage

# Each child makes the same first calls under a watchdog that ends it with its stacks on stderr. A fork that needs no
# waiting comes 20 ms after the one before, so that they meet imports, compilation, and what a first call does.
FORKS = """
import faulthandler, os, sys, threading
{setup}
def child():
    faulthandler.dump_traceback_later(30, exit=True)
    work()
    os._exit(0)

thread = threading.Thread(target=work)
thread.start()
children = []
while thread.is_alive() or not children:
    pid = os.fork()
    if pid == 0:
        child()
    children.append(pid)
    thread.join(0.02)
print(len(children), [status for pid in children if (status := os.waitpid(pid, 0)[1])])
"""

KERNELS = """
import numpy as np
from guideloom._kernels.jit import kernel

def declare(number):
    @kernel("int64(int64[::1], int64)")
    def add(values, more):
        return values.sum() + more
    return add

kernels = [declare(number) for number in range(10)]

def work():
    for more, add in enumerate(kernels):
        assert add(np.arange(4), more) == 6 + more
"""

READS = """
from pathlib import Path
from guideloom import StreamDataset, StreamNumpyFormat, StreamStorage
import numpy as np
storage = StreamStorage(Path({folder!r}), StreamNumpyFormat(np.dtype([("token", "<u2")])))
dataset = StreamDataset(storage, 4)

def work():
    with dataset.sync_reader() as reader:
        assert [row["token"].tolist() for row in reader[0:3]] == [list(range(i, i + 4)) for i in (0, 4, 8)]
"""


def forked(setup: str, cache: Path) -> int:
    """Run, check that each child ended well, and return how many there were: the busier the machine, the fewer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "GUIDELOOM_"))}
    result = subprocess.run(
        [sys.executable, "-c", FORKS.format(setup=setup)],
        env={**environment, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    number, _, failed = result.stdout.partition(" ")
    assert (result.returncode, failed.strip()) == (0, "[]"), result.stderr
    return int(number)


@pytest.mark.slow
def test_forks_between_first_calls(tmp_path: Path) -> None:
    assert forked(KERNELS, tmp_path) > 1


@pytest.mark.slow
def test_forks_while_a_thread_reads_its_first_batch(tmp_path: Path) -> None:
    with StreamStorage(tmp_path / "data", StreamNumpyFormat(np.dtype([("token", "<u2")]))).sync_writer() as writer:
        writer.append(0, {"token": np.arange(40)})
    assert forked(READS.format(folder=str(tmp_path / "data")), tmp_path / "cache") > 0


INTERRUPTED = """
import _thread, functools, logging, os, signal, threading

def refuse(*args):
    raise ValueError

signal.signal(signal.SIGUSR1, refuse)
# The next function written in Python is left by an error at its first step; logging's has gone before.
os.register_at_fork(after_in_parent=functools.partial(_thread.interrupt_main, signal.SIGUSR1))
import numba
from numba.core.compiler_lock import global_compiler_lock
from guideloom._kernels import jit

os.register_at_fork(after_in_parent=lambda: None)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
free = []
locks = jit._compiling, global_compiler_lock._lock
thread = threading.Thread(target=lambda: free.extend(lock.acquire(blocking=False) for lock in locks))
thread.start()
thread.join()
print(free)
"""


def test_a_signal_handler_that_raises_right_after_a_fork_leaves_no_lock_held() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[True, True]\n", result.stderr
    assert "ValueError" in result.stderr
