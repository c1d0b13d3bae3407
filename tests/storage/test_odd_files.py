"""What is no regular file, where a record should be; and span keys that cannot be compared."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage, StreamWithMetaStorage
from guideloom.errors import DamagedRecordError, PackError


def stream(directory: Path) -> StreamStorage:
    storage = StreamStorage(directory, StreamNumpyFormat(np.dtype([("token", "<u2")])))
    with storage.sync_writer() as writer:
        writer.append(0, {"token": [1, 2, 3]})
    return storage


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_in_place_of_a_record(tmp_path: Path, make: Any) -> None:
    storage = stream(tmp_path)
    make(tmp_path / "0000001-0000.commit.json")
    with pytest.raises(DamagedRecordError, match="regular file"):
        storage.sync_reader().open()


class Keys:
    stream_dtype = np.dtype("<i4")

    def size(self, data: list[Any]) -> int:
        return len(data)

    def pack(self, data: list[Any]) -> Generator[tuple[Any, bytes | None], None, np.ndarray]:
        for key in data:
            yield key, b"x"
        return np.zeros(len(data), np.int32)

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        return stream


def test_keys_that_cannot_be_compared(tmp_path: Path) -> None:
    with StreamWithMetaStorage(tmp_path, Keys()).sync_writer() as writer:
        with pytest.raises(PackError, match="cannot be compared"):
            writer.append(0, [(1, 2), np.int64(7)])
        with pytest.raises(PackError, match=r"at element 0, which cannot be compared: use"):
            writer.append(0, [np.array([0, 1])])
        writer.append(0, [1, 1])
        assert writer.length(0) == 2
