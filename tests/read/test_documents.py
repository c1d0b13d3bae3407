"""Offsets of many batches at once, and in memory: the same documents, each error at its own batch, bounded reads."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import DocumentDataset, DocumentNumpyFormat, DocumentStorage
from guideloom._read import documents as module
from guideloom._read.operations import run
from guideloom._read.readahead import MAX_AHEAD_RUNS
from guideloom.errors import CorruptDataError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import CountingBackend

BACKENDS: dict[str, Callable[[], Any]] = {
    "seek": SeekIO,
    "pread": PosixPreadIO,
    "mmap": MmapIO,
    "user": CountingBackend,
}


def written(folder: Path, lengths: list[list[int]], backend: Any, verify: bool = False) -> DocumentStorage:
    """Shards of documents that count on: the values of all documents, one behind the other, are 0, 1, 2, ..."""
    fmt = DocumentNumpyFormat({"tokens": "<i4"})
    with DocumentStorage(folder, fmt).sync_writer() as writer:
        first = 0
        for shard, sizes in enumerate(lengths):
            writer.create(shard)
            for size in sizes:
                writer.append(shard, {"tokens": np.arange(first, first + size)})
                first += size
    return DocumentStorage(folder, fmt, backend, verify=verify)


def expected(lengths: list[list[int]]) -> list[list[int]]:
    bounds = np.cumsum([0, *(size for sizes in lengths for size in sizes)]).tolist()
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def rows(batch: Any) -> list[list[int]]:
    offsets = batch["offsets"].tolist()
    return [batch["values"][a:b].tolist() for a, b in pairwise(offsets)]


@settings(max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=4).filter(any),
    backend=st.sampled_from(sorted(BACKENDS)),
    table_bytes=st.sampled_from([0, module.MAX_TABLE_BYTES]),
    data=st.data(),
)
def test_any_batches_of_a_plan_in_any_form(
    lengths: list[list[int]], backend: str, table_bytes: int, data: st.DataObject
) -> None:
    documents = expected(lengths)
    indexes = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=20))
    cuts = data.draw(st.lists(st.tuples(st.integers(0, len(indexes)), st.integers(0, len(indexes)), st.booleans())))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_TABLE_BYTES", table_bytes)
        storage = written(Path(folder), lengths, BACKENDS[backend]())
        with DocumentDataset(storage).sync_reader() as reader:
            source: Any = reader.batch_source()
            plan = source.prepare(np.array(indexes, np.int64))
            for a, b, ragged in cuts:
                lo, hi = min(a, b), max(a, b)
                wanted = [documents[i] for i in indexes[lo:hi]]
                if ragged:
                    batch = source.arrays(plan, lo, hi, np.empty)
                    assert batch["values"].dtype == "<i4"
                    assert rows(batch) == wanted
                else:
                    samples = source.samples(plan, lo, hi)
                    assert [sample["tokens"].tolist() for sample in samples] == wanted
                    assert all(sample["tokens"].flags.aligned for sample in samples)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("backend", ["pread", "mmap", "seek"])
def test_offsets_of_a_plan_are_looked_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, ragged: bool
) -> None:
    """One gather a batch, and two more a data set: the first batch's own offsets, and those of all other batches."""
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", 0)
    storage = written(tmp_path, [[3] * 40, [2] * 40], BACKENDS[backend]())
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        asked = spy(source)
        for _ in range(2):
            plan = source.prepare(np.arange(80))
            for lo in range(0, 80, 8):
                source.arrays(plan, lo, lo + 8, np.empty) if ragged else source.samples(plan, lo, lo + 8)
    # Offsets (16 bytes a document) and payloads of the first batch; then offsets of 80 documents once a plan.
    assert asked[:4] == [8 * 16, 8 * 12, 80 * 16, 8 * 12]
    assert asked.count(80 * 16) == 2
    assert len(asked) == 20 + 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_of_a_small_data_set_are_read_once(tmp_path: Path, backend: str) -> None:
    storage = written(tmp_path, [[3] * 40, [], [2] * 40], BACKENDS[backend]())
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        asked = spy(source)
        order = np.random.default_rng(0).permutation(80)
        for _ in range(3):
            plan = source.prepare(order)
            found = [row["tokens"].size for lo in range(0, 80, 8) for row in source.samples(plan, lo, lo + 8)]
            assert found == np.repeat([3, 2], 40)[order].tolist()
    assert asked[0] == 8 * 16
    assert asked[2] == 82 * 8
    assert len(asked) == 30 + 2


def test_offsets_of_a_large_data_set_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", 81 * 8 - 1)
    storage = written(tmp_path, [[3] * 80], PosixPreadIO())
    with storage.sync_reader() as reader:
        for _ in range(3):
            reader.read_many(range(80))
        assert reader.opened[0]._table is None
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", 81 * 8)
    with storage.sync_reader() as reader:
        reader.read(0)
        assert reader.opened[0]._table is None
        reader.read(1)
        assert reader.opened[0]._table is not None


def test_asyncio_readers_keep_offsets_too(tmp_path: Path) -> None:
    lengths = [[1, 0, 4], [2]]
    storage = written(tmp_path, lengths, PosixPreadIO())

    async def read() -> list[list[int]]:
        async with storage.async_reader() as reader:
            await reader.read(0)
            found = [row["tokens"].tolist() for row in await reader.read_many([3, 2, 1, 0])]
            assert reader.opened[0]._table is not None
            return found

    assert asyncio.run(read()) == expected(lengths)[::-1]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("table_bytes", [0, module.MAX_TABLE_BYTES])
def test_an_error_belongs_to_the_batch_that_needs_those_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_bytes: int, ragged: bool, verify: bool
) -> None:
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", table_bytes)
    storage = written(tmp_path, [[3] * 40, [2] * 40], PosixPreadIO(), verify)
    offsets = sorted(tmp_path.glob("*.offsets.bin"))[1]
    raw = np.fromfile(offsets, np.int64)
    raw[20] += 1 << 40
    raw.tofile(offsets)
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        plan = source.prepare(np.arange(80))

        def read(lo: int) -> int:
            batch = source.arrays(plan, lo, lo + 8, np.empty) if ragged else source.samples(plan, lo, lo + 8)
            return len(batch)

        # The whole of a file this small is one block, so with checksums all of the second shard is in doubt.
        good = range(0, 40 if verify else 56, 8)
        assert [read(lo) > 0 for lo in good] == [True] * len(good)
        for _ in range(2):
            with pytest.raises(CorruptDataError) as caught:
                read(56)
            assert (caught.value.path, caught.value.shard) == (str(offsets), 1)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=4).filter(any),
    backend=st.sampled_from(sorted(BACKENDS)),
    data=st.data(),
)
def test_documents_one_at_a_time(lengths: list[list[int]], backend: str, data: st.DataObject) -> None:
    """The same whether offsets are in memory, as after the first one, or not."""
    documents = expected(lengths)
    order = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=20))
    with tempfile.TemporaryDirectory() as folder:
        storage = written(Path(folder), lengths, BACKENDS[backend]())
        with DocumentDataset(storage).sync_reader() as reader:
            assert [reader[i]["tokens"].tolist() for i in [0, *order]] == [documents[i] for i in [0, *order]]
            reader[np.int32(0)]
            operations: Any = reader.batch_source()._operations
            sizes = [operations.place_one(index)[3] for index in range(len(documents))]
            assert sizes == [4 * len(document) for document in documents]
            for index in (-1, len(documents)):
                with pytest.raises(IndexError, match=rf"document index {index} is outside \[0, {len(documents)}\)"):
                    reader[index]


@pytest.mark.parametrize("wrong", [-8, 1 << 40])
def test_offsets_in_memory_are_checked_when_they_are_needed(tmp_path: Path, wrong: int) -> None:
    storage = written(tmp_path, [[1, 2], [3, 4, 5]], PosixPreadIO())
    offsets = sorted(tmp_path.glob("*.offsets.bin"))[1]
    raw = np.fromfile(offsets, np.int64)
    raw[1] = wrong
    raw.tofile(offsets)
    with storage.sync_reader() as reader:
        assert [reader.read(i)["tokens"].size for i in (0, 1, 4)] == [1, 2, 5]
        assert reader.opened[0]._table is not None
        for index, local in ((2, 0), (3, 1)):
            for _ in range(2):
                with pytest.raises(CorruptDataError, match=f"offsets of document {local}") as caught:
                    reader.read(index)
                assert (caught.value.path, caught.value.shard) == (str(offsets), 1)
        assert reader.read(1)["tokens"].size == 2


def test_values_cut_in_two_are_an_error_of_their_batch(tmp_path: Path) -> None:
    written(tmp_path, [[3] * 40], None)
    storage = DocumentStorage(tmp_path, DocumentNumpyFormat({"tokens": "<i4"}), MmapIO())
    offsets = next(tmp_path.glob("*.offsets.bin"))
    raw = np.fromfile(offsets, np.int64)
    raw[31] += 1
    raw.tofile(offsets)
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        plan = source.prepare(np.arange(40))
        for lo in (0, 8, 16):
            source.arrays(plan, lo, lo + 8, np.empty)
        with pytest.raises(CorruptDataError, match=r"document 30 has 13 bytes.*multiple.*4"):
            source.arrays(plan, 24, 32, np.empty)


def test_who_does_not_look_up_for_all_looks_up_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads at one plan: the second goes on without waiting for the first."""
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", 0)
    lengths = [[3] * 40]
    storage = written(tmp_path, lengths, PosixPreadIO())
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        source.samples(source.prepare(np.arange(40)), 0, 8)
        plan = source.prepare(np.arange(40))
        with plan.looking_up:
            asked = spy(source)
            assert [row["tokens"].tolist() for row in source.samples(plan, 8, 16)] == expected(lengths)[8:16]
        assert asked == [8 * 16, 8 * 12]
        source.samples(plan, 16, 24)
        assert plan.placement is not None


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_documents_are_asked_for_once_and_some_way_ahead(tmp_path: Path, backend: str) -> None:
    lengths = [[1, 2, 0, 3] * 200]
    storage = written(tmp_path, lengths, BACKENDS[backend]())
    with DocumentDataset(storage).sync_reader() as reader:
        source: Any = reader.batch_source()
        order = np.random.default_rng(0).permutation(800)
        source.samples(source.prepare(order), 0, 8)
        asked: list[tuple[int, int]] = []
        files = source._files
        files._advise = lambda file, src, nbytes, lo, hi: asked.append((lo, hi))
        plan = source.prepare(order)
        found = []
        for lo in range(0, 800, 8):
            files.readahead.cold = plan.placement is not None  # what the device says here depends on the page cache
            found += [row["tokens"].tolist() for row in source.samples(plan, lo, lo + 8)]
    documents = expected(lengths)
    assert found == [documents[i] for i in order]
    assert asked[0] == (8, 16 + MAX_AHEAD_RUNS)
    assert [lo for lo, _ in asked[1:]] == [hi for _, hi in asked[:-1]]
    assert asked[-1][1] == 800


def test_what_goes_wrong_is_raised_where_it_was_asked_for(tmp_path: Path) -> None:
    storage = written(tmp_path, [[1]], PosixPreadIO())
    with storage.sync_reader() as reader:
        request = next(reader.opened[0].look_up(reader.opened[0].prepare(np.zeros(1, np.int64)), 0, 1, False))
        request.src += 1 << 40

        def operation() -> Any:
            try:
                yield request
            except CorruptDataError:
                request.src -= 1 << 40
                yield request
            return request.out.view(np.int64).tolist()

        assert run(operation(), reader.opened[1]) == [0, 4]


def spy(source: Any) -> list[int]:
    """Bytes of each gather of a source, from here on."""
    asked: list[int] = []
    gather = source._files.gather

    def counted(file: Any, src: Any, dst: Any, nbytes: Any, lo: int, hi: int, *rest: Any) -> None:
        asked.append(int(nbytes[lo:hi].sum()))
        gather(file, src, dst, nbytes, lo, hi, *rest)

    source._files.gather = counted
    return asked
