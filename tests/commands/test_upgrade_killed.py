"""``guideloom upgrade`` killed with SIGKILL at chosen steps, then run again."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import cli
from guideloom._storage import disk
from guideloom._storage.upgrade import upgrade
from guideloom._storage.verify import verify
from guideloom.errors import ForeignDataError

PUBLISHED = Path(__file__).parents[1] / "data" / "published-1.1"
FORK = multiprocessing.get_context("fork")
TOKENS = "[('tokens', '<u2'), ('mask', '|b1'), ('weight', '<f4')]"


def final(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".tmp-")}


@pytest.mark.parametrize(("name", "dtype"), [("stream", TOKENS), ("documents", None), ("stream_with_meta", "<i4")])
def test_killed_twice_and_finished(name: str, dtype: str | None, tmp_path: Path) -> None:
    arguments = ["upgrade", str(PUBLISHED / name), *(() if dtype is None else ("--dtype", dtype))]

    def run(folder: Path, last_step: int) -> None:
        steps = 0

        def step(what: str, path: str) -> None:
            nonlocal steps
            steps += 1
            if steps == last_step:
                os.kill(os.getpid(), signal.SIGKILL)

        disk.before = step
        arguments.insert(2, str(folder))
        (folder.parent / f"{folder.name}-status").write_text(str(cli.main(arguments)))
        (folder.parent / f"{folder.name}-steps").write_text(str(steps))

    def child(folder: Path, last_step: int = 0) -> Any:
        process = FORK.Process(target=run, args=(folder, last_step))
        process.start()
        process.join()
        return process.exitcode

    assert child(tmp_path / "whole") == 0
    num_steps = int((tmp_path / "whole-steps").read_text())
    assert num_steps > 10
    expected = final(tmp_path / "whole")
    choose = random.Random(name)
    for _ in range(8):
        folder = tmp_path / "killed"
        assert child(folder, choose.randrange(1, num_steps)) == -signal.SIGKILL
        assert child(folder, choose.randrange(1, num_steps)) in (-signal.SIGKILL, 0)
        assert child(folder) == 0 and (tmp_path / "killed-status").read_text() == "0"
        # Not one byte is another one, and what the kills left behind is no more than leftovers.
        assert final(folder) == expected
        report = verify(folder)
        assert report.is_sound and {finding.what for finding in report.findings} <= {"leftover"}
        shutil.rmtree(folder)


def test_the_copy_is_checked_against_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that writes something else than it was given is found before the command says that it is done."""
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        content = bytearray(data)
        if len(content) > 100:
            content[50] ^= 1
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    dtype = np.dtype([("tokens", "<u2"), ("mask", "|b1"), ("weight", "<f4")])
    with pytest.raises(ForeignDataError, match="does not hold what the old data set holds") as caught:
        upgrade(PUBLISHED / "stream", tmp_path / "new", dtype=dtype)
    assert (caught.value.shard, caught.value.offset) == (0, 50)
