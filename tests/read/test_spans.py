"""Span tables in memory: the same windows, each error at its own batch, bounded reads and memory; arrays in place."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import StreamDataset, StreamWithMetaStorage
from guideloom._read import spans as module
from guideloom.errors import CorruptDataError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import CountingBackend, IdSpanFormat, make_spans
from guideloom.testing.strategies import span_lengths

BACKENDS: dict[str, Callable[[], Any]] = {
    "seek": SeekIO,
    "pread": PosixPreadIO,
    "mmap": MmapIO,
    "user": CountingBackend,
}


def read_arrays(source: Any, plan: Any, lo: int, hi: int) -> list[tuple[list[int], list[int], list[bytes]]]:
    """Elements, span of each, and payloads, of each window."""
    made: list[Any] = []

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        made.append(np.empty(shape, dtype))
        return made[-1]

    batch = source.arrays(plan, lo, hi, empty)
    assert all(any(array is one for one in made) for array in batch.values())
    bounds, offsets, payload = batch["span_bounds"], batch["span_offsets"], batch["span_payload"].tobytes()
    return [
        (
            batch["elements"][b].tolist(),
            batch["span_index"][b].tolist(),
            [payload[offsets[p] : offsets[p + 1]] for p in range(bounds[b], bounds[b + 1])],
        )
        for b in range(hi - lo)
    ]


class PlainFormat(IdSpanFormat):
    """Unpacks to what ``read_arrays`` gives."""

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        assert len(document_shard) == len(document_data)
        return stream.tolist(), document_index.tolist(), [bytes(payload) for payload in document_data]


@settings(max_examples=25)
@given(
    spans=span_lengths(max_spans=12, max_length=9),
    length=st.integers(1, 12),
    backend=st.sampled_from(sorted(BACKENDS)),
    dtype=st.sampled_from([None, "int64"]),
    data=st.data(),
)
def test_samples_and_arrays_agree_whether_tables_are_in_memory_or_not(
    spans: Any, length: int, backend: str, dtype: Any, data: st.DataObject
) -> None:
    found = []
    cuts = data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
    seed = data.draw(st.integers(0, 9))
    for table_bytes in (0, module.MAX_TABLE_BYTES):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "MAX_TABLE_BYTES", table_bytes)
            make_spans(Path(folder), spans, np.dtype("<i4"), per_append=2)
            storage = StreamWithMetaStorage(Path(folder), PlainFormat(np.dtype("<i4")), BACKENDS[backend]())
            with StreamDataset(storage, length, dtype=dtype).sync_reader() as reader:
                source: Any = reader.batch_source()
                plan = source.prepare(np.random.default_rng(seed).permutation(source.size))
                for a, b in cuts:
                    lo, hi = sorted((min(a, source.size), min(b, source.size)))
                    samples = source.samples(plan, lo, hi)
                    assert read_arrays(source, plan, lo, hi) == samples
                    found.append(samples)
    half = len(found) // 2
    assert found[:half] == found[half:]


@pytest.mark.parametrize("arrays", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_of_a_small_data_set_are_read_once(tmp_path: Path, backend: str, arrays: bool) -> None:
    storage = make_spans(tmp_path, [[2] * 40, [], [1] * 40], read_interface=BACKENDS[backend](), per_append=40)
    with StreamDataset(storage, 10).sync_reader() as reader:
        source: Any = reader.batch_source()
        asked = spy(source)
        for _ in range(3):
            plan = source.prepare(np.arange(12))
            for lo in range(0, 12, 4):
                source.arrays(plan, lo, lo + 4, np.empty) if arrays else source.samples(plan, lo, lo + 4)
    # The first batch: elements, sample of its table, rows, payloads. Then all tables, between elements and payloads.
    assert len(asked) == 9 * 2 + 2 + 1
    assert asked[5] == (41 + 41) * module.ROW_BYTES


def test_large_tables_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = make_spans(tmp_path, [[2] * 40], read_interface=PosixPreadIO(), per_append=40)
    for limit, kept in ((41 * 16 - 1, False), (41 * 16, True)):
        monkeypatch.setattr(module, "MAX_TABLE_BYTES", limit)
        with storage.sync_reader() as reader:
            operations: Any = reader.opened[0]
            reader.read(0, 5)
            assert operations._whole is None
            for _ in range(3):
                reader.read(20, 10)
            assert (operations._whole is not None) is kept


@pytest.mark.parametrize(("most", "kept"), [(0, 4), (3, 4), (5, 5), (7, 5), (1 << 22, 8)])
def test_samples_of_span_tables_are_thinned_out_to_one_of_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, kept: int
) -> None:
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", 0)
    storage = make_spans(tmp_path, [[2] * 1000, [], [1], [3] * 300, [1]], per_append=1000)
    storage = StreamWithMetaStorage(tmp_path, PlainFormat(storage.storage_format.stream_dtype), MmapIO())
    with storage.sync_reader() as reader:
        wanted = [reader.read(at, 7) for at in range(0, reader.total_length, 41)]
    monkeypatch.setattr(module, "MAX_SAMPLES", most)
    with storage.sync_reader() as reader:
        operations: Any = reader.opened[0]
        assert operations._samples.size == kept
        assert [reader.read(at, 7) for at in range(0, reader.total_length, 41)] == wanted


def test_tables_are_loaded_after_as_many_look_ups_as_they_have_pages(tmp_path: Path) -> None:
    storage = make_spans(tmp_path, [[1] * 1000], read_interface=PosixPreadIO(), per_append=500)
    with storage.sync_reader() as reader:
        operations: Any = reader.opened[0]
        for _ in range(4):  # 16,016 bytes: 4 pages
            assert operations._whole is None
            reader.read(7, 5)
        reader.read(8, 5)
        assert operations._whole is not None


def test_asyncio_readers_keep_tables_too(tmp_path: Path) -> None:
    make_spans(tmp_path, [[2, 3], [4]])
    storage = StreamWithMetaStorage(tmp_path, PlainFormat(), PosixPreadIO())

    async def read() -> Any:
        async with storage.async_reader() as reader:
            first = await reader.read(1, 7)
            again = await reader.read(1, 7)
            assert reader.opened[0]._whole is not None
            assert first == again
            return again

    elements, index, payloads = asyncio.run(read())
    assert elements == [1, 2, 3, 4, 5, 6, 7]
    assert index == [0, 1, 1, 1, 2, 2, 2]
    assert len(payloads) == 3


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("table_bytes", [0, module.MAX_TABLE_BYTES])
def test_an_error_belongs_to_the_batch_that_needs_those_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_bytes: int, verify: bool
) -> None:
    monkeypatch.setattr(module, "MAX_TABLE_BYTES", table_bytes)
    make_spans(tmp_path, [[2] * 40, [2] * 40], per_append=40)
    table = sorted(tmp_path.glob("*.spans.bin"))[1]
    raw = np.fromfile(table, np.int64)
    raw[2 * 25 + 1] += 1 << 40
    raw.tofile(table)
    storage = StreamWithMetaStorage(tmp_path, PlainFormat(), PosixPreadIO(), verify=verify)
    with StreamDataset(storage, 10).sync_reader() as reader:
        source: Any = reader.batch_source()
        plan = source.prepare(np.arange(16))
        # Of a file this small all is one block: with checksums the whole of the second shard is in doubt.
        for window in range(8 if verify else 12):
            assert source.samples(plan, window, window + 1)[0][0] == list(range(10 * window, 10 * window + 10))
        for _ in range(2):
            with pytest.raises(CorruptDataError) as caught:
                source.samples(plan, 12, 13)
            assert (caught.value.path, caught.value.shard) == (str(table), 1)


def test_payloads_are_writable_views(tmp_path: Path) -> None:
    kept: list[Any] = []

    class Keeping(PlainFormat):
        def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
            kept.extend(document_data)
            return super().unpack(stream, document_shard, document_index, document_data)

    make_spans(tmp_path, [[2, 3, 1]])
    with StreamWithMetaStorage(tmp_path, Keeping(), MmapIO()).sync_reader() as reader:
        payloads = reader.read(0, 6)[2]
    for view, payload in zip(kept, payloads, strict=True):
        assert isinstance(view, memoryview)
        assert not view.readonly
        view[:] = b"\xff" * len(view)  # its own bytes only
        assert bytes(view) != payload
    assert b"".join(kept) == b"\xff" * sum(map(len, payloads))


def spy(source: Any) -> list[int]:
    """Bytes of each gather of a source, from here on."""
    asked: list[int] = []
    execute = source._files.execute

    def counted(ask: Any) -> None:
        asked.append(int(ask.nbytes[ask.lo : ask.hi].sum()))
        execute(ask)

    source._files.execute = counted
    return asked


@pytest.mark.parametrize("dtype", [None, "int64"])
def test_an_asyncio_reader_remembers_tables_from_read_to_read(tmp_path: Path, dtype: Any) -> None:
    backend = CountingBackend()
    storage = make_spans(tmp_path, [[2] * 40], np.dtype("<i4"), read_interface=backend, per_append=40)

    async def main() -> list[int]:
        reads = []
        async with StreamDataset(storage, 4, dtype=dtype).async_reader() as reader:
            for index in range(5):
                await reader[index]
                reads.append(backend.matching("*.spans.bin").reads)
        return reads

    # The sample and some rows, then the whole table, then nothing.
    assert asyncio.run(main()) == [2, 3, 3, 3, 3]


PUBLISHED = Path(__file__).parents[1] / "data" / "published-1.1" / "stream_with_meta"


class FieldsFormat(PlainFormat):
    """Unpacks elements with fields to a dict of lists."""

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        _, *spans = super().unpack(stream["low"], document_shard, document_index, document_data)
        return {name: stream[name].tolist() for name in stream.dtype.names}, *spans


@pytest.mark.parametrize("wanted", [None, "int64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_of_the_published_layout_are_its_samples(backend: str, wanted: Any) -> None:
    storage = StreamWithMetaStorage(PUBLISHED, PlainFormat(np.dtype("<i4")), BACKENDS[backend]())
    with StreamDataset(storage, 7, overlap=20, dtype=wanted).sync_reader() as reader:
        source: Any = reader.batch_source()
        plan = source.prepare(np.random.default_rng(1).permutation(source.size))
        for lo, hi in ((0, source.size), (3, 9), (4, 4)):
            assert read_arrays(source, plan, lo, hi) == source.samples(plan, lo, hi)
        assert source.arrays(plan, 0, 2, np.empty)["elements"].dtype == (wanted or "int32")


@pytest.mark.parametrize(
    ("wanted", "dtypes"), [(None, ("u2", "i2")), ("int32", ("i4", "i4")), ({"high": "int64"}, ("u2", "i8"))]
)
def test_each_field_of_the_published_layout_is_an_array_of_its_own(wanted: Any, dtypes: tuple[str, str]) -> None:
    dtype = np.dtype([("low", "<u2"), ("high", "<i2")])
    with StreamDataset(StreamWithMetaStorage(PUBLISHED, FieldsFormat(dtype)), 9, dtype=wanted).sync_reader() as reader:
        source: Any = reader.batch_source()
        plan = source.prepare(np.arange(source.size))
        batch = source.arrays(plan, 0, source.size, np.empty)
        expected = [fields for fields, *_ in source.samples(plan, 0, source.size)]
        for name, code in zip(("low", "high"), dtypes, strict=True):
            assert batch[name].dtype == code and batch[name].flags.c_contiguous
            assert batch[name].tolist() == [fields[name] for fields in expected]


@pytest.mark.parametrize(
    ("shard", "element", "number"),
    [(0, 60, -1), (0, 60, 20), (0, 60, 14), (0, 60, 10), (1, 3, -1), (1, 3, 20), (1, 3, 4), (1, 3, 0)],
)
def test_numbers_of_spans_of_the_published_layout_that_do_not_rise_one_by_one_are_refused(
    tmp_path: Path, shard: int, element: int, number: int
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(PUBLISHED, folder)
    file = folder / f"000000{shard}.in_band.bin"
    file.chmod(0o600)
    rows = np.fromfile(file, [("span", "<i4"), ("element", "<i4")])
    rows["span"][element] = number
    rows.tofile(file)
    with (
        StreamWithMetaStorage(PUBLISHED, PlainFormat(np.dtype("<i4"))).sync_reader() as sound,
        StreamWithMetaStorage(folder, PlainFormat(np.dtype("<i4"))).sync_reader() as reader,
    ):
        begin = element + shard * sound.length(0)
        assert reader.read(begin - 20, 20) == sound.read(begin - 20, 20)
        windows = [(begin - 2, 40), (begin - 20, 40)]  # of the second shard, the latter begins in the first
        if not 0 <= number < 20:
            windows.append((begin, 1))
        for index, length in windows:
            with pytest.raises(CorruptDataError, match=f"found {number} beside element {element}:") as found:
                reader.read(index, length)
            error = found.value
            assert (error.path, error.shard, error.offset) == (str(file), shard, 8 * element)
