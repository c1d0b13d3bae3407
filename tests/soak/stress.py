"""Nine processes at once: four write, each its own shards, in turns; four open and read, one verifies, over and over.

Nothing stops or kills them: what they meet is up to the machine. Each writer appends to its first shard, then to its
second, in sessions of their own. So whoever opens finds of each shard the first so many of its appends, each whole, and
of a writer's second shard as many as of the first, or one less: anything else was committed at no moment.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._storage.repair import rebuild_manifest
from guideloom._storage.verify import verify
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import IdDocumentFormat, IdSpanFormat, IdStreamFormat, MinimalBackend, Span
from tests.soak import world

KINDS = ("stream", "documents", "spans")
NUM_WRITERS = 4
NUM_SHARDS = 2 * NUM_WRITERS
PER_APPEND = 3
BACKENDS = (SeekIO, PosixPreadIO, MmapIO, MinimalBackend)
"""One for each process that reads; the last is a user's, which cannot list."""


def storage_of(kind: str, folder: Path, backend: Any = SeekIO) -> Any:
    if kind == "stream":
        return StreamStorage(folder, IdStreamFormat(), backend())
    if kind == "documents":
        return DocumentStorage(folder, IdDocumentFormat(), backend())
    return StreamWithMetaStorage(folder, IdSpanFormat(), backend())


def commit(kind: str, folder: Path, mode: str, shards: dict[int, int]) -> None:
    """Append ``PER_APPEND`` records to each shard, as its append of the number given."""
    with storage_of(kind, folder).sync_writer(mode=mode) as writer:
        for shard, number in shards.items():
            first = 100_000 * shard + PER_APPEND * number
            if kind == "documents":
                for ident in range(first, first + PER_APPEND):
                    writer.append(shard, (ident, 9))
            elif kind == "stream":
                writer.append(shard, list(range(first, first + PER_APPEND)))
            else:
                writer.append(shard, Span(first, [(first, PER_APPEND)]))


def look(kind: str, folder: Path, backend: Any = SeekIO) -> list[int]:
    """Open, read everything, check it, and return the number of appends to each shard."""
    with storage_of(kind, folder, backend).sync_reader() as reader:
        counts = [reader.length(shard) for shard in range(reader.num_shards)]
        if kind == "documents":
            found = [document.id for document in reader.read_many(range(reader.total_length))]
        else:
            found = reader.read(0, reader.total_length).elements.tolist()
    expected = [100_000 * shard + place for shard, count in enumerate(counts) for place in range(count)]
    assert found == expected, f"{backend.__name__} read {found} of shards of {counts}"
    assert not any(count % PER_APPEND for count in counts), counts
    appends = [count // PER_APPEND for count in counts]
    for owner in range(NUM_WRITERS):
        first, second = appends[2 * owner : 2 * owner + 2]
        assert 0 <= first - second <= 1, f"{backend.__name__} found {appends} appends, which was true at no moment"
    return appends


def run_case(seed: int, scratch: Path) -> int:
    """Run all until the writers are done; return how often a reader opened and read everything."""
    chance = random.Random(seed)
    kind = chance.choice(KINDS)
    num_appends = chance.randint(6, 14)
    folder = scratch / "data"
    commit(kind, folder, "create", dict.fromkeys(range(NUM_SHARDS), 0))
    look(kind, folder)  # imports and compiles what the children then share
    writers = [_fork(_write, kind, folder, owner, num_appends, owner == 0) for owner in range(NUM_WRITERS)]
    readers = [_fork(_keep_looking, kind, folder, backend, scratch) for backend in BACKENDS]
    readers.append(_fork(_keep_verifying, folder))
    try:
        ends = [_end(child) for child in writers]
    finally:
        for child in readers:
            os.kill(child, signal.SIGTERM)
        ends += [_end(child) for child in readers]
    assert ends == [0] * len(ends), f"exit codes of writers and readers: {ends}"
    for backend in BACKENDS:
        assert look(kind, folder, backend) == [num_appends] * NUM_SHARDS
    assert verify(folder, jobs=1).findings == ()
    return sum(int((scratch / f"{backend.__name__}.looks").read_text()) for backend in BACKENDS)


def _write(kind: str, folder: Path, owner: int, num_appends: int, gathers: bool) -> None:
    for number in range(1, num_appends):
        for shard in (2 * owner, 2 * owner + 1):
            commit(kind, folder, "append", {shard: number})
        if gathers:
            rebuild_manifest(folder)


def _keep_looking(kind: str, folder: Path, backend: Any, scratch: Path) -> None:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    seen, num_looks = [1] * NUM_SHARDS, 0
    while not stopped:
        appends = look(kind, folder, backend)
        assert all(now >= before for now, before in zip(appends, seen, strict=True)), (seen, appends)
        seen = appends
        num_looks += 1
    (scratch / f"{backend.__name__}.looks").write_text(str(num_looks))


def _keep_verifying(folder: Path) -> None:
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while not stopped:
        errors = [finding for finding in verify(folder, jobs=1).findings if finding.severity == "error"]
        assert not errors, errors


def _fork(function: Any, *arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        world.exit_with(lambda: function(*arguments) or 0)
    return child


def _end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
