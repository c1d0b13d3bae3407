"""Documents through the public interface: every request order, backend and reader gives what was written."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import DocumentDataset, DocumentPickleFormat, DocumentStorage
from guideloom.testing import DocumentIds, make_documents
from guideloom.testing.strategies import document_requests, shard_counts
from tests.sweeps.support import BACKENDS, READ

SIZES = {"varied": None, "none": lambda i: 0, "some empty": lambda i: 0 if i % 3 else 9, "large": lambda i: 5_000 + i}


def wanted(counts: tuple[int, ...], size: Any) -> list[DocumentIds]:
    """What each document unpacks to; one of size 0 has no number."""
    owners = [shard for shard, count in enumerate(counts) for _ in range(count)]
    sizes = [8 + i % 5 if size is None else size(i) for i in range(len(owners))]
    return [DocumentIds(i if n else -1, shard, n) for i, (shard, n) in enumerate(zip(owners, sizes, strict=True))]


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("counts", [(1,), (0, 3), (2, 0, 0, 3, 0)], ids=lambda counts: "-".join(map(str, counts)))
def test_every_document(counts: tuple[int, ...], sizes: str, backend: str, reader: str, tmp_path: Path) -> None:
    storage = make_documents(tmp_path, counts, size=SIZES[sizes], read_interface=BACKENDS[backend]())
    documents = wanted(counts, SIZES[sizes])
    everything = range(len(documents))
    assert READ[reader](storage, [(i,) for i in everything]) == documents
    requests: list[Any] = [
        [],
        list(everything),
        list(everything)[::-1],
        [0] * 5,
        np.array([0, 0], np.uint8),
        tuple(everything),
    ]
    found = READ[reader](storage, [(request,) for request in requests], "read_many")
    assert [list(some) for some in found] == [[documents[i] for i in request] for request in requests]


@pytest.mark.parametrize("parts", [1, 3])
def test_each_document_is_told_its_own_shard_where_many_are_planned_at_once_and_alone(
    parts: int, tmp_path: Path
) -> None:
    counts = (7, 0, 5, 1)
    documents = wanted(counts, None)
    with DocumentDataset(make_documents(tmp_path, counts, parts=parts)).sync_reader() as reader:
        source: Any = reader.batch_source()
        order = np.random.default_rng(parts).permutation(len(reader))
        plan = source.prepare(order)
        cuts = [0, 2, 3, 8, order.size]
        found = [sample for lo, hi in pairwise(cuts) for sample in source.samples(plan, lo, hi)]
        assert plan.placement is not None, "what was placed for all is read in parts"
        assert [reader[index] for index in range(len(reader))] == documents
    assert found == [documents[index] for index in order.tolist()]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_shards_any_request(data: st.DataObject) -> None:
    counts = data.draw(shard_counts(max_shards=6))
    sizes = data.draw(st.sampled_from(sorted(SIZES)))
    backend = data.draw(st.sampled_from(sorted(BACKENDS)))
    requests = data.draw(st.lists(document_requests(sum(counts)), min_size=1, max_size=4))
    documents = wanted(counts, SIZES[sizes])
    with tempfile.TemporaryDirectory() as folder:
        storage = make_documents(
            Path(folder),
            counts,
            size=SIZES[sizes],
            read_interface=BACKENDS[backend](),
            parts=data.draw(st.integers(1, 3)),
        )
        for read in READ.values():
            found = read(storage, [(request,) for request in requests], "read_many")
            assert [list(some) for some in found] == [[documents[i] for i in request] for request in requests]


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("index", [-1, 5, 2**40, 2**64, -(2**64)])
def test_documents_outside_are_index_errors(index: int, reader: str, tmp_path: Path) -> None:
    storage = make_documents(tmp_path, (2, 3))
    with pytest.raises(IndexError, match=str(index)):
        READ[reader](storage, [(index,)])
    with pytest.raises(IndexError, match=str(index)):
        READ[reader](storage, [([0, index, 1],)], "read_many")


def test_indexes_are_integers(tmp_path: Path) -> None:
    with make_documents(tmp_path, (2, 3)).sync_reader() as reader:
        assert reader.read(np.int16(4)).id == 4
        for wrong in ([0.0], ["1"], np.zeros((2, 2), int), np.zeros(2), [True], np.zeros(2, bool)):
            with pytest.raises((TypeError, ValueError), match="integer"):
                reader.read_many(wrong)
        with pytest.raises(IndexError):
            reader.read_many(np.array([2**64 - 1], np.uint64))
        assert list(reader.read_many(np.array([], np.float64))) == []


@pytest.mark.parametrize("reader", READ)
def test_counts(reader: str, tmp_path: Path) -> None:
    counts = (0, 3, 0, 5)
    storage = make_documents(tmp_path, counts, parts=2)
    assert READ[reader](storage, [(shard,) for shard in range(4)], "length") == list(counts)
    for shard in (-1, 4):
        with pytest.raises(IndexError, match=str(shard)):
            READ[reader](storage, [(shard,)], "length")
    with storage.sync_reader() as documents:
        assert (documents.num_shards, documents.total_length) == (4, 8)


@pytest.mark.parametrize("reader", READ)
def test_pickled_documents_of_any_kind(reader: str, tmp_path: Path) -> None:
    records = [None, 1, "text", {"a": [1, 2]}, b"", (np.float64(1.5), "ü")]
    storage = DocumentStorage(tmp_path, DocumentPickleFormat())
    with storage.sync_writer() as writer:
        for i, record in enumerate(records):
            writer.append(i % 2, record)
    found = READ[reader](storage, [(list(range(6)),)], "read_many")[0]
    assert list(found) == records[::2] + records[1::2]


class _Raw:
    """Hands out the encoded buffer itself."""

    def pack(self, data: Any) -> Any:
        return data

    def unpack(self, encoded: Any, shard: int) -> Any:
        return encoded


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reader", READ)
def test_a_format_gets_a_buffer_that_numpy_can_view(backend: str, reader: str, tmp_path: Path) -> None:
    storage = DocumentStorage(tmp_path, _Raw(), read_interface=BACKENDS[backend]())
    written: list[Any] = [
        b"",
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(b"sliced")[::2],
        b"",
    ]
    with storage.sync_writer() as writer:
        for one in written:
            writer.append(0, one)
    found = READ[reader](storage, [(range(6),)], "read_many")[0]
    for one, buffer in zip(written, found, strict=True):
        assert isinstance(buffer, bytearray | memoryview)
        assert np.frombuffer(buffer, np.uint8).tobytes() == bytes(one) and len(buffer) == len(one)
    # The buffers are the caller's: all of them hold what was read, after later reads and after close.
    assert [bytes(buffer) for buffer in found] == [bytes(one) for one in written]


class _Angry:
    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded: Any, shard: int) -> Any:
        raise LookupError(f"no such thing in shard {shard}")


@pytest.mark.parametrize("reader", READ)
def test_an_error_of_the_format_reaches_the_caller_as_itself(reader: str, tmp_path: Path) -> None:
    storage = DocumentStorage(tmp_path, _Angry())
    with storage.sync_writer() as writer:
        writer.append(0, b"a")
        writer.append(1, b"b")
    with pytest.raises(LookupError, match="no such thing in shard 1"):
        READ[reader](storage, [(1,)])


def test_picklable_and_by_hand(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(make_documents(tmp_path, (2, 3))))
    reader = storage.sync_reader()
    for use in (
        lambda: reader.read(0),
        lambda: reader.read_many([]),
        lambda: reader.total_length,
        lambda: reader.length(0),
    ):
        with pytest.raises(RuntimeError, match="open"):
            use()
    for _ in range(2):
        reader.open()
        assert reader.read(3).id == 3
        reader.close()
        reader.close()

    async def main() -> None:
        other = storage.async_reader()
        with pytest.raises(RuntimeError, match="open"):
            await other.read(0)
        await other.open()
        assert (await other.read(3)).id == 3
        await other.close()
        await other.close()

    asyncio.run(main())
