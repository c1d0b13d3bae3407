"""Modes of writing: nothing committed is lost, whatever happens; killed writers; writers at the same time."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from guideloom._base.errors import ConcurrentCommitError, InUseError, ShardExistsError
from guideloom._storage import disk
from guideloom._storage.leftovers import find_leftovers, remove_leftovers
from guideloom._storage.local import LocalFolder
from guideloom._storage.manifest import decode_manifest
from tests.storage.support import FORK, KINDS, in_child, names, opened, record_of, shards_of, write, writer, written


def content(kind: Any, folder: Path) -> list[list[Any]]:
    """Content of the shards, which must be the same with and without a listing."""
    catalog = opened(kind, folder)
    other = opened(kind, folder, listing=False)
    assert catalog.files == other.files and catalog.identity == other.identity
    return shards_of(folder, catalog)


def manifest_names(folder: Path) -> list[str]:
    return decode_manifest((folder / "manifest.json").read_bytes()).parts.record_names


def records(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.endswith(".commit.json")]


@pytest.mark.parametrize("kind", KINDS)
def test_create_refuses_a_committed_shard(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: []})
    with writer(kind, tmp_path) as second:
        for shard in (0, 1):
            with pytest.raises(ShardExistsError, match=r'mode="append".*mode="overwrite"') as caught:
                second.append(shard, record_of(kind, 2))
            assert caught.value.shard == shard
            with pytest.raises(ShardExistsError):
                second.create(shard)
        second.append(2, record_of(kind, 3))
    assert content(kind, tmp_path) == [written(kind, [1]), [], written(kind, [3])]


@pytest.mark.parametrize("kind", KINDS)
def test_append_extends(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1, 2], 1: [3]})
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if name != "manifest.json"}
    with writer(kind, tmp_path, "append") as second:
        second.append(0, record_of(kind, 4))
        assert content(kind, tmp_path) == [written(kind, [1, 2]), written(kind, [3])]
        second.append(2, record_of(kind, 5))
    write(kind, tmp_path, {0: [6]}, "append")
    assert content(kind, tmp_path) == [written(kind, [1, 2, 4, 6]), written(kind, [3]), written(kind, [5])]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert manifest_names(tmp_path) == records(tmp_path)


def test_appending_nothing_changes_nothing(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    write("stream", tmp_path, {0: []}, "append")
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


@pytest.mark.parametrize("kind", KINDS)
def test_overwrite_replaces_at_the_commit(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1, 2], 1: [3]})
    write(kind, tmp_path, {0: [4]}, "append")
    with writer(kind, tmp_path, "overwrite") as second:
        second.append(0, record_of(kind, 5))
        second.append(2, record_of(kind, 6))
        assert content(kind, tmp_path) == [written(kind, [1, 2, 4]), written(kind, [3])]
    assert content(kind, tmp_path) == [written(kind, [5]), written(kind, [3]), written(kind, [6])]
    write(kind, tmp_path, {1: []}, "overwrite")
    write(kind, tmp_path, {0: [7]}, "append")
    expected = [written(kind, [5, 7]), [], written(kind, [6])]
    assert content(kind, tmp_path) == expected
    superseded = find_leftovers(tmp_path)
    assert {leftover.kind for leftover in superseded} == {"superseded"}
    freed = remove_leftovers(tmp_path, [leftover.name for leftover in superseded])
    assert freed == sum(leftover.size for leftover in superseded) > 0
    assert content(kind, tmp_path) == expected
    (tmp_path / "manifest.json").unlink()
    assert content(kind, tmp_path) == expected
    assert find_leftovers(tmp_path) == []


def test_a_reader_that_opened_before_an_overwrite_keeps_its_files(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    catalog = opened("stream", tmp_path)
    write("stream", tmp_path, {0: [2]}, "overwrite")
    assert shards_of(tmp_path, catalog) == [written("stream", [1])]


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    write("document", tmp_path, {0: [1]})
    (tmp_path / ".tmp-dead-0000000.payload").write_bytes(b"123")
    (tmp_path / "0000000-0001.0123456789abcdef.payload.bin").write_bytes(b"12")
    (tmp_path / "README").write_bytes(b"1")
    found = find_leftovers(tmp_path)
    assert [(leftover.size, leftover.kind) for leftover in found] == [(3, "temporary"), (2, "uncommitted")]
    before = names(tmp_path)
    for wrong in (*records(tmp_path), "README", "manifest.json", "../x", opened("document", tmp_path).files[0]):
        with pytest.raises(ValueError, match="not a leftover"):
            remove_leftovers(tmp_path, [found[0].name, wrong])
    assert names(tmp_path) == before
    assert remove_leftovers(tmp_path, [leftover.name for leftover in found]) == 5
    assert content("document", tmp_path) == [written("document", [1])]


# --- killed at every step ---


def session(kind: Any, folder: Path, mode: Any) -> None:
    with writer(kind, folder, mode) as second:
        second.append(0, record_of(kind, 10))
        second.append(1, record_of(kind, 11))
        second._parts[0].flush()


def steps_of(kind: Any, folder: Path, mode: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    disk.before = lambda name, path: found.append((name, os.path.basename(path)))
    try:
        session(kind, folder, mode)
    finally:
        disk.before = None
    return found


def test_everything_is_synced_before_it_is_named(tmp_path: Path) -> None:
    steps = steps_of("stream_with_meta", tmp_path / "new", "create")
    kinds = [name for name, _ in steps]
    assert steps[0] == ("mkdir", "new")
    # Every file is synced after its last write; all data files are named, and the folder synced, before any record is.
    written_files = {path for name, path in steps if name == "write"}
    for path in written_files:
        own = [name for name, other in steps if other == path]
        assert own.index("sync") > max(place for place, name in enumerate(own) if name == "write")
    first_link = kinds.index("link")
    last_data = max(place for place, (name, path) in enumerate(steps) if name == "rename" and path.endswith(".bin"))
    assert last_data < steps.index(("unlink", "manifest.json")) < kinds.index("sync_folder", last_data) < first_link
    assert "sync_folder" in kinds[first_link : kinds.index("rename", first_link)]
    assert steps[-2:] == [("rename", "manifest.json"), ("sync_folder", "new")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_system_is_told_to_sync_each_file_whole_and_the_folder(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, int] = {}

    def sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", sync)
    folder = tmp_path / "made" / "new"
    session(kind, folder, "create")
    files = [path.stat() for path in folder.iterdir()]
    assert len(files) == 2 * (1 + {"stream": 1, "document": 2, "stream_with_meta": 3}[kind]) + 1
    for status in files:
        assert synced[status.st_ino] == status.st_size
    assert all(made.stat().st_ino in synced for made in (tmp_path, folder.parent, folder))


@pytest.mark.parametrize(
    ("kind", "mode"), [("stream", "append"), ("document", "overwrite"), ("stream_with_meta", "create")]
)
def test_killed_before_each_step(kind: Any, mode: Any, tmp_path: Path) -> None:
    base, clean = tmp_path / "base", tmp_path / "clean"
    # In mode "create" the killed session writes shards 0 and 1 behind which shard 2 is there already.
    first = {2: [9]} if mode == "create" else {0: [1], 1: [2]}
    write(kind, base, first)
    shutil.copytree(base, clean)
    steps = steps_of(kind, clean, mode)
    assert len(steps) > 15
    old = [written(kind, [1]), written(kind, [2])]
    new = shards_of(clean, opened(kind, clean))
    saw_old = saw_new = False
    for step in range(len(steps)):
        folder = tmp_path / f"at{step}"
        shutil.copytree(base, folder)

        def killed(folder: Path = folder, step: int = step) -> None:
            left = [step]

            def before(name: str, path: str) -> None:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1

            disk.before = before
            session(kind, folder, mode)

        assert in_child(killed) == -signal.SIGKILL
        if mode == "create":
            committed = {int(name[:7]) for name in records(folder)} - {2}
            if committed == {0, 1}:
                assert content(kind, folder) == new
                saw_new = True
        else:
            found = content(kind, folder)
            committed = set()
            for shard in (0, 1):
                assert found[shard] in (old[shard], new[shard])
                committed.add(shard) if found[shard] == new[shard] else None
        saw_old |= not committed
        saw_new |= committed == {0, 1}

        # The work goes on from there: what is missing is written again, and the folder reads as after a clean run.
        with writer(kind, folder, mode) as again:
            for shard in {0, 1} - committed:
                again.append(shard, record_of(kind, 10 + shard))
        if committed == {0, 1}:
            write(kind, folder, {len(new): []}, mode)
            assert content(kind, folder) == [*new, []]
        else:
            assert content(kind, folder) == new
            assert opened(kind, folder).identity == opened(kind, clean).identity
        assert manifest_names(folder) == records(folder)
        remove_leftovers(folder, [left.name for left in find_leftovers(folder)])
        assert content(kind, folder)[:2] == new[:2]
    assert saw_old and saw_new


def test_a_stale_manifest_names_what_was_pending(tmp_path: Path) -> None:
    """Another writer gathers between a writer's renames and its record, and the writer is killed after the record."""
    write("stream", tmp_path, {0: [1]})

    def killed() -> None:
        def before(name: str, path: str) -> None:
            if name == "link":
                disk.before = None
                write("stream", tmp_path, {1: [2]})
                disk.before = lambda name, path: os.kill(os.getpid(), signal.SIGKILL) if name == "sync_folder" else None

        disk.before = before
        write("stream", tmp_path, {2: [3]})

    assert in_child(killed) == -signal.SIGKILL
    manifest = decode_manifest((tmp_path / "manifest.json").read_bytes())
    assert manifest.pending == ((2, 0),)
    assert "0000002-0000.commit.json" not in manifest.parts.record_names
    assert content("stream", tmp_path) == [written("stream", [number]) for number in (1, 2, 3)]


# --- at the same time ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", [True, False])
def test_two_writers_of_one_part(kind: Any, same: bool, tmp_path: Path) -> None:
    one, two = writer(kind, tmp_path), writer(kind, tmp_path)
    one.open()
    two.open()
    one.append(0, record_of(kind, 1))
    two.append(0, record_of(kind, 1 if same else 2))
    two.append(1, record_of(kind, 3))
    one.close()
    with pytest.raises(ConcurrentCommitError) as caught:
        two.close()
    assert caught.value.shard == 0
    assert content(kind, tmp_path) == [written(kind, [1]), written(kind, [3])]
    assert find_leftovers(tmp_path) == []
    assert manifest_names(tmp_path) == records(tmp_path)


def work(folder: Path, shards: list[int], mode: Any, rounds: int, barrier: Any, outcome: Any) -> None:
    barrier.wait()
    for number in range(rounds):
        try:
            with writer("document", folder, mode) as documents:
                for shard in shards:
                    documents.append(shard, b"%d/%d" % (os.getpid(), number))
            outcome.put((os.getpid(), number))
        except ConcurrentCommitError:
            continue


def run_all(folder: Path, shards: list[list[int]], mode: Any, rounds: int) -> set[tuple[int, int]]:
    barrier, outcome = FORK.Barrier(len(shards)), FORK.SimpleQueue()
    children = [FORK.Process(target=work, args=(folder, mine, mode, rounds, barrier, outcome)) for mine in shards]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    done = set()
    while not outcome.empty():
        done.add(outcome.get())
    return done


def test_eight_writers_on_different_shards_lose_nothing(tmp_path: Path) -> None:
    done = run_all(tmp_path, [[shard, shard + 8] for shard in range(8)], "append", 4)
    assert len(done) == 32
    found = content("document", tmp_path)
    for shard, documents in enumerate(found):
        assert [document.partition(b"/")[2] for document in documents] == [b"0", b"1", b"2", b"3"], shard
        assert len({document.partition(b"/")[0] for document in documents}) == 1
    assert manifest_names(tmp_path) == records(tmp_path) and len(records(tmp_path)) == 64
    assert find_leftovers(tmp_path) == []


def test_eight_writers_of_three_documents_and_the_idle_ones_come_last(tmp_path: Path) -> None:
    def append_or_not(shard: int, are_done: Any) -> None:
        with writer("document", tmp_path) as documents:
            if shard < 3:
                documents.append(shard, b"%d" % shard)
            else:
                are_done.wait(60)

    are_done = FORK.Event()
    children = [FORK.Process(target=append_or_not, args=(shard, are_done)) for shard in range(8)]
    for child in children:
        child.start()
    for child in children[:3]:
        child.join()
    are_done.set()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert content("document", tmp_path) == [[b"0"], [b"1"], [b"2"]]
    assert manifest_names(tmp_path) == records(tmp_path) and len(records(tmp_path)) == 3
    assert find_leftovers(tmp_path) == []


def test_four_appenders_to_one_shard(tmp_path: Path) -> None:
    done = run_all(tmp_path, [[0]] * 4, "append", 6)
    (documents,) = content("document", tmp_path)
    assert len(documents) == len(done) >= 6
    assert set(documents) == {b"%d/%d" % who for who in done}
    assert find_leftovers(tmp_path) == []


def test_a_reader_polls_while_a_writer_writes(tmp_path: Path) -> None:
    write("document", tmp_path, {0: [0]})

    def keep_writing() -> None:
        for number in range(1, 20):
            write("document", tmp_path, {0: [number]}, "append")

    child = FORK.Process(target=keep_writing)
    child.start()
    seen = 0
    while child.is_alive():
        (documents,) = shards_of(tmp_path, opened("document", tmp_path))
        assert documents == written("document", range(len(documents)))
        assert len(documents) >= seen
        seen = len(documents)
    child.join()
    assert child.exitcode == 0
    assert content("document", tmp_path) == [written("document", range(20))]


def test_a_writer_is_not_inherited(tmp_path: Path) -> None:
    opened_writer = writer("stream", tmp_path)
    opened_writer.open()
    opened_writer.append(0, [1])

    def child() -> None:
        with pytest.raises(InUseError, match="process"):
            opened_writer.close()
        with pytest.raises(InUseError, match="process"):
            opened_writer.append(1, [1])
        opened_writer.abandon()

    assert in_child(child) == 0
    opened_writer.close()
    assert content("stream", tmp_path) == [[1]]


def test_a_fork_amid_the_append_of_another_thread_does_not_lock_the_child(tmp_path: Path) -> None:
    entered, forked = threading.Event(), threading.Event()
    opened_writer = writer("stream", tmp_path)
    opened_writer.open()

    def append() -> None:
        with opened_writer._lock:
            entered.set()
            assert forked.wait(60)
            opened_writer.append(0, [1])

    def child() -> None:
        signal.alarm(20)  # a child that waits for a thread which it does not have would wait for ever
        with pytest.raises(InUseError, match="process"):
            opened_writer.append(1, [1])
        opened_writer.abandon()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        assert entered.wait(60)
        exit_code = in_child(child)
    finally:
        forked.set()
        thread.join()
    assert exit_code == 0
    opened_writer.close()
    assert content("stream", tmp_path) == [[1]]


def test_a_damaged_manifest_does_not_stop_a_writer(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    (tmp_path / "manifest.json").write_bytes(b"{")
    write("stream", tmp_path, {1: [2]})
    assert content("stream", tmp_path) == [written("stream", [1]), written("stream", [2])]
    assert LocalFolder(tmp_path).file_size("manifest.json") is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_system_without_hard_links(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted", source)

    monkeypatch.setattr(os, "link", no_link)
    one, two = writer(kind, tmp_path), writer(kind, tmp_path)
    one.open()
    two.open()
    one.append(0, record_of(kind, 1))
    two.append(0, record_of(kind, 2))
    two.close()
    with pytest.raises(ConcurrentCommitError):
        one.close()
    assert content(kind, tmp_path) == [written(kind, [2])]
    assert find_leftovers(tmp_path) == []
