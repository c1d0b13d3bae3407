"""Writers that are stopped before every step that changes the disk, and go on in an order that a seed decides.

Each writer is a forked process that waits before each step, so a seed gives the same interleaving each time. Listings
are torn as POSIX allows: what was there all the time is listed, what came or went meanwhile may be. Now and then one
is killed with SIGKILL where it waits; now and then a reader opens, and writers go on between any two of its requests.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._storage import disk
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.opening import open_catalog
from guideloom._storage.requests import ListFolder, Request
from guideloom.errors import DataSetNotFoundError, MissingShardError
from tests.soak import world
from tests.soak.world import Job, Plan
from tests.storage.support import TOKEN, shards_of


def torn(before: Any, after: Any, chance: random.Random) -> list[str]:
    """Names as a listing may give them that began with ``before`` and ended with ``after`` in the folder."""
    there, later = set(before), set(after)
    return [name for name in sorted(there | later) if (name in there and name in later) or chance.random() < 0.5]


class Stepped:
    """A writer in a process of its own that takes one step at a time."""

    def __init__(self, plan: Plan, job: Job, folder: Path, seed: int) -> None:
        self.job = job
        self.waits_before = ""
        self.code: int | None = None
        self.is_alive = True
        here, there = socket.socketpair()
        self._socket = here
        self._pid = os.fork()
        if self._pid == 0:
            here.close()
            world.exit_with(lambda: _child(plan, job, folder, there, seed))
        there.close()
        self._wait()

    def step(self) -> None:
        """Let it take the step that it waits before, and all that it does until the next."""
        self._socket.send(b".")
        self._wait()

    def kill(self) -> None:
        """Kill it where it is."""
        os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def _wait(self) -> None:
        message = self._socket.recv(4096)
        if message:
            self.waits_before = message.decode()
        else:
            self._reap()

    def _reap(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._socket.close()
        self.is_alive = False
        self.code = os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None


def _child(plan: Plan, job: Job, folder: Path, parent: socket.socket, seed: int) -> int:
    lock = threading.Lock()
    chance = random.Random(seed)
    real_listdir = os.listdir

    def before(name: str, path: str) -> None:
        with lock:
            parent.send(f"{name} {os.path.basename(path)}".encode())
            if not parent.recv(1):
                os._exit(world.CRASHED)  # the parent gave up

    def listdir(path: Any) -> list[str]:
        first = real_listdir(path)
        before("list", str(path))
        return torn(first, real_listdir(path), chance)

    disk.before = before
    os.listdir = listdir
    secrets.token_hex = lambda size: f"{job.number:0{2 * size}x}"  # so that names, too, are the seed's
    return world.run_job(plan, job, folder)


class Case:
    """One interleaving.

    Parameters
    ----------
    seed : int
        Decides the plan, the order of steps, who is killed and when, when readers open, and how listings are torn.
    scratch : pathlib.Path
        An empty folder.
    """

    def __init__(self, seed: int, scratch: Path) -> None:
        self.chance = random.Random(seed)
        self.plan = world.random_plan(self.chance)
        self.folder = scratch / "data"
        self.scratch = scratch
        self.trace: list[str] = []
        self.num_kills = 0
        self.history: list[Any] | None = None
        self.last: int | None = None
        world.build(self.plan, self.folder)
        # Some are killed at a step of their own, chosen over the length of a run; the others live.
        self.writers: list[Stepped] = []
        self.kill_in: list[int | None] = []
        for job in self.plan.jobs:
            self.writers.append(Stepped(self.plan, job, self.folder, self.chance.randrange(1 << 30)))
            self.kill_in.append(
                self.chance.randrange(12 + 18 * len(job.shards)) if self.chance.random() < 0.6 else None
            )

    def run(self) -> None:
        """Run to the end, and check at every step what a reader finds, and at the end what is left."""
        try:
            while any(writer.is_alive for writer in self.writers):
                self.one_step()
                if self.chance.random() < 0.1:
                    self.read_while_they_write()
                elif self.chance.random() < 0.3:
                    world.check(self.plan, self.folder)
        finally:
            for writer in self.writers:
                if writer.is_alive:
                    writer.kill()
        plan, folder = self.plan, self.folder
        world.check(plan, folder)
        for writer in self.writers:
            world.check_outcome(plan, folder, writer.job, writer.job.shards, writer.code)
        with_command = self.chance.random() < 0.1
        world.check_verify(plan, folder, with_command)
        if self.chance.random() < 0.5 and world.expected(plan, world.committed(folder)) is not None:
            world.clean(plan, folder, with_command)
            world.check(plan, folder)
        world.finish(plan, folder, self.scratch / "clean", with_command)

    def one_step(self) -> None:
        """One writer takes a step, or is killed."""
        alive = [place for place, writer in enumerate(self.writers) if writer.is_alive]
        if not alive:
            return
        # Runs of one writer, as well as alternation: a race often needs one to stand still while another passes.
        goes_on = self.last in alive and self.chance.random() < 0.6
        place = self.last if goes_on and self.last is not None else self.chance.choice(alive)
        self.last = place
        writer, left = self.writers[place], self.kill_in[place]
        name = f"{writer.job.number} {writer.waits_before}"
        if left == 0:
            self.trace.append(f"KILL before {name}")
            self.num_kills += 1
            writer.kill()
        else:
            self.trace.append(name)
            self.kill_in[place] = None if left is None else left - 1
            writer.step()
        if self.history is not None:
            self.history.append(world.expected(self.plan, world.committed(self.folder)))

    def read_while_they_write(self) -> None:
        """A reader opens while the writers go on: it finds what was committed at one moment meanwhile."""
        plan, folder = self.plan, self.folder
        local, listing = LocalFolder(folder), self.chance.random() < 0.5
        self.history = [world.expected(plan, world.committed(folder))]
        self.trace.append(f"reader opens, listing={listing}")
        per_request = self.chance.choice([0.2, 0.6, 1.5, 6])

        def go_on() -> None:
            for _ in range(int(self.chance.expovariate(1 / per_request))):
                self.one_step()

        def answer(request: Request) -> Any:
            go_on()
            self.trace.append(f"reader asks {request}")
            if not isinstance(request, ListFolder):
                return local.answer(request)
            if not listing:
                return None
            first = local.listing()
            go_on()
            second = local.listing()
            names = torn(first, second, self.chance)
            return {name: second.get(name, first.get(name)) for name in names}

        dtype = None if plan.kind == "document" else np.dtype(TOKEN)
        found: Any = None
        try:
            catalog = drive(open_catalog(plan.kind, dtype, "", folder=str(folder)), answer)
            found = shards_of(folder, catalog)
        except (DataSetNotFoundError, MissingShardError) as error:
            self.trace.append(f"reader got {error}")
        history, self.history = self.history, None
        if not listing and None in history:
            return  # with holes between shards, a reader without a listing may end before the first
        assert found in history, (
            f"listing={listing}: a reader found {found}, which was committed at no moment of {history}"
        )


def run_case(seed: int, scratch: Path) -> int:
    """Run one interleaving; return how many writers were killed in it."""
    case = Case(seed, scratch)
    try:
        case.run()
    except BaseException as error:
        error.add_note(f"{case.plan}\n" + "\n".join(case.trace))
        raise
    return case.num_kills
