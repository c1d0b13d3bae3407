"""A relative path means what it meant when a reader or writer was opened, wherever the program goes after that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guideloom import StreamDataset, StreamStorage, StreamWithMetaStorage
from guideloom.errors import DataSetNotFoundError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import IdStreamFormat
from tests.storage.support import Spans, Tokens

BACKENDS: dict[str, Callable[[], Any]] = {"seek": SeekIO, "pread": PosixPreadIO, "mmap": MmapIO}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Stand in one folder now, and in another one when called."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda: monkeypatch.chdir(tmp_path / "there")


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_reading(backend: str, verify: bool, elsewhere: Callable[[], None]) -> None:
    storage = StreamStorage(Path("data"), IdStreamFormat(), BACKENDS[backend](), verify=verify)
    with storage.sync_writer() as writer:
        writer.append(0, list(range(10)))
    dataset = StreamDataset(storage, 5)
    worker = dataset.sync_reader()
    with storage.sync_reader() as reader, dataset.sync_reader() as windows:
        elsewhere()
        assert reader.read(3, 2).elements.tolist() == [3, 4]
        snapshot = windows.batch_source().snapshot
        assert snapshot is not None
        worker.open_snapshot(snapshot)  # as a worker process does
        assert worker[1].elements.tolist() == [5, 6, 7, 8, 9]
        worker.close()
        with pytest.raises(DataSetNotFoundError):
            storage.sync_reader().open()


def test_writing(elsewhere: Callable[[], None], tmp_path: Path) -> None:
    storages: list[Any] = [
        StreamStorage(Path("streams/of/tokens"), Tokens()),
        StreamWithMetaStorage(Path("spans"), Spans()),
    ]
    writers = [storage.sync_writer() for storage in storages]
    for writer in writers:
        writer.open()
        writer.create(0)
    elsewhere()
    for writer in writers:
        writer.create(1)
        writer.close()
    assert not list((tmp_path / "there").iterdir())
    for storage in storages:
        path = tmp_path / "here" / storage.storage_dir
        with type(storage)(path, storage.storage_format).sync_reader() as reader:
            assert reader.num_shards == 2
