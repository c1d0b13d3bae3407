"""The system may read and write less than it was asked for: from 2 GiB on, on network disks, and after a signal."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from guideloom._io import seek
from guideloom._storage import disk
from guideloom._storage.local import read_up_to
from guideloom.errors import OutOfRangeError
from guideloom.io import PosixPreadIO, SeekIO

CONTENT = bytes(range(251)) * 3
AT_MOST = 7


class _FewBytes(io.FileIO):
    def readinto(self, out: Any) -> int:
        return super().readinto(memoryview(out)[:AT_MOST])


@pytest.fixture(autouse=True)
def few_bytes_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pwrite, read = os.preadv, os.pwrite, os.read
    monkeypatch.setattr(os, "preadv", lambda fd, into, offset: preadv(fd, [into[0][:AT_MOST]], offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:AT_MOST], offset))
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, AT_MOST)))
    monkeypatch.setattr(seek, "open", lambda path, mode, **_: _FewBytes(path, mode), raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("backend", [PosixPreadIO(), SeekIO()], ids=repr)
@pytest.mark.parametrize(("offset", "size"), [(0, len(CONTENT)), (5, 3 * AT_MOST), (300, AT_MOST + 1), (4, 0)])
def test_a_backend_asks_for_the_rest(backend: Any, offset: int, size: int, path: Path) -> None:
    with backend.sync_reader()(path) as reader:
        assert reader.read(offset, size) == CONTENT[offset : offset + size]
        with pytest.raises(
            OutOfRangeError, match=f"expected {size + len(CONTENT)} bytes, found {len(CONTENT) - offset}"
        ) as caught:
            reader.read(offset, size + len(CONTENT))
        assert (caught.value.path, caught.value.offset) == (str(path), offset)


@pytest.mark.parametrize(("offset", "size"), [(0, len(CONTENT)), (5, 3 * AT_MOST), (300, 2000), (4, 0), (9999, 5)])
def test_what_records_are_read_by_asks_for_the_rest(offset: int, size: int, path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert read_up_to(descriptor, offset, size) == CONTENT[offset : offset + size]
    finally:
        os.close(descriptor)


def test_a_writer_writes_the_rest(path: Path) -> None:
    descriptor = disk.reopen(str(path))
    try:
        disk.write_at(descriptor, memoryview(CONTENT[::-1]), 100, str(path))
    finally:
        os.close(descriptor)
    assert path.read_bytes() == CONTENT[:100] + CONTENT[::-1]
