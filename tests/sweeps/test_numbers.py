"""Offsets, counts and values beyond 16 and 32 bits, in sparse files."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentDataset, DocumentStorage, StatefulDataLoader, StreamDataset, StreamWithMetaStorage
from guideloom.testing import (
    CountingBackend,
    make_documents,
    make_spans,
    make_sparse_document,
    make_sparse_stream,
    make_stream,
)
from guideloom.testing.sparse import _grow
from tests.sweeps.support import BACKENDS, READ

OWN = ["seek", "pread", "advice", "mmap"]  # the others hold whole files in memory
EDGES = [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1]


class RawDocuments:
    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded: Any, shard: int) -> Any:
        return encoded


class RawSpans:
    """One span for each element."""

    stream_dtype = np.dtype("u1")

    def size(self, data: Any) -> int:
        return len(data)

    def pack(self, data: Any) -> Generator[tuple[int, bytes], None, Any]:
        for key in data:
            yield key, b""
        return np.zeros(len(data), "u1")

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> Any:
        return stream.tobytes(), document_index.tolist(), [bytes(payload) for payload in document_data]


def joined(documents: list[Any]) -> bytes:
    return b"|".join(bytes(document) for document in documents)


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", OWN)
@pytest.mark.parametrize("dtype", ["u1", "<i4"])
def test_element_indexes_around_32_bits(dtype: str, backend: str, reader: str, tmp_path: Path) -> None:
    count = 2**32 + 5
    marks = {index: 1 + i for i, index in enumerate([0, *EDGES, count - 1])}
    storage = make_sparse_stream(tmp_path, count, dtype, marks, read_interface=BACKENDS[backend]())
    requests = [(index, 1) for index in marks] + [(index - 1, 3) for index in EDGES] + [(count - 2, 4)]
    found = [window.elements.tolist() for window in READ[reader](storage, requests)]
    expected = [[marks.get((index + i) % count, 0) for i in range(length)] for index, length in requests]
    assert found == expected
    assert READ[reader](storage, [(0,)], "length") == [count]
    for outside in (count, 2**63 - 1):
        with pytest.raises(IndexError):
            READ[reader](storage, [(outside, 1)])


@pytest.mark.parametrize("backend", OWN)
def test_element_indexes_around_40_bits(backend: str, tmp_path: Path) -> None:
    count = 2**40 + 2
    marks = {0: 1, 2**32 + 1: 2, 2**40 - 1: 3, 2**40: 4, 2**40 + 1: 5}
    storage = make_sparse_stream(tmp_path, count, "u1", marks, shards_before=2, read_interface=BACKENDS[backend]())
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (3, count + 2)
        # The sparse shard begins at global element 2.
        for index, value in marks.items():
            assert reader.read(index + 2, 1).elements.tolist() == [value]
        around = reader.read(2**40 + 1, 6)
        assert around.elements.tolist() == [3, 4, 5, 0, 0, 1]
        assert (around.shards, around.shard_lengths) == ([2, 0, 1, 2], [3, 1, 1, 1])
    with StreamDataset(storage, 2**13).sync_reader() as windows:
        assert len(windows) == (count + 2) // 2**13
        last = windows[len(windows) - 1]
        assert last.elements[-2:].tolist() == [0, 0] and last.elements.size == 2**13
        assert windows[2**19].elements[2 + 1 : 5].tolist() == [2, 0]


def test_a_window_of_a_huge_stream_costs_what_a_window_costs(tmp_path: Path) -> None:
    backend = CountingBackend(BACKENDS["pread"]())
    storage = make_sparse_stream(tmp_path, 2**34, "<i4", {2**33: 7}, read_interface=backend)
    with storage.sync_reader() as reader:
        costs = []
        for index in (0, 2**33, 2**34 - 8):
            backend.reset()
            assert reader.read(index, 8).elements.size == 8
            counts = backend.matching("*.elements.bin")
            costs.append((counts.reads, counts.bytes_read))
    assert costs == [(1, 32)] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_document_of_70_000_tokens(backend: str, tmp_path: Path) -> None:
    size = 4 * 70_000
    storage = make_documents(tmp_path, (3, 2), size=lambda i: size if i == 1 else 8, read_interface=BACKENDS[backend]())
    for read in READ.values():
        found = read(storage, [([4, 1, 0, 1],)], "read_many")[0]
        assert [(document.id, document.size) for document in found] == [(4, 8), (1, size), (0, 8), (1, size)]


@pytest.mark.parametrize("backend", OWN)
def test_documents_behind_4_gib(backend: str, tmp_path: Path) -> None:
    size = 2**32 + 7
    storage = make_sparse_document(tmp_path, size, read_interface=BACKENDS[backend]())
    with storage.sync_reader() as reader:
        assert bytes(reader.read(1)) == b"end"


@pytest.mark.parametrize("backend", OWN)
def test_more_documents_than_32_bits_count(backend: str, tmp_path: Path) -> None:
    """All but the last are empty, so that their offsets are holes."""
    count = 2**32 + 5
    storage = DocumentStorage(tmp_path, RawDocuments(), BACKENDS[backend]())
    with storage.sync_writer() as writer:
        writer.append(0, b"end")
    offsets = {8: bytes(8), 8 * count: np.int64(3).tobytes()}
    _grow(tmp_path, 0, {"count": count}, {"offsets": (8 * count + 8, offsets), "payload": (3, {0: b"end"})})
    for read in READ.values():
        assert read(storage, [(0,)], "length") == [count]
        asked = [count - 1, 2**31, 2**32, 0, count - 1, *EDGES]
        found = [bytes(document) for document in read(storage, [(asked,)], "read_many")[0]]
        assert found == [b"end" if index == count - 1 else b"" for index in asked]
        with pytest.raises(IndexError):
            read(storage, [(count,)])
    options: dict[str, Any] = {"local_batch_size": 3, "drop_last": False, "device": "cpu"}
    with StatefulDataLoader(DocumentDataset(storage), joined, **options) as loader:
        assert loader.dataset_size == count
        loader.load_state_dict({**loader.state_dict(), "observation_offset": count - 4})
        assert list(loader) == [b"||", b"end"]


@pytest.mark.parametrize("backend", OWN)
def test_elements_and_payloads_of_spans_around_32_bits(backend: str, tmp_path: Path) -> None:
    count = 2**32 + 10
    firsts = [0, 2**31 + 1, 2**32 + 1, 2**32 + 6]
    offsets = [
        0,
        2**32 + 9,
        2**32 + 12,
        2**32 + 12,
    ]  # 4 GiB of the first span, which no window here touches; one is empty
    storage = StreamWithMetaStorage(tmp_path, RawSpans(), BACKENDS[backend]())
    with storage.sync_writer() as writer:
        writer.append(0, range(4))
    (record,) = (json.loads(path.read_bytes()) for path in tmp_path.glob("*.commit.json"))
    end = 2**32 + 15
    rows = np.array([*zip(firsts, offsets, strict=True), (count, end)], "<i8").tobytes()
    rows += np.array(firsts[:: record["stride"]], "<i8").tobytes()
    marks = {2**31 + 1: b"1", 2**32: b"2", 2**32 + 1: b"3", count - 1: b"4"}
    files: dict[str, Any] = {
        "elements": (count, marks),
        "spans": (len(rows), {0: rows}),
        "payload": (end, {2**32 + 9: b"onesix"}),
    }
    _grow(tmp_path, 0, {"count": count}, files)

    def expected(index: int, length: int) -> tuple[bytes, list[int], list[bytes]]:
        elements = b"".join(marks.get(at, b"\0") for at in range(index, index + length))
        spans = [sum(at >= first for first in firsts) - 1 for at in range(index, index + length)]
        payloads = [b"", b"one", b"", b"six"]
        return elements, [span - spans[0] for span in spans], [payloads[span] for span in sorted(set(spans))]

    requests = [(2**31 + 1, 3), (2**31 + 2, 1), (2**32 - 1, 4), (2**32 + 1, 1), (2**32 + 3, 7), (count - 1, 1)]
    for read in READ.values():
        assert read(storage, requests) == [expected(*request) for request in requests]
    first = 2**32 - 4
    with StatefulDataLoader(StreamDataset(storage, 4), None, local_batch_size=3, device="cpu") as loader:
        loader.load_state_dict({**loader.state_dict(), "observation_offset": first // 4})
        (batch,) = loader
    wanted = [expected(first + 4 * number, 4) for number in range(3)]
    assert batch["elements"].numpy().tobytes() == b"".join(elements for elements, _, _ in wanted)
    assert batch["span_index"].tolist() == [spans for _, spans, _ in wanted]
    payloads = [payload for _, _, window in wanted for payload in window]
    assert batch["span_payload"].numpy().tobytes() == b"".join(payloads)
    assert np.diff(batch["span_offsets"].numpy()).tolist() == [len(payload) for payload in payloads]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_a_document_of_3_gib(backend: str, tmp_path: Path) -> None:
    size = 3 * 2**30
    marks = {0: b"first", 2**31 - 2: b"middle", size - 4: b"last"}
    storage = make_sparse_document(tmp_path, size, marks, read_interface=BACKENDS[backend]())
    with storage.sync_reader() as reader:
        document = np.frombuffer(reader.read(0), np.uint8)
        assert document.size == size
        for offset, text in marks.items():
            assert document[offset : offset + len(text)].tobytes() == text
        assert int(np.count_nonzero(document)) == sum(map(len, marks.values()))


def test_more_than_65_535_shards_spans_and_values(tmp_path: Path) -> None:
    spans = [[1] * 65_538, [2]]
    storage = make_spans(tmp_path / "spans", spans, "<i4", per_append=70_000)
    with storage.sync_reader() as reader:
        window = reader.read(65_530, 10)
        assert window.spans == [*range(65_530, 65_538), 65_538, 65_538]
        whole = reader.read(0, 65_540)
        assert whole.spans == [*range(65_538), 65_538, 65_538]
    values = make_stream(tmp_path / "values", (65_540,), [("id", "<u4")])
    with values.sync_reader() as reader:
        assert reader.read(65_534, 4)["id"].tolist() == [65_534, 65_535, 65_536, 65_537]


def test_windows_longer_than_the_stream_many_times(tmp_path: Path) -> None:
    storage = make_stream(tmp_path / "stream", (3, 0, 4))
    with storage.sync_reader() as reader:
        window = reader.read(5, 700_001)
        np.testing.assert_array_equal(window.elements, (np.arange(700_001) + 5) % 7)
        assert sum(window.shard_lengths) == 700_001 and len(window.shards) == 200_001
    spans = make_spans(tmp_path / "spans", [[1, 2], [3]])
    with spans.sync_reader() as reader:
        found = reader.read(2, 6 * 1_000)
        np.testing.assert_array_equal(found.elements, (np.arange(6_000) + 2) % 6)
        assert found.spans[:8] == [1, 2, 2, 2, 0, 1, 1, 2]


@pytest.mark.parametrize("backend", OWN)
def test_sparse_streams_have_identities(backend: str, tmp_path: Path) -> None:
    identities = []
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        storage = make_sparse_stream(
            tmp_path / name, 2**33, "<i4", {2**32 + 9: value}, read_interface=BACKENDS[backend]()
        )
        with storage.sync_reader() as reader:
            identities.append(reader.identity)
    assert identities[0] == identities[1] != identities[2]


def test_payloads_larger_than_a_block(tmp_path: Path) -> None:
    storage = make_spans(tmp_path, [[2, 1, 3]], payload_size=lambda span: 2_500_000)
    with storage.sync_reader() as reader:
        found = reader.read(1, 4)
        assert (found.elements.tolist(), found.spans, found.payload_spans) == ([1, 2, 3, 4], [0, 1, 2, 2], [0, 1, 2])
