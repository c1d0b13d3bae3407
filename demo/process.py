"""Starts a training process, listens to it, and kills it when told to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from demo.records import Finished, Saved, Started, Step, from_line
from demo.settings import Layout

_FIXED_ARITHMETIC = {
    # The libraries may otherwise choose the number of threads, and so the order of additions, as they run.
    "OMP_DYNAMIC": "FALSE",
    "MKL_DYNAMIC": "FALSE",
    "MKL_CBWR": "AUTO,STRICT",
    # Threads that wait by spinning are a tenth faster on idle cores, and six times slower on cores that others use too.
    "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclass(slots=True)
class Outcome:
    """What one training process said while it lived.

    ``elapsed_s`` runs from the start of the process to its end, ``killed`` says which end it was.
    """

    started: Started | None = None
    steps: list[Step] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    finished: Finished | None = None
    killed: bool = False
    elapsed_s: float = 0.0


def run_training(layout: Layout, run: str, *, kill_after_step: int | None = None) -> Outcome:
    """Train in a process of its own, to the end or to SIGKILL.

    Parameters
    ----------
    layout : Layout
    run : str
        Name of the run; a run with a checkpoint goes on from it.
    kill_after_step : int, optional
        Send SIGKILL as soon as this step is reported: the process is then in the middle of a later one.

    Raises
    ------
    RuntimeError
        If the process ended in any other way than the wanted one.
    """
    outcome = Outcome()
    began = time.perf_counter()
    command = [sys.executable, "-m", "demo.train", str(layout.root), run]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, **_FIXED_ARITHMETIC},
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # the kill came in the middle of a line
                _note(outcome, line)
                if kill_after_step is not None and outcome.steps and outcome.steps[-1].step >= kill_after_step:
                    process.kill()
        except BaseException:
            process.kill()
            raise
    outcome.elapsed_s = time.perf_counter() - began
    outcome.killed = process.returncode < 0
    _check(outcome, run, process.returncode, kill_after_step)
    return outcome


def _note(outcome: Outcome, line: str) -> None:
    match from_line(line):
        case Started() as started:
            outcome.started = started
        case Step() as step:
            outcome.steps.append(step)
        case Saved(step=number):
            outcome.saved.append(number)
        case Finished() as finished:
            outcome.finished = finished


def _check(outcome: Outcome, run: str, code: int, kill_after_step: int | None) -> None:
    if kill_after_step is None and (code != 0 or outcome.finished is None):
        raise RuntimeError(
            f"training run {run!r} was to finish, but its process ended with code {code}; see its output above"
        )
    if kill_after_step is not None and (code == 0 or outcome.finished is not None):
        raise RuntimeError(
            f"training run {run!r} finished before SIGKILL reached it; take more steps, or kill it earlier"
        )
    if kill_after_step is not None and (not outcome.steps or outcome.steps[-1].step < kill_after_step):
        raise RuntimeError(f"training run {run!r} ended with code {code} before it was killed; see its output above")
