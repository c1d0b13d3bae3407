"""Streams through the public interface: every window, backend and reader gives what the oracle says."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.io import MmapIO
from guideloom.testing import IdStreamFormat, make_stream, naive_runs, naive_window, record_values
from guideloom.testing.strategies import shard_counts, windows
from tests.sweeps.support import BACKENDS, READ

TOKENS = np.dtype([("tokens", "<i4")])


def id_shards(counts: tuple[int, ...]) -> list[range]:
    starts = np.concatenate(([0], np.cumsum(counts))).tolist()
    return [range(a, a + n) for a, n in zip(starts, counts, strict=False)]


def every_window(total: int) -> list[tuple[int, int]]:
    return [(index, length) for index in range(total) for length in range(2 * total + 2)]


def check_windows(found: list[Any], counts: tuple[int, ...], requests: list[tuple[int, int]]) -> None:
    assert len(found) == len(requests)
    for (index, length), window in zip(requests, found, strict=True):
        assert window.elements.tolist() == naive_window(id_shards(counts), index, length), (counts, index, length)
        runs = list(zip(window.shards, window.shard_lengths, strict=True))
        assert runs == naive_runs(counts, index, length), (counts, index, length)


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "counts",
    [(5,), (1,), (0, 3), (3, 0), (2, 0, 0, 3), (1, 1, 1), (4, 0, 2)],
    ids=lambda counts: "-".join(map(str, counts)),
)
def test_every_window(counts: tuple[int, ...], backend: str, reader: str, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, counts, read_interface=BACKENDS[backend]())
    requests = every_window(sum(counts))
    check_windows(READ[reader](storage, requests), counts, requests)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shards_of_several_parts_read_as_one(parts: int, backend: str, tmp_path: Path) -> None:
    counts = (4, 0, 1, 5)
    storage = make_stream(tmp_path, counts, read_interface=BACKENDS[backend](), parts=parts)
    requests = every_window(sum(counts))
    check_windows(READ["sync"](storage, requests), counts, requests)
    with storage.sync_reader() as stream:
        assert [stream.length(shard) for shard in range(stream.num_shards)] == list(counts)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_shards_any_window(data: st.DataObject) -> None:
    counts = data.draw(shard_counts(max_shards=6, max_count=40))
    backend = data.draw(st.sampled_from(sorted(BACKENDS)))
    requests = data.draw(st.lists(windows(counts), min_size=1, max_size=8))
    with tempfile.TemporaryDirectory() as folder:
        storage = make_stream(
            Path(folder), counts, read_interface=BACKENDS[backend](), parts=data.draw(st.integers(1, 3))
        )
        for read in READ.values():
            check_windows(read(storage, requests), counts, requests)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_each_window_of_many_read_at_once_is_told_its_own_shards(parts: int, length: int, tmp_path: Path) -> None:
    """Also where one ends in a shard in which the next begins, in another of its parts."""
    counts = (11, 0, 9, 1)
    storage = make_stream(tmp_path, counts, parts=parts)
    with StreamDataset(storage, length).sync_reader() as reader:
        source: Any = reader.batch_source()
        for seed in range(20):
            order = np.random.default_rng(seed).permutation(len(reader))
            requests = [(index * length, length) for index in order.tolist()]
            check_windows(source.samples(source.prepare(order), 0, order.size), counts, requests)


@pytest.mark.parametrize(
    "dtype",
    [
        "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "?", "<c8", "S3",
        [("tokens", "<u2")],
        [("tokens", "<i4"), ("mask", "?"), ("weight", "<f4")],
        [("one", "u1"), ("three", "<i2", (3,)), ("grid", "<f8", (2, 2))],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("backend", ["pread", "mmap", "user"])
def test_every_dtype(dtype: Any, backend: str, tmp_path: Path) -> None:
    counts = (300, 0, 7)
    storage = make_stream(
        tmp_path, counts, dtype, stream_format=IdStreamFormat(dtype), read_interface=BACKENDS[backend]()
    )
    values = record_values(dtype, 0, 307)
    for index, length in ((0, 307), (295, 10), (306, 4), (0, 0)):
        (window,) = READ["sync"](storage, [(index, length)])
        wanted = np.array(naive_window([values.tolist()], index, length), np.dtype(dtype))
        assert window.elements.dtype == np.dtype(dtype)
        assert window.elements.shape == (length,)
        np.testing.assert_array_equal(window.elements, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reader", READ)
def test_fields_arrive_as_a_mapping(backend: str, reader: str, tmp_path: Path) -> None:
    dtype = np.dtype([("tokens", "<i4"), ("mask", "?"), ("pair", "<u2", (2,))])
    storage = make_stream(tmp_path, (5, 4), dtype, read_interface=BACKENDS[backend]())
    (window,) = READ[reader](storage, [(3, 8)])
    order = naive_window([range(9)], 3, 8)
    assert list(window) == ["tokens", "mask", "pair"]
    assert window["tokens"].tolist() == order and window["tokens"].dtype == np.dtype("<i4")
    assert window["mask"].tolist() == [bool(i & 1) for i in order] and window["mask"].dtype == np.dtype("?")
    assert window["pair"].tolist() == [[i, i] for i in order] and window["pair"].dtype == np.dtype("<u2")


@pytest.mark.parametrize("reader", READ)
def test_counts(reader: str, tmp_path: Path) -> None:
    counts = (3, 0, 5, 0)
    storage = make_stream(tmp_path, counts)
    if reader == "sync":
        with storage.sync_reader() as stream:
            assert (stream.num_shards, stream.total_length) == (4, 8)
            assert [stream.length(shard) for shard in range(4)] == list(counts)
    else:

        async def main() -> None:
            async with storage.async_reader() as stream:
                assert (stream.num_shards, stream.total_length) == (4, 8)
                assert [await stream.length(shard) for shard in range(4)] == list(counts)

        asyncio.run(main())
    for shard in (-1, 4, 2**40):
        with pytest.raises(IndexError, match=str(shard)):
            READ[reader](storage, [(shard,)], "length")


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize(
    ("index", "length"), [(-1, 1), (8, 1), (8, 0), (9, 1), (0, -1), (-8, 8), (2**63, 1), (2**70, 1), (0, -(2**70))]
)
def test_windows_outside_are_index_errors(index: int, length: int, reader: str, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (3, 5))
    with pytest.raises(IndexError, match=str(index if index else length)):
        READ[reader](storage, [(index, length)])


def test_indexes_may_be_numpy_integers_but_no_floats(tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (3, 5))
    with storage.sync_reader() as stream:
        assert stream.read(np.int32(2), np.uint8(3)).elements.tolist() == [2, 3, 4]
        assert stream.length(np.int64(1)) == 5
        for wrong in (1.0, "1", None):
            with pytest.raises((TypeError, ValueError), match="integer"):
                stream.read(wrong, 1)


def test_a_stream_without_elements_has_no_windows(tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (0, 0))
    with storage.sync_reader() as stream:
        assert (stream.num_shards, stream.total_length) == (2, 0)
        with pytest.raises(IndexError):
            stream.read(0, 0)


# --- lives ------------------------------------------------------------------------------------


def test_a_storage_opens_nothing_and_is_picklable(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(StreamStorage(tmp_path / "later", StreamNumpyFormat(TOKENS))))
    storage.sync_reader(), storage.async_reader(), storage.sync_writer()
    assert list(tmp_path.iterdir()) == []
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(3, dtype=np.int32)})
    again = pickle.loads(pickle.dumps(storage))
    assert READ["sync"](again, [(0, 3)])[0]["tokens"].tolist() == [0, 1, 2]


def test_open_and_close_by_hand(tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (3,))
    reader = storage.sync_reader()
    for use in (
        lambda: reader.read(0, 1),
        lambda: reader.num_shards,
        lambda: reader.total_length,
        lambda: reader.length(0),
    ):
        with pytest.raises(RuntimeError, match="open"):
            use()
    reader.close()
    for _ in range(2):
        reader.open()
        with pytest.raises(RuntimeError, match="open already"):
            reader.open()
        assert reader.read(1, 1).elements.tolist() == [1]
        reader.close()
        reader.close()
    with pytest.raises(RuntimeError, match="open"):
        reader.read(0, 1)


def test_open_and_close_by_hand_async(tmp_path: Path) -> None:
    reader = make_stream(tmp_path, (3,)).async_reader()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="open"):
            await reader.read(0, 1)
        await reader.close()
        for _ in range(2):
            await reader.open()
            assert (await reader.read(1, 1)).elements.tolist() == [1]
            await reader.close()
            await reader.close()
        with pytest.raises(RuntimeError, match="open"):
            await reader.read(0, 1)

    asyncio.run(main())
    asyncio.run(main())


def test_the_example_of_the_performance_tips(tmp_path: Path) -> None:
    from guideloom.io import PosixPreadIO, SeekIO

    backend = PosixPreadIO() if PosixPreadIO.is_supported() else SeekIO()
    storage = StreamStorage(tmp_path, StreamNumpyFormat(np.dtype([("tokens", "<i4")])), read_interface=backend)
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(8, dtype=np.int32)})
    with storage.sync_reader() as reader:
        assert reader.read(2, 4)["tokens"].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_writing_into_a_window_changes_nothing_else(backend: str, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (6,), read_interface=BACKENDS[backend]())
    with storage.sync_reader() as reader:
        first, second = reader.read(0, 6).elements, reader.read(0, 6).elements
        if first.flags.writeable:
            first[:] = -1
        assert second.tolist() == reader.read(0, 6).elements.tolist() == list(range(6))
    assert second.tolist() == list(range(6)), "a window must outlive its reader"
    assert READ["sync"](storage, [(0, 6)])[0].elements.tolist() == list(range(6))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_reader_in_many_threads(backend: str, tmp_path: Path) -> None:
    counts = (7, 0, 30, 11)
    requests = [(i, 1 + 3 * i) for i in range(48)]
    storage = make_stream(tmp_path, counts, read_interface=BACKENDS[backend]())
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)
    with storage.sync_reader() as reader:

        def work() -> None:
            barrier.wait()
            try:
                for _ in range(3):
                    check_windows([reader.read(*request) for request in requests], counts, requests)
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]


def test_two_readers_of_two_storages(tmp_path: Path) -> None:
    one = make_stream(tmp_path / "one", (3,), read_interface=MmapIO())
    two = make_stream(tmp_path / "two", (5,), read_interface=MmapIO())
    with one.sync_reader() as first, two.sync_reader() as second:
        assert (first.total_length, second.total_length) == (3, 5)
        assert second.read(4, 1).elements.tolist() == [4]
        assert first.read(2, 2).elements.tolist() == [2, 0]


def test_a_big_endian_stream_dtype_keeps_its_values(tmp_path: Path) -> None:
    storage = StreamStorage(tmp_path, IdStreamFormat(">i4"))
    with storage.sync_writer() as writer:
        writer.append(0, np.array([1, 2, -3], "<i4"))
    (window,) = READ["sync"](storage, [(0, 3)])
    assert window.elements.astype(int).tolist() == [1, 2, -3]
    (elements,) = tmp_path.glob("*.elements.bin")
    assert np.fromfile(elements, "<i4").tolist() == [1, 2, -3]
