"""Repair says what it will do, does just that, loses nothing, and what is left is whole."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guideloom import cli
from guideloom._storage import disk
from guideloom._storage.repair import apply, plan_repair, rebuild_manifest
from guideloom._storage.verify import verify
from guideloom.errors import (
    ArgumentError,
    DamagedRecordError,
    DataSetNotFoundError,
    GuideLoomError,
    ReadOnlyLayoutError,
)
from tests.storage.support import KINDS, names, opened, shards_of, with_failing_step, write, written

PER_KIND = pytest.mark.parametrize("kind", KINDS)


def flip(folder: Path, pattern: str) -> None:
    path = min(path for path in folder.glob(pattern) if path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def found(kind: Any, folder: Path) -> list[list[Any]]:
    return shards_of(folder, opened(kind, folder))


@PER_KIND
def test_nothing_to_repair(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: [2]})
    before = names(tmp_path)
    assert plan_repair(tmp_path) == []
    assert apply([]) is None
    assert names(tmp_path) == before


@PER_KIND
def test_the_newest_part_alone_or_with_all_behind_a_broken_one(kind: Any, tmp_path: Path) -> None:
    for broken, left in (("0000000-0002.*.bin", [1, 2]), ("0000000-0001.*.bin", [1])):
        folder = tmp_path / broken[:12]
        write(kind, folder, {0: [1], 1: [7]})
        write(kind, folder, {0: [2]}, "append")
        write(kind, folder, {0: [3]}, "append")
        flip(folder, broken)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        actions = plan_repair(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # a plan changes nothing
        drops = [(action.shard, action.part) for action in actions if action.kind == "drop_part"]
        assert drops == [(0, part) for part in range(2, len(left) - 1, -1)]
        assert actions[-1].kind == "rebuild_manifest"
        moved = apply(actions)
        assert found(kind, folder) == [written(kind, left), written(kind, [7])]
        assert verify(folder).findings == ()
        # Nothing is lost: what is gone from the folder lies in the other.
        assert moved is not None
        there = {path.name: path.read_bytes() for path in moved.iterdir()}
        assert all(before[name] == data for name, data in there.items())
        assert set(before) == {*there, *names(folder)} - {moved.name}
        assert plan_repair(folder) == []
        write(kind, folder, {0: [9]}, "append")
        assert found(kind, folder)[0] == written(kind, [*left, 9])


@PER_KIND
def test_what_was_replaced_counts_again_when_the_replacement_is_broken(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: [7]})
    write(kind, tmp_path, {0: [2]}, "append")
    write(kind, tmp_path, {0: [3]}, "overwrite")
    flip(tmp_path, "0000000-0002.*.bin")
    actions = plan_repair(tmp_path)
    assert "had been replaced, counts again" in actions[0].text
    apply(actions)
    assert found(kind, tmp_path)[0] == written(kind, [1, 2])


def test_what_counts_again_is_said_once(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    write("stream", tmp_path, {0: [2]}, "overwrite")
    write("stream", tmp_path, {0: [3]}, "append")
    flip(tmp_path, "0000000-0001.*.bin")
    drops = [action for action in plan_repair(tmp_path) if action.kind == "drop_part"]
    assert [(action.part, "part 0 of the shard, which had been replaced" in action.text) for action in drops] == [
        (2, False),
        (1, True),
    ]


def test_what_was_replaced_and_then_removed_does_not_come_back(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1], 1: [7]})
    write("stream", tmp_path, {0: [3]}, "overwrite")
    for path in tmp_path.glob("0000000-0000.*.bin"):
        path.unlink()
    assert verify(tmp_path).is_sound
    flip(tmp_path, "0000000-0001.*.bin")
    (action,) = plan_repair(tmp_path)
    assert action.kind == "refused" and "--create-empty" in action.text


@PER_KIND
def test_a_shard_in_the_middle_is_emptied_only_when_asked(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: [2], 2: [3], 3: [4]})
    flip(tmp_path, "0000001-0000.*.bin")
    for path in tmp_path.glob("0000002-0000*"):
        path.unlink()
    before = names(tmp_path)
    (action,) = plan_repair(tmp_path)
    assert action.kind == "refused" and "1, 2" in action.text
    with pytest.raises(ArgumentError, match="cannot be repaired"):
        apply([action])
    assert names(tmp_path) == before
    apply(plan_repair(tmp_path, create_empty=True))
    assert found(kind, tmp_path) == [written(kind, [1]), [], [], written(kind, [4])]
    assert verify(tmp_path).findings == ()


@PER_KIND
def test_a_broken_last_shard_is_dropped(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: [2]})
    (tmp_path / "0000001-0000.commit.json").write_bytes(b"{}")
    apply(plan_repair(tmp_path))
    assert found(kind, tmp_path) == [written(kind, [1])]
    assert verify(tmp_path).findings == ()


def test_nothing_left(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    flip(tmp_path, "*.bin")
    actions = plan_repair(tmp_path)
    assert actions[-1].text == "manifest.json: no commit record is left for it"
    moved = apply(actions)
    assert names(tmp_path) == [moved.name if moved else ""]
    with pytest.raises(DataSetNotFoundError):
        opened("stream", tmp_path)


@PER_KIND
def test_leftovers_are_moved_and_what_was_replaced_stays(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1]})
    write(kind, tmp_path, {0: [2]}, "overwrite")
    (tmp_path / ".tmp-0123-0000000.elements").write_bytes(b"1234")
    (tmp_path / "0000007-0000.0123456789abcdef.elements.bin").write_bytes(b"1234")
    actions = plan_repair(tmp_path)
    assert [action.names for action in actions] == [
        (".tmp-0123-0000000.elements",),
        ("0000007-0000.0123456789abcdef.elements.bin",),
    ]
    apply(actions)
    assert {finding.what for finding in verify(tmp_path).findings} == {"leftover"}
    assert found(kind, tmp_path) == [written(kind, [2])]


@pytest.mark.parametrize("spoil", ["{}", "", None])
def test_a_damaged_manifest_is_gathered_anew(spoil: str | None, tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1], 1: [2]})
    good = (tmp_path / "manifest.json").read_bytes()
    if spoil is None:
        (tmp_path / "manifest.json").unlink()
        assert plan_repair(tmp_path) == []  # it need not be there
        assert rebuild_manifest(tmp_path) == (2, [])
    else:
        (tmp_path / "manifest.json").write_text(spoil)
        apply(plan_repair(tmp_path))
    assert (tmp_path / "manifest.json").read_bytes() == good


def test_a_new_manifest_tells_what_only_the_old_one_knew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Afterwards nothing speaks of the lost record, so this is the moment to say it; as told, it can be taken back."""
    write("stream", tmp_path, {0: [1], 1: [2]})
    write("stream", tmp_path, {0: [3]}, "append")
    before = found("stream", tmp_path)
    name = "0000000-0001.commit.json"
    lost = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    assert cli.main(["manifest", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"names 2 parts, and no longer 1 part whose commit record is gone ({name})" in said
    assert verify(tmp_path).is_sound
    (tmp_path / name).write_bytes(lost)
    assert cli.main(["manifest", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("names 3 parts\n")
    assert found("stream", tmp_path) == before


def test_what_may_be_good_is_not_touched(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1], 1: [2]})
    record = tmp_path / "0000001-0000.commit.json"
    data = record.read_bytes()
    record.write_bytes(data.replace(b'"guideloom":2', b'"guideloom":3'))
    (action,) = plan_repair(tmp_path)
    assert action.kind == "refused" and "newer version" in action.text
    with pytest.raises(GuideLoomError):
        rebuild_manifest(tmp_path)
    record.unlink()
    write("document", tmp_path / "other", {1: [2]})
    for path in (tmp_path / "other").glob("0000001*"):
        path.rename(tmp_path / path.name)
    (action,) = plan_repair(tmp_path)
    assert action.kind == "refused"


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataSetNotFoundError):
        plan_repair(tmp_path / "none")
    with pytest.raises(DataSetNotFoundError):
        plan_repair(tmp_path)
    with pytest.raises(DataSetNotFoundError):
        rebuild_manifest(tmp_path)
    (tmp_path / "0000000.in_band.bin").write_bytes(b"1234")
    with pytest.raises(ReadOnlyLayoutError):
        plan_repair(tmp_path)
    write("stream", tmp_path / "a", {0: [1]})
    (tmp_path / "a" / "0000000-0000.commit.json").write_bytes(b"")
    manifest = (tmp_path / "a" / "manifest.json").read_bytes()
    with pytest.raises(DamagedRecordError):
        rebuild_manifest(tmp_path / "a")
    assert (tmp_path / "a" / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("stop_at", range(12))
def test_stopped_at_any_step_it_can_be_repaired_again(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("document", tmp_path, {0: [1], 1: [2], 2: [3]})
    write("document", tmp_path, {1: [5]}, "append")
    write("document", tmp_path, {1: [6]}, "append")
    flip(tmp_path, "0000001-0001.*.bin")
    actions = plan_repair(tmp_path)
    steps = 0

    def stop(name: str, path: str) -> None:
        nonlocal steps
        if steps == stop_at:
            raise InterruptedError(path)
        steps += 1

    with monkeypatch.context() as patch:
        patch.setattr(disk, "before", stop)
        with pytest.raises(InterruptedError):
            apply(actions)
    apply(plan_repair(tmp_path))
    assert found("document", tmp_path) == [written("document", [1]), written("document", [2]), written("document", [3])]
    assert verify(tmp_path).is_sound


@PER_KIND
def test_each_step_fails(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk is told as it is, and whatever it left undone, a further repair does."""
    broken = tmp_path / "broken"
    write(kind, broken, {0: [1], 1: [2], 2: [3], 3: [4]})
    write(kind, broken, {3: [5]}, "append")
    flip(broken, "0000001-0000.*.bin")
    flip(broken, "0000003-0001.*.bin")
    failed = set()
    for fail_at in range(1000):
        folder = tmp_path / f"at-{fail_at}"
        shutil.copytree(broken, folder)
        actions = plan_repair(folder, create_empty=True)
        failing, error = with_failing_step(monkeypatch, fail_at, errno.EIO, partial(apply, actions))
        if failing is None:
            break
        if error is None:
            # Temporary files that stay are leftovers.
            assert failing == "unlink"
        else:
            assert error.errno == errno.EIO
            failed.add(failing)
        apply(plan_repair(folder, create_empty=True))
        assert found(kind, folder) == [written(kind, [1]), [], written(kind, [3]), written(kind, [4])]
        assert verify(folder).is_sound
        shutil.rmtree(folder)
    assert failed >= {"mkdir", "unlink", "rename", "create", "sync", "link", "sync_folder"}


def test_the_manifest_is_gone_for_good_before_any_record_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a reader must not find the manifest without a record that it names."""
    write("stream", tmp_path, {0: [1]})
    write("stream", tmp_path, {0: [2]}, "append")
    flip(tmp_path, "0000000-0001.*.bin")
    actions = plan_repair(tmp_path)
    steps: list[tuple[str, str]] = []
    monkeypatch.setattr(disk, "before", lambda name, path: steps.append((name, Path(path).name)))
    moved = apply(actions)
    assert moved is not None
    first_move = next(place for place, (name, path) in enumerate(steps) if name == "rename" and "-0001." in path)
    gone = steps.index(("unlink", "manifest.json"))
    assert gone < steps.index(("sync_folder", tmp_path.name), gone) < first_move
    # What was moved has its new name for good before it has lost the old one, and both before a new manifest.
    after = [step for step in steps[first_move:] if step[0] == "sync_folder" or step[1] == "manifest.json"]
    assert after[:2] == [("sync_folder", moved.name), ("sync_folder", tmp_path.name)]


# --- the commands ---


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_verify_says_commands_as_a_shell_takes_them(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    folder = tmp_path / "it's data"
    write("stream", folder, {0: [1], 1: [2]})
    assert "in full" not in run("verify", folder)[1]
    flip(folder, "0000001-0000.*.bin")
    (folder / ".tmp-x").write_bytes(b"123")
    lines = run("verify", folder)[1].splitlines()
    commands = [shlex.split(line.removeprefix("in full: ")) for line in lines if line.startswith("in full: ")]
    assert commands == [["guideloom", "clean", str(folder)], ["guideloom", "repair", str(folder)]]
    for command in commands:
        assert run(*command[1:], "--yes")[0] == 0
    assert "in full" not in run("verify", folder, "--quick")[1]


def test_verify_shows_all_errors_and_the_first_notes(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    write("stream", tmp_path, {shard: [1] for shard in range(60)})
    for number in range(60):
        (tmp_path / f".tmp-{number}").touch()
        flip(tmp_path, f"{number:07d}-0000.*.bin")
    out = run("verify", tmp_path)[1].splitlines()
    assert [sum(line.startswith(word) for line in out) for word in ("error: ", "note: ", "... ")] == [60, 50, 1]
    assert "... 10 more notes: --json lists them all" in out


def test_commands_and_their_exit_status(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run("verify", folder)[0] == 2
    write("stream", folder, {0: [1], 1: [2]})
    status, out, err = run("verify", folder, "--json", "--jobs", 2)
    assert (status, err) == (0, "")
    assert json.loads(out)["sound"] is True and json.loads(out)["findings"] == []
    flip(folder, "0000001-0000.*.bin")
    assert run("verify", folder, "--quick")[0] == 0
    status, out, _ = run("verify", folder)
    assert status == 1 and "bytes [0, 8)" in out and "damaged: 1 error (" in out
    assert run("repair", folder, "--quick") == (0, f"{folder}: nothing to repair\n", "")
    status, _, err = run("repair", folder, "--jobs", 0)
    assert status == 2 and "jobs must be at least 1, got 0" in err
    (finding,) = json.loads(run("verify", folder, "--json")[1])["findings"]
    assert (finding["what"], finding["shard"], finding["part"], finding["begin"]) == ("checksum", 1, 0, 0)
    status, out, err = run("repair", folder)  # nobody can be asked
    assert status == 2 and "move part 0 of shard 1 away" in out and "--yes" in err
    assert run("verify", folder)[0] == 1
    status, out, _ = run("repair", folder, "--yes")
    assert status == 0 and "dropped-" in out
    assert run("repair", folder) == (0, f"{folder}: nothing to repair\n", "")
    assert run("verify", folder)[0] == 0
    (folder / ".tmp-x").write_bytes(b"123")
    assert run("clean", folder)[0] == 2 and (folder / ".tmp-x").exists()
    assert run("clean", folder, "--yes")[0] == 0 and not (folder / ".tmp-x").exists()
    assert run("clean", folder)[1].endswith("no leftovers\n")
    (folder / "manifest.json").unlink()
    assert "names 1 part\n" in run("manifest", folder)[1]
    assert run("verify", folder, "--jobs", 0)[0] == 2
    write("stream", folder, {1: [2], 2: [3]})
    flip(folder, "0000001-0000.*.bin")
    assert run("repair", folder, "--yes")[0] == 1
    assert run("repair", folder, "--yes", "--create-empty")[0] == 0
