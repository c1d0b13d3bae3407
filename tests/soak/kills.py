"""Writers that run freely and are killed with SIGKILL at random moments, again and again, until their work is done."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from functools import cache
from pathlib import Path

from guideloom._storage.catalog import Kind
from tests.soak import world
from tests.soak.world import DONE, Job, Plan

MOST_ROUNDS = 6


def start(plan: Plan, job: Job, folder: Path, shards: list[int]) -> int:
    """Begin a job in a process of its own; return its id."""
    child = os.fork()
    if child == 0:
        world.exit_with(lambda: world.run_job(plan, job, folder, shards))
    return child


def end(child: int) -> int | None:
    """Wait for a process; return its exit code, None when it was killed."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None


@cache
def duration_s(kind: Kind, num_shards: int) -> float:
    """How long an undisturbed writer takes here, from its fork to its end."""
    job = Job(0, "create", tuple(range(num_shards)))
    plan = Plan(kind, (), (job,))
    found = []
    for _ in range(4):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            assert end(start(plan, job, Path(folder), list(job.shards))) == DONE
            found.append(time.perf_counter() - begin)
    return sorted(found)[1]


def run_case(seed: int, scratch: Path) -> int:
    """Kill the writers of a plan at random moments, start what they did not finish again, and check in between.

    Returns
    -------
    int
        Writers that were killed. The seed decides the plan and the moments; what a writer has done by then is the
        machine's.
    """
    chance = random.Random(seed)
    plan = world.random_plan(chance)
    folder = scratch / "data"
    world.build(plan, folder)
    num_kills = 0
    over: dict[int, int | None] = {}
    try:
        for _ in range(MOST_ROUNDS):
            running = []
            for job in plan.jobs:
                left = world.left_of(plan, job, folder)
                if left and job.number not in over:
                    delay = chance.uniform(0, max(1.0, len(plan.jobs) / 2) * duration_s(plan.kind, len(left)))
                    running.append((delay, start(plan, job, folder, left), job, left))
            if not running:
                break
            begin = time.perf_counter()
            for delay, child, job, left in sorted(running, key=lambda item: item[0]):
                if chance.random() < 0.2:
                    _look(plan, folder)
                if chance.random() < 0.85:
                    time.sleep(max(0.0, begin + delay - time.perf_counter()))
                    os.kill(child, signal.SIGKILL)
                code = end(child)
                num_kills += code is None
                world.check_outcome(plan, folder, job, left, code)
                if code is not None:
                    over[job.number] = code
            world.check(plan, folder)
        with_command = chance.random() < 0.1
        world.check_verify(plan, folder, with_command)
        if chance.random() < 0.5 and world.expected(plan, world.committed(folder)) is not None:
            world.clean(plan, folder, with_command)
            world.check(plan, folder)
        world.finish(plan, folder, scratch / "clean", with_command)
    except BaseException as error:
        error.add_note(f"{plan}\nended: {over}, killed: {num_kills}\nfolder: {sorted(os.listdir(folder))}")
        raise
    return num_kills


def _look(plan: Plan, folder: Path) -> None:
    """Open while they write: where nothing was committed meanwhile, exactly that is found."""
    before = world.committed(folder)
    found = world.read(plan, folder)
    if world.committed(folder) == before:
        assert found == world.expected(plan, before)
