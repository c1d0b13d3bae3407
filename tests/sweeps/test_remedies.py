"""Messages that a newcomer meets first: each names the right place, and its remedy works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import (
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    cli,
)
from guideloom._storage.verify import verify
from guideloom.errors import ArgumentError, DamagedRecordError, DataSetNotFoundError, NotOpenError, WrongKindError


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


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataSetNotFoundError, match="does not exist; correct the path, or write it first"):
        StreamStorage(tmp_path / "typo", StreamNumpyFormat([("token", "<u2")])).sync_reader().open()


def test_documents_of_other_fields(tmp_path: Path) -> None:
    """To name the class that was used already would be no help."""
    with DocumentStorage(tmp_path, DocumentNumpyFormat({"tokens": "<u2"})).sync_writer() as writer:
        writer.append(0, {"tokens": [1, 2]})
    with pytest.raises(WrongKindError, match="use DocumentNumpyFormat with the fields that it was written with"):
        DocumentStorage(tmp_path, DocumentNumpyFormat({"ids": "<u2"})).sync_reader().open()
    with pytest.raises(WrongKindError, match=r"use DocumentNumpyFormat \["):
        DocumentStorage(tmp_path, DocumentJsonFormat()).sync_reader().open()


def test_documents_without_numeric_batches(tmp_path: Path) -> None:
    storage = DocumentStorage(tmp_path, DocumentJsonFormat())
    with storage.sync_writer() as writer:
        writer.append(0, {"text": "a"})
    loader = StatefulDataLoader.from_storage(storage, None, device="cpu")
    with pytest.raises(ArgumentError, match="DocumentNumpyFormat with one field.*pass a collate_fn"):
        loader.open()


def test_a_dtype_too_small_for_every_field(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="take a wider one, such as int32"):
        StreamDataset(make(tmp_path), 8, dtype="int8")


@pytest.mark.parametrize("wrong", [object, "U9", "datetime64[s]", "V8"])
def test_numbers_stay_numbers(tmp_path: Path, wrong: Any) -> None:
    """NumPy calls most of these safe."""
    storage = make(tmp_path)
    with pytest.raises(ArgumentError, match="take a wider one, such as int64"):
        StreamDataset(storage, 8, dtype=wrong)
    (name,) = storage.storage_format.stream_dtype.names
    with pytest.raises(ArgumentError, match=f"field {name!r}.* such as int64"):
        StreamDataset(storage, 8, dtype={name: wrong})


@pytest.mark.parametrize("name", ["0000000-0000.commit.json", "manifest.json"])
def test_a_finding_gives_its_remedy_once(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    damaged = (tmp_path / name).read_bytes().replace(b'"guideloom":2', b'"guideloom":2 ')
    (tmp_path / name).write_bytes(damaged)
    (finding,) = verify(tmp_path).errors
    assert "the checksum does not hold" in str(finding)
    assert str(finding).count("restore it") + str(finding).count("gather it anew") == 1


def test_a_damaged_manifest_is_made_anew_as_the_error_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = make(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(DamagedRecordError, match=r"gather it anew with: guideloom manifest \[") as caught:
        storage.sync_reader().open()
    assert "restore" not in str(caught.value)
    assert cli.main(["manifest", str(tmp_path)]) == 0
    with storage.sync_reader() as reader:
        assert reader.total_length == 100
    assert "names 1 part" in capsys.readouterr().out
