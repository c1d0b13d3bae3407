"""Asking ahead: begins when a gather waited for storage, stops when all was cached, is bounded, changes no data."""

from __future__ import annotations

import mmap
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom._io.mapped import map_file
from guideloom._kernels.gather import populate_cached
from guideloom._kernels.jit import jit_disabled
from guideloom._read import files as files_module
from guideloom._read.files import open_file_set
from guideloom._read.fileset import FileTable
from guideloom._read.readahead import MAX_AHEAD_RUNS, MEASURED_EVERY, WARM_GATHERS, Readahead
from guideloom.errors import ArgumentError, MissingShardError
from guideloom.io import MmapIO, PosixPreadIO


def test_begins_with_a_device_read_and_stops_when_all_is_cached() -> None:
    readahead = Readahead(1 << 20)
    readahead.note(32, 0, 1)
    assert not readahead.cold
    readahead.note(32, 8, 0)
    assert readahead.cold
    for _ in range(WARM_GATHERS - 1):
        readahead.note(32, 0, 0)
        assert readahead.cold
    readahead.note(32, 0, 0)
    assert not readahead.cold


def test_waits_without_blocks_are_a_network() -> None:
    readahead = Readahead(1 << 20)
    readahead.note(32, 0, 20)
    assert readahead.cold


def test_goes_on_while_asking_makes_devices_read() -> None:
    readahead = Readahead(1 << 20)
    readahead.note(1, 8, 1)
    for _ in range(3 * WARM_GATHERS):
        readahead.note_asked(16)
        readahead.note(32, 0, 0)  # it came in time: nothing was waited for
    assert readahead.cold


def test_measures_the_first_gathers_and_those_of_cold_data_and_else_one_of_some() -> None:
    readahead = Readahead(1 << 20)
    assert readahead.due()
    readahead.note(32, 8, 0)
    assert all(readahead.due() for _ in range(3 * MEASURED_EVERY))
    for _ in range(WARM_GATHERS):
        readahead.note(32, 0, 0)
    due = [readahead.due() for _ in range(10 * MEASURED_EVERY)]
    assert sum(due) == 10
    assert due[:MEASURED_EVERY].count(True) == 1
    never = Readahead(0)
    assert not any(never.due() for _ in range(3 * MEASURED_EVERY))


@given(max_bytes=st.integers(0, 1 << 40), run_bytes=st.integers(0, 1 << 40))
def test_what_is_asked_for_ahead_is_bounded_in_bytes_and_in_reads(max_bytes: int, run_bytes: int) -> None:
    reach = Readahead(max_bytes).reach(run_bytes)
    assert reach * run_bytes <= max_bytes
    assert reach <= MAX_AHEAD_RUNS
    # Not less than that either.
    assert reach == MAX_AHEAD_RUNS or (reach + 1) * max(1, run_bytes) > max_bytes


def test_nothing_is_asked_for_ahead_where_that_is_switched_off() -> None:
    readahead = Readahead(0)
    readahead.note(32, 8, 32)
    assert not readahead.cold


@pytest.mark.parametrize("kind", [PosixPreadIO, MmapIO])
@pytest.mark.parametrize("number", [-1, 1.5, None, True, "64"])
def test_only_a_number_of_bytes_says_how_much_is_asked_for_ahead(kind: Any, number: Any) -> None:
    with pytest.raises(ArgumentError, match="read_ahead_bytes must be an integer of at least 0"):
        kind(read_ahead_bytes=number)


@pytest.mark.parametrize("kind", [PosixPreadIO, MmapIO])
def test_a_backend_says_how_much_is_asked_for_ahead(tmp_path: Path, kind: Any) -> None:
    storage = StreamStorage(
        tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), kind(read_ahead_bytes=np.int64(100))
    )
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(4000)})
    with StreamDataset(pickle.loads(pickle.dumps(storage)), 10).sync_reader() as reader:
        source: Any = reader.batch_source()
        files = source._files
        asked: list[tuple[int, int]] = []
        files._advise = lambda file, src, nbytes, lo, hi: asked.append((lo, hi))
        files.readahead.cold = True
        source.samples(source.prepare(np.arange(100)), 0, 8)
    # The batch itself, and five windows of 20 bytes.
    assert asked == [(0, 13)]


@pytest.mark.parametrize("backend", [PosixPreadIO(), MmapIO()], ids=repr)
def test_windows_are_asked_for_once_and_some_way_ahead(tmp_path: Path, backend: Any) -> None:
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), backend)
    with storage.sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"token": np.arange(4000)})
    with StreamDataset(storage, 10).sync_reader() as reader:
        source: Any = reader.batch_source()
        files = source._files
        asked: list[tuple[int, int]] = []
        advise = files._advise

        def spy(file: Any, src: Any, nbytes: Any, lo: int, hi: int) -> None:
            asked.append((lo, hi))
            advise(file, src, nbytes, lo, hi)

        files._advise = spy
        order = np.random.default_rng(0).permutation(source.size)
        plan = source.prepare(order)
        rows = [row["token"] for row in source.samples(plan, 0, 8)]
        assert [(int(lo), int(hi)) for lo, hi in asked] == [(0, plan.bounds[8])], "what is read first, and no more"
        asked.clear()
        for lo in range(8, plan.num_windows, 8):
            files.readahead.cold = True  # what the device says here depends on the page cache
            rows += [row["token"] for row in source.samples(plan, lo, lo + 8)]
            assert asked[-1][1] == plan.bounds[min(plan.num_windows, lo + 8 + MAX_AHEAD_RUNS)]
    expected = np.concatenate([np.arange(4000)] * 3)
    assert [row.tolist() for row in rows] == [expected[10 * i : 10 * i + 10].tolist() for i in order]
    # Every run behind the first batch once, in order, without a gap.
    assert asked[0][0] == plan.bounds[8]
    assert [lo for lo, _ in asked[1:]] == [hi for _, hi in asked[:-1]]
    assert asked[-1][1] == plan.bounds[-1]


@pytest.mark.parametrize("batch_size", [8, 300, 700])
def test_asking_does_not_stop_where_a_plan_ends(tmp_path: Path, batch_size: int) -> None:
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), PosixPreadIO())
    with storage.sync_writer() as writer:
        writer.append(0, {"token": np.arange(40_000) % 60_000})
    loader = StatefulDataLoader.from_storage(
        storage, None, sequence_length=10, local_batch_size=batch_size, shuffle=True, shuffle_seed=3, device="cpu"
    )
    asked: list[int] = []
    read = 0
    with loader:
        files = loader._opened.source._files  # type: ignore[union-attr]

        def spy(file: Any, src: Any, nbytes: Any, lo: int, hi: int) -> None:
            asked.extend((src[lo:hi] // 20).tolist())

        files._advise = spy
        order: list[int] = []
        for batch in loader:
            order += (batch["token"][:, 0].long() // 10).tolist()
            if read:
                # Windows that come soon are known to the device, whichever plan they are in.
                assert len(asked) >= min(read + batch_size + MAX_AHEAD_RUNS, len(loader) * batch_size)
            else:
                assert asked == order, "the first batch asks for itself"
            files.readahead.cold = True
            read += batch_size
    assert sorted(asked) == sorted(set(asked)), "nothing is asked for twice"
    assert asked == order, "in the order in which it is read"


@pytest.mark.parametrize("backend", [PosixPreadIO(), MmapIO()], ids=["pread", "mmap"])
@pytest.mark.parametrize("capacity", [8, 2])
def test_files_of_what_is_asked_for_are_opened_as_far_as_all_fit(
    tmp_path: Path, backend: Any, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MAX_POPULATED_BYTES", 0)  # else the first touch of a map makes them all
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), backend)
    with storage.sync_writer() as writer:
        for shard in range(6):
            writer.append(shard, {"token": np.arange(100)})
    paths = sorted(tmp_path.glob("*.elements.bin"))
    table = FileTable(list(paths), np.full(6, 200), np.arange(6))
    files: Any = open_file_set(backend, table, capacity)
    runs = np.arange(5), np.zeros(5, np.int64), np.arange(0, 50, 10), np.full(5, 10)
    out = np.zeros(50, np.uint8)
    paths[4].unlink()
    # The first gather asks for its own runs, here two of them.
    files.gather(*runs, 0, 2, out)
    assert sorted(files._handles) == [0, 1]
    files.readahead.cold = True
    files.ahead(runs[0], runs[1], runs[3], 2, 5)
    assert sorted(files._handles) == ([0, 1, 2, 3] if capacity == 8 else [0, 1])
    files.gather(*runs, 2, 4, out, asked=True)
    # What is gone is an error where it is read, not where it is asked for.
    with pytest.raises(MissingShardError):
        files.gather(*runs, 4, 5, out, asked=True)
    assert out[:40].view("<u2").tolist() == [0, 1, 2, 3, 4] * 4
    files.close()


def test_only_the_first_gather_is_asked_for_where_nothing_waits(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(100)))
    files: Any = open_file_set(PosixPreadIO(), FileTable([path], np.array([100]), np.array([0])))
    asked: list[tuple[int, int]] = []
    files._advise = lambda file, src, nbytes, lo, hi: asked.append((lo, hi))
    runs = np.zeros(3, np.int64), np.arange(3) * 10, np.arange(3) * 10, np.full(3, 10)
    out = np.zeros(30, np.uint8)
    files.gather(*runs, 0, 1, out)
    assert asked == [(0, 1)]
    files.readahead.cold = False  # what the device says here depends on the page cache
    files.gather(*runs, 1, 3, out)
    assert asked == [(0, 1)]
    assert out.tolist() == list(range(30))
    files.close()


@pytest.mark.parametrize("pages", [1, 7, 8, 9, 300, 3000])
def test_page_tables_are_filled_for_what_is_cached(tmp_path: Path, pages: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * (pages * mmap.PAGESIZE - 5))  # just written: in the page cache
    mapped, size = map_file(path)
    address = int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])  # type: ignore[arg-type]
    filled = pages * mmap.PAGESIZE if sys.platform == "linux" and not jit_disabled() else 0
    assert populate_cached(address, size) == filled


def test_all_maps_of_a_small_data_set_are_made_at_the_first_touch(tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), MmapIO())
    with storage.sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, {"token": np.arange(100)})
    with storage.sync_reader() as reader:
        next(tmp_path.glob("0000001-*.elements.bin")).unlink()
        assert reader.read(0, 10)["token"].tolist() == list(range(10))
        files: Any = reader.opened[1]
        assert sorted(files._handles) == [0, 2]
        # What is gone is an error where it is read.
        with pytest.raises(MissingShardError):
            reader.read(100, 10)


def test_maps_that_come_and_go_are_not_looked_through_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("token", "<u2")])), MmapIO())
    with storage.sync_writer() as writer:
        for shard in range(6):
            writer.append(shard, {"token": np.arange(100)})
    looked_at: list[int] = []
    # Of each map a little is in the cache, whatever was looked at before.
    monkeypatch.setattr(files_module, "populate_cached", lambda address, size: looked_at.append(size) or 1)
    monkeypatch.setattr(files_module, "MAX_POPULATED_BYTES", 500)
    table = FileTable(sorted(tmp_path.glob("*.elements.bin")), np.full(6, 200), np.arange(6))
    files: Any = open_file_set(MmapIO(), table, 2)
    runs = np.arange(6), np.zeros(6, np.int64), np.arange(0, 60, 10), np.full(6, 10)
    for _ in range(5):
        out = np.zeros(60, np.uint8)
        files.gather(*runs, 0, 6, out)
        assert out.view("<u2").tolist() == [0, 1, 2, 3, 4] * 6
    assert looked_at == ([200, 200] if sys.platform == "linux" else [])
    files.close()
