"""A batch of tensors is the caller's: kept or changed, it has no part in any other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guideloom import (
    DocumentDataset,
    DocumentNumpyFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.types import DatasetAbstract, IOReaderAbstract

Backend = Callable[[], IOReaderAbstract]


class Raw:
    """Elements of one byte, and payloads as they are."""

    stream_dtype = np.dtype("u1")

    def pack_spans(self, data: list[bytes]) -> tuple[Any, list[int], list[bytes]]:
        return np.frombuffer(b"".join(data), np.uint8), [len(text) for text in data], data

    def unpack(self, *parts: Any) -> Any:
        return parts


def stream(folder: Path, backend: Backend, dtype: str | None = None) -> DatasetAbstract:
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<u2"), ("mask", "?")]), backend())
    with storage.sync_writer() as writer:
        for shard, count in enumerate((70, 33)):
            writer.append(shard, {"token": np.arange(count) + 100 * shard, "mask": np.arange(count) % 2})
    return StreamDataset(storage, 10, overlap=3, dtype=dtype)


def tokens(folder: Path, backend: Backend) -> DatasetAbstract:
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<i4")]), backend())
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(103)})
    return StreamDataset(storage, 10, overlap=3)


def wider_stream(folder: Path, backend: Backend) -> DatasetAbstract:
    return stream(folder, backend, "int64")


def spans(folder: Path, backend: Backend) -> DatasetAbstract:
    storage = StreamWithMetaStorage(folder, Raw(), backend())
    with storage.sync_writer() as writer:
        writer.append(0, [bytes([65 + number]) * (1 + number % 5) for number in range(30)])
    return StreamDataset(storage, 8)


def documents(folder: Path, backend: Backend) -> DatasetAbstract:
    storage = DocumentStorage(folder, DocumentNumpyFormat({"token": "<i4"}), backend())
    with storage.sync_writer() as writer:
        for number in range(12):
            writer.append(number % 2, {"token": np.arange(number)})
    return DocumentDataset(storage)


def tensors(batch: Any) -> dict[str, torch.Tensor]:
    return dict(batch) if isinstance(batch, dict) else {"batch": batch}


THREADS: dict[str, Any] = {"num_workers": 2, "prefetch": 3}
PROCESSES: dict[str, Any] = {**THREADS, "parallel_method": "process"}
MAKES = (tokens, stream, wider_stream, spans, documents)
CASES = [
    *itertools.product(MAKES, (SeekIO, PosixPreadIO, MmapIO), ({}, THREADS)),
    (stream, PosixPreadIO, PROCESSES),
    (spans, PosixPreadIO, PROCESSES),
]


@pytest.mark.parametrize(("make", "backend", "way"), CASES)
def test_to_keep_or_change_a_batch_changes_no_other(
    make: Callable[[Path, Backend], DatasetAbstract], backend: Backend, way: dict[str, Any], tmp_path: Path
) -> None:
    dataset = make(tmp_path, backend)
    options: dict[str, Any] = {"local_batch_size": 3, "shuffle": True, "drop_last": False, **way}
    kept, copied = [], []
    with StatefulDataLoader(dataset, None, **options) as loader:
        for _ in range(3):
            kept += [tensors(batch) for batch in loader]
    with StatefulDataLoader(dataset, None, **options) as loader:
        for _ in range(3):
            for batch in map(tensors, loader):
                copied.append({name: tensor.clone() for name, tensor in batch.items()})
                for tensor in batch.values():
                    tensor.numpy()[...] = 1
    assert len(kept) == len(copied) > 9
    for left, right in zip(kept, copied, strict=True):
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            assert np.array_equal(tensor.numpy(), right[name].numpy()), name  # torch 2.3 compares no uint16
