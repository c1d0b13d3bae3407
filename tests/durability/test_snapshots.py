"""A reader that opens while writers commit finds what was committed at one moment; no manifest outlives what it knows.

``tests/soak/schedule.py`` looks for such interleavings; those that it found, and a fault in each rule, are here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom._storage import disk
from guideloom._storage.commit import gather_manifest
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.opening import open_catalog, read_manifest
from guideloom._storage.requests import ListFolder, ReadFile, Request
from guideloom._storage.verify import verify
from tests.storage.support import KINDS, TOKEN, names, opened, shards_of, write, written

FORK = multiprocessing.get_context("fork")


def opened_while(folder: Path, listing: bool, meanwhile: Callable[[Request, Any], Any]) -> list[list[Any]]:
    """Open and read a stream, where ``meanwhile`` may do things, or change an answer, once a request is answered."""
    local = LocalFolder(folder)

    def answer(request: Request) -> Any:
        given = None if not listing and isinstance(request, ListFolder) else local.answer(request)
        return meanwhile(request, given)

    return shards_of(folder, drive(open_catalog("stream", np.dtype(TOKEN), "", folder=str(folder)), answer))


def content(*numbers: list[int]) -> list[list[Any]]:
    return [written("stream", of_shard) for of_shard in numbers]


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_listing_that_has_the_later_of_two_commits(with_manifest: bool, tmp_path: Path) -> None:
    """As POSIX allows where both were made while the folder was listed."""
    write("stream", tmp_path, {0: [1], 1: [2]})
    manifest = (tmp_path / "manifest.json").read_bytes()
    write("stream", tmp_path, {0: [3]}, "append")
    earlier = [name for name in names(tmp_path) if name.startswith("0000000-0001")]
    write("stream", tmp_path, {1: [4]}, "append")
    (tmp_path / "manifest.json").unlink()
    if with_manifest:
        (tmp_path / "manifest.json").write_bytes(manifest)
    num_listings = 0

    def meanwhile(request: Request, given: Any) -> Any:
        nonlocal num_listings
        if not isinstance(request, ListFolder):
            return given
        num_listings += 1
        return {name: size for name, size in given.items() if num_listings > 1 or name not in earlier}

    assert opened_while(tmp_path, True, meanwhile) == content([1, 3], [2, 4])


def test_a_gap_is_filled_while_the_folder_is_listed_again(tmp_path: Path) -> None:
    """A shard is missing, so the folder is listed once more: that listing, too, may have the later of two commits."""
    write("stream", tmp_path, {0: [1], 2: [2]})
    listed: list[list[str]] = []

    def meanwhile(request: Request, given: Any) -> Any:
        if not isinstance(request, ListFolder):
            return given
        torn = len(listed) == 1
        if torn:
            write("stream", tmp_path, {0: [3], 1: [4]}, "append")
            given = LocalFolder(tmp_path).listing()
        listed.append([name for name in given if not torn or not name.startswith("0000000-0001")])
        return {name: given[name] for name in listed[-1]}

    assert opened_while(tmp_path, True, meanwhile) == content([1, 3], [4], [2])
    assert len(listed) > 2


@pytest.mark.parametrize("missing", ["0000000-0001.", "elements.bin"])
def test_verify_meets_a_torn_listing(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("stream", tmp_path, {0: [1], 1: [2]})
    write("stream", tmp_path, {0: [3], 1: [4]}, "append")
    write("stream", tmp_path, {0: [5]}, "append")
    real, torn = LocalFolder.listing, [True]

    def listing(local: LocalFolder) -> dict[str, int]:
        found = real(local)
        if torn:
            torn.clear()
            return {
                name: size for name, size in found.items() if missing not in name or name.endswith("0000.commit.json")
            }
        return found

    # The first listing lacks what was there before it ended.
    monkeypatch.setattr(LocalFolder, "listing", listing)
    assert verify(tmp_path, jobs=1).findings == ()
    assert not torn


@pytest.mark.parametrize("moment", ["manifest", "last record"])
def test_a_backend_that_asks_for_one_record_after_the_other(moment: str, tmp_path: Path) -> None:
    """Old shards are asked about before new ones: a commit to each in between must not show the second alone."""
    write("stream", tmp_path, {0: [1], 1: [2]})
    if moment != "manifest":
        (tmp_path / "manifest.json").unlink()
    last = "manifest.json" if moment == "manifest" else "0000001-0001.commit.json"
    did: list[bool] = []

    def meanwhile(request: Request, given: Any) -> Any:
        if isinstance(request, ReadFile) and request.name == last and not did:
            did.append(True)
            write("stream", tmp_path, {0: [3]}, "append")
            write("stream", tmp_path, {2: [4]})
        return given

    assert opened_while(tmp_path, False, meanwhile) == content([1, 3], [2], [4])
    assert did


@pytest.mark.parametrize("kind", KINDS)
def test_a_gatherer_that_is_overtaken_and_killed(kind: Any, tmp_path: Path) -> None:
    """It listed the folder before another writer's commit, and dies once its manifest has its name, or would have."""
    write(kind, tmp_path, {0: [1], 1: [2]})

    def child() -> None:
        def before(name: str, path: str) -> None:
            if name == "rename" and path.endswith("manifest.json"):
                disk.before = None
                write(kind, tmp_path, {0: [3]}, "append")
                disk.before = lambda name, path: os.kill(os.getpid(), signal.SIGKILL)

        disk.before = before
        gather_manifest(str(tmp_path), "gatherer", None)

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for listing in (True, False):
        found = shards_of(tmp_path, opened(kind, tmp_path, listing=listing))
        assert found == [written(kind, [1, 3]), written(kind, [2])]
    assert verify(tmp_path, jobs=1).findings == ()


def test_a_gatherer_that_is_overtaken_gathers_again(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    overtaken: list[str] = []

    def before(name: str, path: str) -> None:
        if name in ("write", "sync", "rename") and "manifest" in path and name not in overtaken:
            overtaken.append(name)
            disk.before = None
            write("stream", tmp_path, {len(overtaken): [len(overtaken)]})
            disk.before = before

    disk.before = before
    try:
        gather_manifest(str(tmp_path), "gatherer", None)
    finally:
        disk.before = None
    assert overtaken == ["write", "sync", "rename"]
    assert verify(tmp_path, jobs=1).findings == ()
    assert shards_of(tmp_path, opened("stream", tmp_path, listing=False)) == content([1], [1], [2], [3])


@pytest.mark.parametrize("what", ["a record", "data files", "nothing of ours"])
def test_what_appears_while_a_manifest_gets_its_name_is_looked_at(what: str, tmp_path: Path) -> None:
    """Of a writer that withdrew manifests before this one was begun, and commits now."""
    folder, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()
    write("stream", folder, {0: [1], 1: [2]})
    for path in folder.glob("0000001-*"):
        if what == "data files" or path.name.endswith(".commit.json"):
            path.rename(aside / path.name)
    rounds: list[str] = []

    def before(name: str, path: str) -> None:
        if name == "rename" and path.endswith("manifest.json"):
            if not rounds and what == "nothing of ours":
                (folder / "notes.txt").write_text("mine")
            elif not rounds:
                for file in aside.iterdir():
                    file.rename(folder / file.name)
            rounds.append(path)

    disk.before = before
    try:
        gather_manifest(str(folder), "gatherer", None)
    finally:
        disk.before = None
    assert len(rounds) == (1 if what == "nothing of ours" else 2)
    manifest = drive(read_manifest(str(folder)), LocalFolder(folder).answer)
    assert manifest is not None
    if what == "nothing of ours":
        assert (manifest.parts.shard.tolist(), manifest.pending) == ([0], ((1, 0),))
    else:
        assert (manifest.parts.shard.tolist(), manifest.pending) == ([0, 1], ())


def test_verify_meets_a_record_that_goes_after_it_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one finding, and the records behind it are checked all the same."""
    write("stream", tmp_path, {0: [1], 1: [2], 2: [3]})
    real = LocalFolder.listing
    gone, broken = tmp_path / "0000000-0000.commit.json", tmp_path / "0000002-0000.commit.json"
    broken.write_bytes(b"{}")

    def listing(local: LocalFolder) -> dict[str, int]:
        found = real(local)
        if len(calls) == 1:  # the last of two that agree
            gone.unlink()
        calls.append(1)
        return found

    calls: list[int] = []
    monkeypatch.setattr(LocalFolder, "listing", listing)
    report = verify(tmp_path, jobs=1)
    assert (report.num_shards, report.num_parts) == (3, 1)
    assert [(finding.shard, finding.what) for finding in report.errors] == [(0, "missing"), (2, "record")]
