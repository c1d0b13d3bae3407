"""Arguments, opening, numbers, and the words of errors and warnings."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guideloom import (
    DocumentDataset,
    DocumentPickleFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
)
from guideloom.errors import ArgumentError, InUseError, NotOpenError
from tests.loader.fakes import HookedDataset, ItemDataset, RowDataset, make_items, make_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"rank": -1}, "rank must be at least 0"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, 2\)"),
        ({"local_batch_size": 0}, "local_batch_size must be at least 1"),
        ({"local_batch_size": 1.5}, "local_batch_size must be an integer"),
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"prefetch": -1}, "prefetch must be at least 0"),
        ({"parallel_method": "fiber"}, "'thread' or 'process'"),
        ({"shuffle_seed": "x"}, "shuffle_seed must be an integer"),
        ({"pin_memory": True}, "needs a CUDA device"),
        ({"device": "nowhere"}, "device must be"),
        ({"collate_fn": 3}, "collate_fn must be callable"),
        ({"shuffle": "false"}, "shuffle must be True or False, found 'false'"),
        ({"shuffle": 2}, "shuffle must be True or False, found 2"),
        ({"drop_last": None}, "drop_last must be True or False, found None"),
        ({"pin_memory": "no"}, "pin_memory must be True or False"),
        ({"copy_ahead": []}, "copy_ahead must be True or False"),
        ({"whole_epochs": "yes"}, "whole_epochs must be True or False, found 'yes'"),
    ],
)
def test_a_bad_argument_is_a_value_error_that_names_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_items(**options)


def test_flags_may_be_numbers_of_a_configuration() -> None:
    loader = make_items(shuffle=np.bool_(True), drop_last=0)
    state = loader.state_dict()
    assert (state["shuffle"], state["drop_last"]) == (True, False)
    assert type(state["shuffle"]) is type(state["drop_last"]) is bool


def test_a_storage_in_place_of_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="from_storage"):
        StatefulDataLoader(DocumentStorage(tmp_path, DocumentPickleFormat()), list)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "options"), [(0, {}), (3, {"local_batch_size": 4}), (3, {"world_size": 4})])
@pytest.mark.parametrize("drop_last", [False, True])
def test_less_than_a_global_batch_is_refused_at_open(size: int, options: dict[str, Any], drop_last: bool) -> None:
    loader = make_items(size, drop_last=drop_last, **options)
    with pytest.raises(ValueError, match="at least one global batch"):
        loader.open()
    dataset = loader.dataset
    assert isinstance(dataset, ItemDataset)
    assert (dataset.opened, dataset.closed) == (1, 1)


def test_numeric_batches_need_a_numeric_data_set() -> None:
    with pytest.raises(ArgumentError, match="pass a collate_fn"):
        make_items(collate_fn=None).open()


def test_not_open() -> None:
    loader = make_items(20, local_batch_size=3, world_size=2)
    assert loader.global_batch_size == 6
    for use in (len, iter, lambda loader: loader.dataset_size):
        with pytest.raises(RuntimeError, match="not open"):
            use(loader)
    with loader:
        assert len(loader) == 3
        assert loader.dataset_size == 20
        with pytest.raises(InUseError, match="open already"):
            loader.open()
    loader.close()
    with pytest.raises(NotOpenError):
        iter(loader)
    with loader:
        assert len(list(loader)) == 3


def test_one_iterator_at_a_time() -> None:
    with make_items(4) as loader:
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match="live iterator"):
            iter(loader)
        iterator.close()
        iterator.close()
        with pytest.raises(NotOpenError, match="closed before"):
            next(iterator)
        with iter(loader) as second:
            assert next(second) == [0]
        third = iter(loader)
        assert list(third) == [[1], [2], [3]]
        assert list(third) == []
        assert list(loader) == [[0], [1], [2], [3]]


def test_a_dropped_iterator_is_not_live() -> None:
    for prefetch in (0, 2):
        with make_items(4, prefetch=prefetch) as loader:
            iterator = iter(loader)
            next(iterator)
            del iterator
            assert next(iter(loader)) == [1]


def test_closing_the_loader_ends_the_iterator() -> None:
    for prefetch in (0, 2):
        loader = make_items(4, prefetch=prefetch)
        loader.open()
        iterator = iter(loader)
        next(iterator)
        loader.close()
        with pytest.raises(NotOpenError):
            next(iterator)


def test_warnings_come_from_the_first_rank_only() -> None:
    with pytest.warns(UserWarning, match="less than num_workers"):
        make_items(num_workers=3, prefetch=2)
    with pytest.warns(UserWarning, match="pin_memory"):
        make_items(device=torch.device("cuda", 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_items(num_workers=3, prefetch=2, rank=1, world_size=2)
        make_items(num_workers=2, prefetch=2)
        make_items(device=torch.device("cuda", 0), pin_memory=True)


def test_a_seed_without_shuffle_is_logged_once_and_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make_items(4, shuffle_seed=7) as loader:
            assert list(loader) == [[0], [1], [2], [3]]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("guideloom", "WARNING")
    assert "shuffle_seed=7 changes no order with shuffle=False" in record.getMessage()
    caplog.clear()
    for options in ({}, {"shuffle": True, "shuffle_seed": 7}, {"shuffle_seed": 7, "rank": 1, "world_size": 2}):
        make_items(4, **options)
    assert not caplog.records


def test_processes_that_were_launched_together_and_do_not_share_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launched in (None, "1", "", "two"):
        if launched is not None:
            monkeypatch.setenv("WORLD_SIZE", launched)
        make_items(4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    make_items(4, rank=0, world_size=2)
    assert not caplog.records
    make_items(4)
    (record,) = caplog.records
    assert "each of these processes gets all batches" in record.getMessage()


def test_devices() -> None:
    assert make_items(device="cpu").device == torch.device("cpu")
    assert StatefulDataLoader(ItemDataset(), list, device=None).device == StatefulDataLoader.get_default_device()


def test_repr_is_one_line_that_says_where_it_is() -> None:
    with make_items(20, local_batch_size=2) as loader:
        next(iter(loader))
        assert "open: epoch 0, sample 2;" in repr(loader)
        assert "\n" not in repr(loader)


def test_from_storage(tmp_path: Path) -> None:
    stream = StreamStorage(tmp_path / "stream", StreamNumpyFormat(np.dtype([("tokens", "<u2")])))
    with stream.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(13, dtype=np.uint16)})
    documents = DocumentStorage(tmp_path / "documents", DocumentPickleFormat())
    with documents.sync_writer() as writer:
        for i in range(3):
            writer.append(0, {"id": i})

    with pytest.raises(ValueError, match="pass sequence_length"):
        StatefulDataLoader.from_storage(stream, list)
    for options in ({"sequence_length": 4}, {"overlap": 1}, {"dtype": "i8"}):
        with pytest.raises(TypeError, match="documents are read whole"):
            StatefulDataLoader.from_storage(documents, list, **options)
    with pytest.raises(TypeError, match="storage must be"):
        StatefulDataLoader.from_storage(RowDataset(), list)

    loader = StatefulDataLoader.from_storage(
        stream, None, sequence_length=4, overlap=1, dtype={"tokens": "i8"}, device="cpu", local_batch_size=3
    )
    assert isinstance(loader.dataset, StreamDataset)
    with loader:
        (batch,) = loader
        assert batch["tokens"].dtype == torch.int64
        assert batch["tokens"].tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9, 10, 11, 12]]
        state = loader.state_dict()
        assert (state["sequence_length"], state["overlap"]) == (4, 1)
        assert re.fullmatch(r"v2:[0-9a-f]{32}", state["identity"])

    loader = StatefulDataLoader.from_storage(documents, list, device="cpu", num_workers=1, prefetch=1)
    assert isinstance(loader.dataset, DocumentDataset)
    with loader:
        assert list(loader) == [[{"id": 0}], [{"id": 1}], [{"id": 2}]]


def test_a_loader_keeps_its_reader_open_between_epochs() -> None:
    for options in ({}, {"prefetch": 2}, {"num_workers": 2, "prefetch": 2}):
        loader = make_rows(4, **options)
        with loader:
            for _ in range(3):
                assert len(list(loader)) == 4
        dataset = loader.dataset
        assert isinstance(dataset, ItemDataset)
        assert (dataset.opened, dataset.closed) == (1, 1)


def test_a_data_set_that_cannot_be_opened() -> None:
    class Broken(HookedDataset):
        def sync_reader(self) -> Any:
            raise FileNotFoundError("gone")

    loader = StatefulDataLoader(Broken(3, print), list, device="cpu")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="gone"):
            loader.open()
