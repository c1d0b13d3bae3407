"""Big-endian requests give the right values by every backend, and tensors in the machine's own order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.errors import ArgumentError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.types import IOReaderAbstract


class BigEndian:
    """A user's format that asks for big-endian elements."""

    stream_dtype = np.dtype(">u2")

    def pack(self, data: Any) -> Any:
        return np.asarray(data, ">u2")

    def unpack(self, stream: Any, shard_lengths: Any, shards: Any) -> Any:
        assert stream.dtype == self.stream_dtype
        return stream.tolist()


BACKENDS: list[Callable[[], IOReaderAbstract]] = [SeekIO, PosixPreadIO, MmapIO]


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("dtype", [">i8", ">i4", "<i8", None])
def test_arrays_in_another_order(make: Callable[[], IOReaderAbstract], dtype: str | None, tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("a", "<u2"), ("b", "<u2")])), make())
    with storage.sync_writer() as writer:
        writer.append(0, {"a": np.arange(8), "b": np.arange(8) + 300})
    with StatefulDataLoader(StreamDataset(storage, 4, dtype=dtype), None, device="cpu") as loader:
        batches = [{name: tensor.tolist() for name, tensor in batch.items()} for batch in loader]
    assert batches == [
        {"a": [[0, 1, 2, 3]], "b": [[300, 301, 302, 303]]},
        {"a": [[4, 5, 6, 7]], "b": [[304, 305, 306, 307]]},
    ]


@pytest.mark.parametrize("make", BACKENDS)
def test_arrays_in_wider_dtypes_that_no_kernel_converts_to(
    make: Callable[[], IOReaderAbstract], tmp_path: Path
) -> None:
    """Beside fields that one does convert; also where a window lies in two shards."""
    fields = np.dtype([("a", "<u1"), ("b", "<i2", (2,)), ("c", "<f4"), ("d", "<u2")])
    storage = StreamStorage(tmp_path, StreamNumpyFormat(fields), make())
    values = np.arange(9)
    written = {"a": values + 200, "b": np.stack([-values, values * 3], 1), "c": values / 4, "d": values + 65_000}
    with storage.sync_writer() as writer:
        for shard, part in enumerate((slice(0, 3), slice(3, 9))):
            writer.append(shard, {name: column[part] for name, column in written.items()})
    wider = {"a": "int16", "b": "int32", "c": "float64", "d": "int64"}
    with StatefulDataLoader(StreamDataset(storage, 4, dtype=wider), None, local_batch_size=2, device="cpu") as loader:
        (batch,) = loader
    for name, column in written.items():
        assert str(batch[name].dtype) == f"torch.{wider[name]}"
        assert batch[name].tolist() == column[:8].reshape(2, 4, *column.shape[1:]).tolist()


@pytest.mark.parametrize("make", BACKENDS)
def test_a_format_in_another_order(make: Callable[[], IOReaderAbstract], tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path, BigEndian(), make())
    with storage.sync_writer() as writer:
        writer.append(0, [1, 2, 3, 65535])
    with StatefulDataLoader.from_storage(storage, None, sequence_length=2, device="cpu") as loader:
        assert [batch.tolist() for batch in loader] == [[[1, 2]], [[3, 65535]]]
    with StatefulDataLoader.from_storage(storage, list, sequence_length=2, device="cpu") as loader:
        assert list(loader) == [[[1, 2]], [[3, 65535]]]


@pytest.mark.parametrize("length", [2**40, 2**62, 2**63, 2**80])
def test_a_window_that_no_memory_holds_is_refused_at_once(length: int, tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path, BigEndian(), PosixPreadIO())
    with storage.sync_writer() as writer:
        writer.append(0, [1, 2, 3, 4])
    with storage.sync_reader() as reader, pytest.raises(ArgumentError, match="read shorter windows"):
        reader.read(0, length)
