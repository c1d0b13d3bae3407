"""Checking on reading: every block that is touched, once, by any number of threads."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._storage.blocks import BlockChecker
from guideloom._storage.local import LocalFolder
from guideloom._storage.names import BLOCK_BYTES
from guideloom._storage.writer import StreamWriter
from guideloom.errors import ArgumentError, CorruptDataError, DamagedRecordError, MissingShardError
from tests.storage.support import Tokens, opened, write

SIZES = (3 * BLOCK_BYTES + 17, 0, 5, 2 * BLOCK_BYTES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    with StreamWriter(folder, Tokens("u1")) as writer:
        for shard, size in enumerate(SIZES):
            writer.append(shard, np.arange(size, dtype="u4").astype("u1"))
    return folder


class Counting:
    """Reads from a folder and counts what is read."""

    def __init__(self, folder: Path) -> None:
        self.local = LocalFolder(folder)
        self.blocks: Counter[tuple[str, int, int]] = Counter()
        self.records: Counter[str] = Counter()

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.blocks[name, offset, size] += 1
        return self.local.read_range(name, offset, size)

    def read_record(self, name: str, limit_bytes: int) -> bytes | None:
        self.records[name] += 1
        return self.local.read_file(name, limit_bytes)


def checker_of(folder: Path, dtype: str = "u1") -> tuple[BlockChecker, Counting, Any]:
    catalog = opened("stream", folder, dtype)
    counting = Counting(folder)
    return BlockChecker(catalog, counting.read, counting.read_record, str(folder)), counting, catalog


def arrays(runs: list[tuple[int, int, int]]) -> tuple[Any, Any, Any]:
    table = np.array(runs, np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        file = draw(st.integers(0, 3))
        begin = draw(st.integers(0, SIZES[file]))
        found.append((file, begin, draw(st.integers(0, SIZES[file] - begin))))
    return found


@given(one=runs(), other=runs(), skip=st.integers(0, 3))
def test_each_block_that_is_touched_once(folder: Path, one: Any, other: Any, skip: int) -> None:
    checker, counting, catalog = checker_of(folder)
    expected = set()
    for batch in (one, other, one):
        low, high = min(skip, len(batch)), len(batch)
        checker.check_ranges(*arrays(batch), low, high)
        for file, begin, size in batch[low:high]:
            for byte in {*range(begin, begin + size, BLOCK_BYTES), begin + size - 1} if size else ():
                offset = byte // BLOCK_BYTES * BLOCK_BYTES
                expected.add((catalog.files[file], offset, min(BLOCK_BYTES, SIZES[file] - offset)))
    assert counting.blocks == dict.fromkeys(expected, 1)
    assert checker.num_checked == len(expected)
    assert set(counting.records.values()) <= {1}


def test_many_threads_check_a_block_once(folder: Path) -> None:
    checker, counting, _ = checker_of(folder)
    start = threading.Barrier(8)

    def check() -> None:
        start.wait()
        checker.check_ranges(*arrays([(0, 0, SIZES[0]), (3, 0, SIZES[3])]), 0, 2)
        assert checker.num_checked >= 6

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counting.blocks.values()) == {1} and checker.num_checked == 6


def test_a_bad_block_raises_each_time_and_its_neighbours_are_good(tmp_path: Path) -> None:
    with StreamWriter(tmp_path, Tokens("u1")) as writer:
        writer.append(0, np.zeros(3 * BLOCK_BYTES, "u1"))
    (path,) = tmp_path.glob("*.bin")
    data = bytearray(path.read_bytes())
    data[BLOCK_BYTES + 9] = 1
    path.write_bytes(data)
    checker, _, _ = checker_of(tmp_path)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"\[1048576, 2097152\)") as caught:
            checker.check_ranges(*arrays([(0, BLOCK_BYTES - 1, 2)]), 0, 1)
        assert (caught.value.offset, caught.value.shard, caught.value.path) == (BLOCK_BYTES, 0, str(path))
    checker.check_ranges(*arrays([(0, 0, 10), (0, 2 * BLOCK_BYTES, 10)]), 0, 2)
    assert checker.num_checked == 2
    path.write_bytes(data[: BLOCK_BYTES + 3])
    with pytest.raises(CorruptDataError):
        checker.check_ranges(*arrays([(0, BLOCK_BYTES, 1)]), 0, 1)


def test_records_that_fail(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1], 1: [2]})
    catalog = opened("stream", tmp_path)
    local = LocalFolder(tmp_path)
    (tmp_path / "0000000-0000.commit.json").write_bytes(b"{}")
    (tmp_path / "0000001-0000.commit.json").unlink()
    checker = BlockChecker(catalog, local.read_range, local.read_file)
    for file, error in ((0, DamagedRecordError), (1, MissingShardError)):
        with pytest.raises(error):
            checker.check_ranges(*arrays([(file, 0, 1)]), 0, 1)


def test_the_published_layout_has_nothing_to_check() -> None:
    folder = Path(__file__).parents[1] / "data" / "published-1.1" / "documents"
    local = LocalFolder(folder)
    with pytest.raises(ArgumentError, match="upgrade"):
        BlockChecker(opened("document", folder), local.read_range, local.read_file)


def test_a_record_of_other_files_than_the_manifest_names(tmp_path: Path) -> None:
    """Someone copied the record of another data set over: its checksums are those of other bytes."""
    for name, number in (("one", 1), ("other", 2)):
        write("stream", tmp_path / name, {0: [number]})
    checker, _, _ = checker_of(tmp_path / "one", "<i4")
    record = "0000000-0000.commit.json"
    (tmp_path / "one" / record).write_bytes((tmp_path / "other" / record).read_bytes())
    with pytest.raises(DamagedRecordError, match="gathered from another record.*guideloom manifest") as caught:
        checker.check_ranges(*arrays([(0, 0, 8)]), 0, 1)
    assert (caught.value.path, caught.value.shard) == (str(tmp_path / "one" / record), 0)
    assert checker.num_checked == 0
