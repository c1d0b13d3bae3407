"""A writer in a folder whose manifest names a record that is gone: it must not let the data set forget it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage
from guideloom.errors import MissingShardError

FORMAT = StreamNumpyFormat(np.dtype([("token", "<u2")]))


def write(folder: Path, shard: int, number: int, mode: Any = "create") -> None:
    with StreamStorage(folder, FORMAT).sync_writer(mode=mode) as writer:
        writer.append(shard, {"token": np.full(number, number)})


def lengths(folder: Path) -> list[int]:
    with StreamStorage(folder, FORMAT).sync_reader() as reader:
        return [reader.length(shard) for shard in range(reader.num_shards)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(3):
        write(tmp_path, shard, 10 + shard)
    write(tmp_path, 1, 5, "append")
    return tmp_path


LOST = ["0000001-0001", "0000001-0000", "0000002-0000"]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(
    ("mode", "shard"), [("append", 0), ("append", 1), ("append", 2), ("create", 3), ("overwrite", 0)]
)
def test_nothing_is_committed_beside_a_lost_record(folder: Path, lost: str, mode: str, shard: int) -> None:
    record = folder / f"{lost}.commit.json"
    kept = record.read_bytes()
    record.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(MissingShardError, match='mode="overwrite"') as caught:
        write(folder, shard, 7, mode)
    assert lost in str(caught.value)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    record.write_bytes(kept)
    assert lengths(folder) == [10, 16, 12]
    write(folder, 0, 7, "append")
    assert lengths(folder) == [17, 16, 12]


@pytest.mark.parametrize("lost", LOST)
def test_writing_its_shard_anew_mends_it(folder: Path, lost: str) -> None:
    (folder / f"{lost}.commit.json").unlink()
    shard = int(lost[:7])
    write(folder, shard, 7, "overwrite")
    expected = [10, 16, 12]
    expected[shard] = 7
    assert lengths(folder) == expected
    write(folder, 0, 3, "append")
    expected[0] = 13
    assert lengths(folder) == expected
