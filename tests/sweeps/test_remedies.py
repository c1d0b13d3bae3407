"""Messages that a newcomer meets first: each names the right place, and its remedy works."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.errors import ArgumentError, DataSetNotFoundError, NotOpenError, WrongKindError


def make(folder: Path) -> StreamStorage:
    storage = StreamStorage(folder, StreamNumpyFormat(np.dtype([("token", "<u2")])))
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(100)})
    return storage


def test_a_relative_path_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = StreamStorage(Path("nothing") / "here", StreamNumpyFormat(np.dtype([("token", "<u2")])))
    with pytest.raises(DataSetNotFoundError) as caught:
        storage.sync_reader().open()
    assert caught.value.path == os.path.join("nothing", "here")


def test_the_dtype_in_the_message_can_be_pasted(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(WrongKindError) as caught:
        StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<i4")]))).sync_reader().open()
    assert "holds [('token', '<u2')]" in str(caught.value)


def test_one_float_dtype_for_an_integer_field(tmp_path: Path) -> None:
    with StreamDataset(make(tmp_path), 8, dtype="float32").sync_reader() as reader:
        window = reader[1]["token"]
    assert window.dtype == np.float32
    assert window.tolist() == list(range(8, 16))


def test_no_dtype_at_all(tmp_path: Path) -> None:
    import torch

    with pytest.raises(ArgumentError, match=r"NumPy dtype.*torch\.int64"):
        StreamDataset(make(tmp_path), 8, dtype=torch.int64)  # type: ignore[arg-type]


def test_windows_longer_than_the_data(tmp_path: Path) -> None:
    loader = StatefulDataLoader.from_storage(make(tmp_path), None, sequence_length=101, device="cpu")
    with pytest.raises(ArgumentError, match="0 windows of sequence_length 101: there is nothing"):
        loader.open()


def test_an_item_of_a_data_set(tmp_path: Path) -> None:
    dataset = StreamDataset(make(tmp_path), 8)
    with pytest.raises(NotOpenError, match="sync_reader"):
        dataset[0]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.warns(UserWarning, match="pin_memory"):
        loader = StatefulDataLoader.from_storage(make(tmp_path), None, sequence_length=8, device="cuda")
    with pytest.raises(ArgumentError, match="no CUDA device"):
        loader.open()
