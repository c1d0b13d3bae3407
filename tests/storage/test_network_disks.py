"""What network file systems answer, and local ones do not."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from guideloom._storage.leftovers import find_leftovers
from tests.storage.support import KINDS, opened, shards_of, write, written


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_that_is_made_and_then_reported_as_taken(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, the request repeated, and the second one met the link of the first."""
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    write(kind, tmp_path, {0: [3], 1: [4, 5]})
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [written(kind, [3]), written(kind, [4, 5])]
    assert find_leftovers(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_folder_that_cannot_be_synced(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync
    refused = []

    def of_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    folder = tmp_path / "new"
    write("stream", folder, {0: [1]})
    assert refused
    assert shards_of(folder, opened("stream", folder)) == [[1, 2]]
