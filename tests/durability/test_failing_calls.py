"""Every system call of a commit fails in turn: a clear error that says what is committed, and the old state intact."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from guideloom._storage.leftovers import find_leftovers, remove_leftovers
from guideloom._storage.partfile import Descriptors
from guideloom._storage.verify import verify
from tests.storage.support import KINDS, names, opened, record_of, shards_of, write, writer, written

CALLS = ("open", "pwrite", "close", "fsync", "replace", "link", "unlink", "listdir")


class Faulty:
    """The ``os`` calls that change a disk or look at it, of which the one with a given number fails.

    ``close`` closes all the same: so does the system.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int, code: int) -> None:
        self.num_calls = 0
        self.failed = ""
        self._fail_at = fail_at
        self._code = code
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.num_calls += 1
            if self.num_calls != self._fail_at:
                return real(*arguments, **options)
            self.failed = name
            if name == "close":
                real(*arguments)
            path = arguments[:1] if isinstance(arguments[0], str) else ()
            raise OSError(self._code, os.strerror(self._code), *path)

        return call


def session(
    kind: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int, code: int
) -> tuple[Faulty, OSError | None]:
    """Replace two shards, with a call of the close that fails; return the error it ended with."""
    opened_writer = writer(kind, folder, "overwrite")
    opened_writer.open()
    for shard in (0, 1):
        opened_writer.append(shard, record_of(kind, 5 + shard))
    with monkeypatch.context() as patch:
        faulty = Faulty(patch, fail_at, code)
        try:
            opened_writer.close()
        except OSError as error:
            return faulty, error
    return faulty, None


def said(error: BaseException, words: str) -> set[int]:
    """Shards that an error's notes name as committed, or as not."""
    for note in getattr(error, "__notes__", []):
        match = re.fullmatch(f"Shards that are {words}: ([0-9, ]+)", note)
        if match:
            return {int(number) for number in match[1].split(", ")}
    return set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_each_call_of_a_close_fails(kind: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "base"
    write(kind, base, {0: [1], 1: [2]})
    old, new = ([written(kind, [number + shard]) for shard in (0, 1)] for number in (1, 5))
    shutil.copytree(base, tmp_path / "count")
    total = session(kind, tmp_path / "count", monkeypatch, 0, code)[0].num_calls
    assert total > 40
    outcomes: dict[str, set[int]] = {}
    for fail_at in range(1, total + 1):
        folder = tmp_path / f"at{fail_at}"
        shutil.copytree(base, folder)
        faulty, error = session(kind, folder, monkeypatch, fail_at, code)
        failed: set[int] = set()
        if error is None:
            # What could not be removed is a leftover, and no reason to call a commit failed.
            assert faulty.failed == "unlink"
        else:
            assert error.errno == code and str(folder) in str(error)
            failed = said(error, "not committed")
            assert said(error, "committed") == {0, 1} - failed
            outcomes.setdefault(faulty.failed, set()).add(len(failed))
        expected = [old[shard] if shard in failed else new[shard] for shard in (0, 1)]
        for listing in (True, False):
            assert shards_of(folder, opened(kind, folder, listing=listing)) == expected
        assert not [finding for finding in verify(folder, jobs=1).findings if finding.severity == "error"]

        with writer(kind, folder, "overwrite") as again:
            for shard in failed:
                again.append(shard, record_of(kind, 5 + shard))
        assert shards_of(folder, opened(kind, folder)) == new
        remove_leftovers(folder, [leftover.name for leftover in find_leftovers(folder)])
        assert shards_of(folder, opened(kind, folder, listing=False)) == new
        assert find_leftovers(folder) == []
        shutil.rmtree(folder)
    # Each of them failed where it cost one shard, and where it cost both or none.
    assert outcomes["close"] == outcomes["fsync"] == outcomes["open"] == {0, 1, 2}
    assert outcomes["link"] == {1} and outcomes["listdir"] == {0, 2}


def test_a_file_that_failed_when_it_was_closed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files are open at once: one that is closed to make room, and fails, costs its own shard and not the next."""
    real = os.close
    with monkeypatch.context() as patch:
        opened_writer = writer("stream", tmp_path)
        opened_writer.open()
        opened_writer._descriptors = Descriptors(capacity=1)
        opened_writer.append(0, [1, 2])
        opened_writer._parts[0].flush()

        def close(descriptor: int) -> None:
            real(descriptor)
            patch.setattr(os, "close", real)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        patch.setattr(os, "close", close)
        opened_writer.append(1, [3, 4])
        opened_writer._parts[1].flush()
        assert os.close is real
        with pytest.raises(OSError, match="0000000.elements") as caught:
            opened_writer.close()
    assert caught.value.errno == errno.EDQUOT
    assert said(caught.value, "committed") == {1} and said(caught.value, "not committed") == {0}
    write("stream", tmp_path, {0: [1]})
    assert shards_of(tmp_path, opened("stream", tmp_path)) == [[1, 2], [3, 4]]
    assert find_leftovers(tmp_path) == []


def test_a_shard_to_which_nothing_was_added_leaves_no_file(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    before = names(tmp_path)
    with writer("stream", tmp_path, "append") as again:
        again.append(0, [])
        again._parts[0].flush()  # as a writer of many shards does, when each gets a smaller buffer
        assert names(tmp_path) != before
    assert names(tmp_path) == before
