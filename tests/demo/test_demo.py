"""The demo, small: the whole road as one program, and its parts where they could be wrong without being seen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo.compare import compare
from demo.corpus import collect, sample_texts
from demo.process import Outcome
from demo.records import Finished, Record, Saved, Started, Step, from_line, to_line
from demo.run import prepare_folder
from demo.settings import FULL, Layout, Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_quick_demo_passes_and_leaves_picture_and_summary(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.run(
        [sys.executable, "-m", "demo.run", "--quick", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "PASS" in process.stdout
    assert re.search(r"sample  0: (stdlib|site-packages)/\S+\.(py|txt|rst|md)", process.stdout)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["passed"]
    assert summary["problems"] == []
    assert 0 < summary["steps_redone"] < summary["killed_after_step"] < summary["steps"]
    assert summary["last_loss"] < summary["first_loss"] - 0.5
    assert 2 < summary["disk_bytes_per_token"] < 2.5
    assert 0 < summary["loader_share_of_step_time"] < 1
    assert summary["shards"] == len(list((out / "data").glob("*.commit.json")))


def step(number: int, loss: float = 1.0, digest: str = "d") -> Step:
    return Step(number, loss + number, f"{digest}{number}", 0.0, 0.1)


END = Finished("w", [["a"]])


def outcomes() -> tuple[Outcome, Outcome, Outcome]:
    """A reference run of 9 steps, killed at 6, resumed from 4."""
    return (
        Outcome(Started(0, 1), [step(n) for n in range(1, 10)], [4, 8], END),
        Outcome(Started(0, 1), [step(n) for n in range(1, 7)], [4], None, killed=True),
        Outcome(Started(4, 1), [step(n) for n in range(5, 10)], [8], END),
    )


def test_equal_runs_pass() -> None:
    verdict = compare(*outcomes())
    assert verdict.passed
    assert (verdict.compared_steps, verdict.redone) == (11, 2)


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("field", ["loss", "digest"])
def test_one_different_step_fails_and_is_named(run: int, field: str) -> None:
    runs = outcomes()
    found = runs[run].steps[1]
    # The smallest difference there is: one bit of the loss.
    other = {"loss": float.fromhex("0x1.0000000000001p+0") * found.loss, "digest": "else"}[field]
    runs[run].steps[1] = replace(found, **{field: other})
    verdict = compare(*runs)
    assert not verdict.passed
    assert len(verdict.problems) == 1
    assert f"step {found.step}" in verdict.problems[0]


def test_missing_repeated_and_wrongly_resumed_steps_fail() -> None:
    reference, killed, resumed = outcomes()
    assert not compare(reference, killed, replace(resumed, steps=resumed.steps[1:])).passed
    assert not compare(reference, killed, replace(resumed, steps=resumed.steps[:-1])).passed
    assert not compare(reference, killed, replace(resumed, steps=[step(5), *resumed.steps])).passed
    from_scratch = Outcome(Started(0, 1), reference.steps, [4, 8], END)
    assert not compare(reference, killed, from_scratch).passed
    assert not compare(reference, killed, replace(resumed, finished=Finished("v", [["a"]]))).passed
    assert not compare(reference, killed, replace(resumed, finished=None)).passed


@pytest.mark.parametrize("record", [Started(3, 5), step(7, 0.1 + 0.2), Saved(8), Finished("w", [["a", "b"], []])])
def test_records_cross_the_pipe_whole(record: Record) -> None:
    line = to_line(record)
    assert "\n" not in line
    assert from_line(line) == record


def test_corpus_is_bounded_and_the_same_each_time(tmp_path: Path) -> None:
    root = tmp_path / "lib"
    for folder in ("a", "a/site-packages", "b/__pycache__"):
        (root / folder).mkdir(parents=True)
    text = "x = 1\n" * 100
    for number in range(8):
        (root / "a" / f"{number}.py").write_text(text + f"# {number}\n")
    (root / "a" / "copy.py").write_text(text + "# 0\n")
    (root / "a" / "latin.py").write_bytes(b"# \xe9t\xe9\n" * 100)
    (root / "a" / "binary.bin").write_text(text)
    (root / "a" / "tiny.py").write_text("pass\n")
    (root / "a/site-packages" / "hidden.py").write_text(text + "# h\n")
    (root / "b/__pycache__" / "hidden.py").write_text(text + "# p\n")
    files = collect(10**6, {"lib": root})
    names = {file.name for file in files}
    assert len(files) == 8
    assert names - {"lib/a/copy.py", "lib/a/0.py"} == {f"lib/a/{number}.py" for number in range(1, 8)}
    some = collect(2000, {"lib": root})
    assert some == files[: len(some)] and sum(file.num_bytes for file in some) <= 2000
    assert len(list(sample_texts(files, 1))) == 1
    with pytest.raises(FileNotFoundError, match="no text"):
        collect(10, {"lib": root})


def test_only_a_folder_of_the_demo_is_emptied(tmp_path: Path) -> None:
    layout = prepare_folder(tmp_path / "out")
    layout.summary.write_text("old")
    assert not prepare_folder(tmp_path / "out").summary.exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="--out"):
        prepare_folder(mine)
    assert (mine / "thesis.txt").exists()


def test_settings_round_trip_and_refuse_a_kill_on_a_checkpoint(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    FULL.save(layout.settings)
    assert Settings.load(layout.settings) == FULL
    with pytest.raises(ValueError, match="checkpoint"):
        replace(FULL, kill_after_step=2 * FULL.checkpoint_every)
