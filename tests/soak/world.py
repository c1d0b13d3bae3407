"""A small data set, writers at work in it, and an oracle of what must be readable at any moment.

The oracle looks at the commit records alone: each says in its metadata which writer made it, and so what it must hold.
Whatever else lies in the folder (manifests, work in progress, data without a record) must make no difference.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from guideloom import cli
from guideloom._storage.catalog import Kind
from guideloom._storage.leftovers import find_leftovers, remove_leftovers
from guideloom._storage.names import parse_record_name
from guideloom._storage.verify import verify
from guideloom.errors import CommitError, DataSetNotFoundError, MissingShardError
from tests.storage.support import KINDS, opened, record_of, shards_of, writer, written

BUFFER_BYTES = 24  # so small that a writer writes often, and can be stopped in the middle of a file

DONE, REFUSED, CRASHED = 0, 3, 9
"""Exit codes of a writer's process: all committed; a clear error for at least one shard; any other error."""


@dataclass(frozen=True)
class Job:
    """One session of one writer.

    Parameters
    ----------
    number : int
        Also in the metadata of its records, and what its content is made from.
    mode : str
    shards : tuple of int
    """

    number: int
    mode: str
    shards: tuple[int, ...]

    def content(self, shard: int) -> list[int]:
        """Numbers of the records that it appends to a shard."""
        return [1000 * self.number + 10 * shard + place for place in range(1 + (self.number + shard) % 4)]


@dataclass(frozen=True)
class Plan:
    """The jobs that make the first state, one after the other, and those that then work at the same time."""

    kind: Kind
    base: tuple[Job, ...]
    jobs: tuple[Job, ...]

    def job(self, number: int) -> Job:
        return next(job for job in (*self.base, *self.jobs) if job.number == number)


def random_plan(chance: random.Random) -> Plan:
    """One writer, several on different shards, several on the same; new data sets and old ones; all modes and kinds."""
    kind = chance.choice(KINDS)
    num_shards = chance.choice([0, 1, 1, 2, 2, 3])
    num_jobs = chance.choice([1, 2, 3, 4])
    base = [Job(0, "create", tuple(range(num_shards)))] if num_shards else []
    if base and chance.random() < 0.4:
        base.append(Job(1, chance.choice(["append", "overwrite"]), (0,)))
    first, jobs = 10, []
    shared = chance.random() < 0.4
    for place in range(num_jobs):
        mode = chance.choice(["append", "append", "overwrite", "create"])
        fresh = num_shards + place
        if shared and (mode == "create" or not num_shards):
            shards = (num_shards,)
        elif mode == "create":
            shards = (fresh,)
        elif shared:
            shards = tuple(sorted(chance.sample(range(num_shards), chance.randint(1, num_shards))))
        else:
            # Disjoint: each writer has every num_jobs-th of the old shards, and one of its own.
            shards = (*range(place, num_shards, num_jobs), fresh)
        jobs.append(Job(first + place, mode, shards))
    return Plan(kind, tuple(base), tuple(jobs))


def run_job(plan: Plan, job: Job, folder: Path, shards: Iterable[int] | None = None) -> int:
    """Carry out a job, or those of its shards that are given; return the exit code of its process."""
    refused = False
    session = writer(plan.kind, folder, job.mode, {"writer": job.number})
    session.open()
    session._buffer_limit = BUFFER_BYTES
    for shard in job.shards if shards is None else shards:
        try:
            for number in job.content(shard):
                session.append(shard, record_of(plan.kind, number))
        except CommitError:
            refused = True
    try:
        session.close()
    except CommitError:
        refused = True
    return REFUSED if refused else DONE


def build(plan: Plan, folder: Path) -> None:
    """Write the first state."""
    folder.mkdir()
    for job in plan.base:
        assert run_job(plan, job, folder) == DONE


# --- the oracle ---

Committed = dict[tuple[int, int], tuple[bool, int]]
"""(shard, part) -> (replaces, number of the job)."""


def committed(folder: Path, names: Iterable[str] | None = None) -> Committed:
    """What the records in a folder say."""
    found: Committed = {}
    for name in os.listdir(folder) if names is None else names:
        numbers = parse_record_name(name)
        if numbers is not None:
            value = json.loads((folder / name).read_bytes())
            found[numbers] = (value["replaces"], value["metadata"]["writer"])
    return found


def expected(plan: Plan, records: Committed) -> list[list[Any]] | None:
    """Content of each shard; None where there is nothing yet, or a shard is missing before another."""
    numbers: dict[int, list[int]] = {}
    for (shard, _), (replaces, job) in sorted(records.items()):
        if replaces:
            numbers[shard] = []
        numbers.setdefault(shard, []).extend(plan.job(job).content(shard))
    if not numbers or max(numbers) + 1 != len(numbers):
        return None
    return [written(plan.kind, numbers[shard]) for shard in range(len(numbers))]


def read(plan: Plan, folder: Path, listing: bool = True) -> list[list[Any]] | None:
    """Content of each shard as a reader finds it; None as for :func:`expected`."""
    try:
        return shards_of(folder, opened(plan.kind, folder, listing=listing))
    except (DataSetNotFoundError, MissingShardError):
        return None


def check(plan: Plan, folder: Path) -> None:
    """A reader that opens now finds exactly what is committed, with and without a listing."""
    records = committed(folder)
    wanted = expected(plan, records)
    found = read(plan, folder)
    assert found == wanted, f"a reader with a listing finds {found}, committed is {wanted}"
    if wanted is not None:
        found = read(plan, folder, listing=False)
        assert found == wanted, f"a reader without a listing finds {found}, committed is {wanted}"


def check_verify(plan: Plan, folder: Path, with_command: bool) -> None:
    """``guideloom verify`` agrees: leftovers and a manifest that is to come are notes, anything else would be wrong."""
    wanted = expected(plan, committed(folder))
    if wanted is None:
        return
    errors = [finding for finding in verify(folder, jobs=1).findings if finding.severity == "error"]
    assert not errors, errors
    if with_command:
        assert command("verify", str(folder), "--jobs", "1") == 0


def command(*arguments: str) -> int:
    """Run a command of ``guideloom`` in this process; its exit status."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            status = cli.main(list(arguments))
        except SystemExit as stop:
            status = stop.code
    assert isinstance(status, int | None), status
    return status or 0


def clean(plan: Plan, folder: Path, with_command: bool) -> None:
    """Leftovers are found and removed, and nothing that was readable changes."""
    before = read(plan, folder)
    kept = {name for name in os.listdir(folder) if parse_record_name(name) is not None}
    if with_command:
        assert command("clean", str(folder), "--yes") == 0
    else:
        remove_leftovers(folder, [leftover.name for leftover in find_leftovers(folder)])
    assert find_leftovers(folder) == []
    assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
    assert read(plan, folder) == before
    assert {name for name in os.listdir(folder) if parse_record_name(name) is not None} == kept


def left_of(plan: Plan, job: Job, folder: Path) -> list[int]:
    """Shards of a job that it has not committed, and that nobody else has where it would be refused."""
    there = committed(folder)
    mine = {shard for (shard, _), (_, number) in there.items() if number == job.number}
    taken = {shard for shard, _ in there} if job.mode == "create" else set()
    return [shard for shard in job.shards if shard not in mine and shard not in taken]


def check_outcome(plan: Plan, folder: Path, job: Job, shards: Iterable[int], code: int | None) -> None:
    """What a writer said was committed is there, once; what it said was refused is not.

    Parameters
    ----------
    shards : iterable of int
        Those that it was to write.
    code : int or None
        None for a writer that was killed.
    """
    there = committed(folder)
    mine = sorted(shard for (shard, _), (_, number) in there.items() if number == job.number)
    wanted = set(shards)
    assert len(mine) == len(set(mine)), f"{job} is there twice: {there}"
    assert code in (None, DONE, REFUSED), f"{job} ended with exit code {code}"
    if code == DONE:
        assert wanted.issubset(mine), f"{job} said that it committed all, but only {mine} are there"
    elif code == REFUSED:
        assert not wanted.issubset(mine), f"{job} said that it was refused, but all of it is there"


def exit_with(function: Callable[[], int]) -> NoReturn:
    """End this forked process with the exit code that a function gives, without its parent's handlers."""
    try:
        code = function()
    except BaseException:  # noqa: BLE001 - it is printed, and the parent sees the exit code
        traceback.print_exc()
        code = CRASHED
    os._exit(code)


def finish(plan: Plan, folder: Path, clean_folder: Path, with_command: bool) -> None:
    """Go on from here: what was not committed is written again, and the folder's bytes are those of a quiet run."""
    went_on = False
    for job in plan.jobs:
        left = left_of(plan, job, folder)
        if left:
            assert run_job(plan, job, folder, left) == DONE, "the next writer needs a repair"
            check(plan, folder)
            went_on = True
    if not went_on:
        # Everything was committed, but its last writer may have been killed before it gathered.
        assert command("manifest", str(folder)) == 0
    clean(plan, folder, with_command)
    assert [finding.what for finding in verify(folder, jobs=1).findings] == []
    clean_folder.mkdir()
    there = committed(folder)
    for (shard, _), (_, number) in sorted(there.items(), key=lambda item: (item[0][1], item[0][0])):
        assert run_job(plan, plan.job(number), clean_folder, [shard]) == DONE
    clean(plan, clean_folder, False)
    assert content_of(folder) == content_of(clean_folder)


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
