"""Writers that nobody closed: they say so, once, and only where something is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from guideloom._storage import disk
from tests.storage.support import (
    KINDS,
    opened,
    record_of,
    shards_of,
    writer,
    written,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_is_dropped_says_that_its_work_is_lost(kind: Any, tmp_path: Path) -> None:
    dropped = writer(kind, tmp_path)
    dropped.open()
    dropped.append(0, record_of(kind, 1))
    dropped.append(3, record_of(kind, 1))
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True, action="always") as said:
            del dropped
        os._exit(len(said))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.warns(UserWarning, match=r"dropped without close.*\(shards begun: 2\).*with block"):
        del dropped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in ("abandon", "close"):
            ended = writer(kind, tmp_path)
            ended.open()
            ended.append(0, record_of(kind, 1))
            getattr(ended, end)()
            del ended
        untouched = writer(kind, tmp_path)
        untouched.open()
        del untouched
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [written(kind, [1])]


@pytest.mark.parametrize("end", ["close", "abandon", "drop"])
def test_no_file_stays_open(end: str, tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    ended = writer("stream_with_meta", tmp_path)
    ended.open()
    ended.append(0, record_of("stream_with_meta", 1))
    ended._parts[0].flush()
    assert len(os.listdir("/dev/fd")) == len(before) + 3
    if end == "drop":
        with pytest.warns(UserWarning, match="dropped"):
            del ended
    else:
        getattr(ended, end)()
    assert os.listdir("/dev/fd") == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_was_given_up_is_silent_though_its_files_could_not_be_removed(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(step: str, path: str) -> None:
        if step == "unlink":
            raise OSError(errno.EIO, "no answer", path)

    with warnings.catch_warnings(record=True, action="always") as said:
        with pytest.raises(ZeroDivisionError) as caught, writer(kind, tmp_path) as kept:
            kept.append(0, record_of(kind, 1))
            kept._parts[0].flush()
            monkeypatch.setattr(disk, "before", refuse)
            raise ZeroDivisionError
        assert "could not be removed" in caught.value.__notes__[0]
        del caught, kept
    assert said == []
    monkeypatch.undo()
    again = writer(kind, tmp_path)
    again.open()
    again.abandon()
    again.open()
    again.append(0, record_of(kind, 1))
    with pytest.warns(UserWarning, match="dropped without close"):
        del again


def test_a_writer_that_lives_to_the_end_of_the_interpreter_says_only_what_is_lost(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys
import numpy as np
from guideloom import StreamNumpyFormat, StreamStorage
storage = StreamStorage(pathlib.Path(sys.argv[1]), StreamNumpyFormat([("token", "<u2")]))
# A module that loses its names late, and which the finalisers of a writer would use.
os.kept = storage.sync_writer()
os.kept.open()
os.kept.append(0, {"token": np.arange(60_000)})
os.kept._parts[0].flush()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.count("dropped without close") == 1, ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
