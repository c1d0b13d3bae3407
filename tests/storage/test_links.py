"""Symbolic links: nothing outside of a data set's folder is read because of one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage
from guideloom._storage.repair import plan_repair
from guideloom._storage.verify import verify
from guideloom.errors import ForeignDataError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from tests.storage.support import KINDS, names, opened, shards_of, write, written

PUBLISHED = Path(__file__).parents[1] / "data" / "published-1.1"


def move_out(folder: Path, name: str, *, to: Path | None = None) -> Path:
    """Put a link in place of a file, which goes to another folder."""
    target = (to or folder.parent / "elsewhere") / name
    target.parent.mkdir(exist_ok=True, parents=True)
    (folder / name).rename(target)
    (folder / name).symlink_to(target)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_as_a_link_out_of_the_folder(kind: Any, tmp_path: Path) -> None:
    write(kind, tmp_path / "data", {0: [1], 1: [2]})
    for name in names(tmp_path / "data"):
        folder = tmp_path / f"with-{name}" / "data"
        shutil.copytree(tmp_path / "data", folder)
        target = move_out(folder, name)
        with pytest.raises(ForeignDataError, match=r"cp -rL") as caught:
            opened(kind, folder)
        assert caught.value.path == str(folder / name) and repr(str(target)) in str(caught.value)
        # The checks say it of that file alone, and read nothing of it.
        target.chmod(0)
        target.write_bytes(b"not to be read" * 1000)
        report = verify(folder)
        assert [(error.what, error.path) for error in report.errors] == [("symlink", str(folder / name))]
        assert "not to be read" not in str(report)
        (refused,) = plan_repair(folder)
        assert refused.kind == "refused" and name in refused.text


def test_the_remedy(tmp_path: Path) -> None:
    write("stream", tmp_path / "data", {0: [1], 1: [2]})
    for name in names(tmp_path / "data"):
        move_out(tmp_path / "data", name)
    for options in ("-rL", "-rlL"):
        subprocess.run(["cp", options, tmp_path / "data", tmp_path / options], check=True)
        catalog = opened("stream", tmp_path / options)
        assert shards_of(tmp_path / options, catalog) == [written("stream", [1]), written("stream", [2])]


@pytest.mark.parametrize("backend", [SeekIO(), PosixPreadIO(), MmapIO()], ids=repr)
def test_links_that_are_allowed(backend: Any, tmp_path: Path) -> None:
    """The folder itself, files that no reader looks at, and what stays within the folder."""
    tokens = StreamNumpyFormat(np.dtype([("token", "<u2")]))
    with StreamStorage(tmp_path / "data", tokens).sync_writer() as stream:
        stream.append(0, {"token": np.arange(9)})
    (tmp_path / "folder").symlink_to("data")
    (tmp_path / "data" / "README.md").symlink_to("/etc/hostname")
    (tmp_path / "data" / "circle").symlink_to("circle")
    for name in names(tmp_path / "data"):
        if name not in ("README.md", "circle"):
            move_out(tmp_path / "data", name, to=tmp_path / "data" / "inner")
    for folder in ("folder", "data"):
        with StreamStorage(tmp_path / folder, tokens, read_interface=backend).sync_reader() as reader:
            assert reader.read(0, 9)["token"].tolist() == list(range(9))
        report = verify(tmp_path / folder)
        assert report.is_sound and {finding.what for finding in report.findings} == {"symlink"}


@pytest.mark.parametrize("way", ["dangling", "circle", "device", "above"])
def test_links_to_odd_things(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write("stream", folder, {0: [1]})
    target = {"dangling": tmp_path / "nothing", "circle": tmp_path / "circle", "device": "/dev/zero", "above": ".."}[
        way
    ]
    if way == "circle":
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in names(folder):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(target)
        with pytest.raises(ForeignDataError, match="symbolic link"):
            opened("stream", folder)
        (folder / name).unlink()
        (tmp_path / name).rename(folder / name)


def test_the_published_layout(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(PUBLISHED / "documents", folder)
    target = move_out(folder, "0000001.out_of_band.bin")
    with pytest.raises(ForeignDataError, match="symbolic link"):
        opened("document", folder)
    target.unlink()
    assert [error.what for error in verify(folder).errors] == ["symlink"]


def test_looking_for_links_asks_nothing_of_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("stream", tmp_path, {shard: [shard] for shard in range(20)})

    def refuse(*arguments: Any) -> Any:
        raise AssertionError(arguments)

    for name in ("realpath", "islink"):
        monkeypatch.setattr(os.path, name, refuse)
    monkeypatch.setattr(os, "readlink", refuse)
    assert opened("stream", tmp_path).num_shards == 20
