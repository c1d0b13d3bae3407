"""The paths of a data set's files, which are made when they are asked for."""

from __future__ import annotations

from pathlib import Path, PurePath, PureWindowsPath

import pytest

from guideloom._read.opening import file_table
from tests.storage.support import KINDS, opened, write


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("directory", [Path("/data/set"), Path("a"), PureWindowsPath("c:/data")])
def test_paths_are_those_of_the_names(kind: str, directory: PurePath, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1], 1: [2, 3], 2: []})
    catalog = opened(kind, tmp_path)
    paths = file_table(directory, catalog).paths
    expected = [directory / name for name in catalog.files]
    assert len(paths) == len(expected)
    assert list(paths) == expected
    assert [paths[-1], *paths[1:]] == [expected[-1], *expected[1:]]
    with pytest.raises(IndexError):
        paths[len(expected)]
