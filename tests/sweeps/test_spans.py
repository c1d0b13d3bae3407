"""Streams with metadata through the public interface: every element comes with its own span's payload."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import StreamDataset, StreamWithMetaStorage
from guideloom._read.spans import MAX_TABLE_BYTES
from guideloom.testing import IdSpanFormat, Span, SpanIds, make_spans, naive_span_window
from guideloom.testing.strategies import span_lengths, windows
from tests.sweeps.support import BACKENDS, READ

Spans = Sequence[Sequence[int]]
SHAPES: list[Spans] = [[[1]], [[5]], [[2, 1, 3]], [[], [2, 2]], [[1, 1, 1], [], [], [4]], [[3], [2, 1], []]]


def check(found: SpanIds, spans: Spans, index: int, length: int) -> None:
    expected = naive_span_window(spans, index, length)
    got = list(zip(found.elements.tolist(), found.shards, found.spans, strict=True))
    assert got == expected, (spans, index, length)
    touched = [span for i, (_, _, span) in enumerate(expected) if not i or span != expected[i - 1][2]]
    if index + length <= sum(map(sum, spans)):
        assert found.payload_spans == touched, (spans, index, length)
    else:
        # Around the end a span may be handed out once or each time it comes up; nothing else may be.
        assert set(found.payload_spans) == set(touched), (spans, index, length)


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spans", SHAPES, ids=str)
def test_every_window(spans: Spans, backend: str, reader: str, tmp_path: Path) -> None:
    storage = make_spans(tmp_path, spans, read_interface=BACKENDS[backend]())
    total = sum(map(sum, spans))
    requests = [(index, length) for index in range(total) for length in range(2 * total + 2)]
    for request, found in zip(requests, READ[reader](storage, requests), strict=True):
        check(found, spans, *request)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_each_window_of_many_read_at_once_is_told_the_shards_of_its_spans(length: int, tmp_path: Path) -> None:
    """Of shards of several parts, so that a shard is no position in a list of files."""
    storage = StreamWithMetaStorage(tmp_path, IdSpanFormat())
    owners: list[tuple[int, int]] = []
    for mode in ("create", "append", "append"):
        with storage.sync_writer(mode=mode) as writer:  # type: ignore[arg-type]
            for shard, lengths in enumerate([(2, 1, 4), (), (3,), (1, 1)]):
                spans = [(len(owners) + i, count) for i, count in enumerate(lengths)]
                writer.append(shard, Span(len(owners), spans))
                owners += [(shard, span) for span, count in spans for _ in range(count)]
    with StreamDataset(storage, length).sync_reader() as reader:
        source: Any = reader.batch_source()
        order = np.random.default_rng(length).permutation(len(reader))
        plan = source.prepare(order)
        found: list[SpanIds] = [*source.samples(plan, 0, 2), *source.samples(plan, 2, order.size)]
        with storage.sync_reader() as stream:
            elements = stream.read(0, len(owners)).elements
    for index, window in zip(order.tolist(), found, strict=True):
        assert window.elements.tolist() == elements[index * length :][:length].tolist()
        told = list(zip(window.shards, window.spans, strict=True))
        assert told == [owners[element] for element in window.elements.tolist()]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_spans_any_window(data: st.DataObject) -> None:
    spans = data.draw(span_lengths(max_spans=12, max_length=9))
    backend = data.draw(st.sampled_from(sorted(BACKENDS)))
    requests = data.draw(st.lists(windows([sum(map(sum, spans))]), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        storage = make_spans(
            Path(folder), spans, read_interface=BACKENDS[backend](), per_append=data.draw(st.integers(1, 5))
        )
        for read in READ.values():
            for request, found in zip(requests, read(storage, requests), strict=True):
                check(found, spans, *request)


@pytest.mark.parametrize("table_bytes", [0, MAX_TABLE_BYTES], ids=["samples", "tables in memory"])
@pytest.mark.parametrize("backend", ["pread", "mmap", "user"])
def test_many_spans_reach_past_every_sample_of_the_table(
    backend: str, table_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guideloom._read.spans.MAX_TABLE_BYTES", table_bytes)
    spans = [[1 + i % 3 for i in range(5_000)], [200, 1, 1]]
    storage = make_spans(tmp_path, spans, read_interface=BACKENDS[backend](), per_append=500)
    total = sum(map(sum, spans))
    requests = [(int(i), 7) for i in np.random.default_rng(1).integers(0, total - 7, 60)]
    requests += [(0, 9), (total - 205, 205), (total - 3, 3)]
    lookup = naive_span_window(spans, 0, total)
    for (index, length), found in zip(requests, READ["sync"](storage, requests), strict=True):
        got = list(zip(found.elements.tolist(), found.shards, found.spans, strict=True))
        assert got == lookup[index : index + length]


def test_counts_and_dtypes(tmp_path: Path) -> None:
    spans = [[2, 1], [], [4]]
    dtype = np.dtype([("tokens", "<u2"), ("weight", "<f4")])
    storage = make_spans(tmp_path, spans, dtype)
    with storage.sync_reader() as reader:
        assert (reader.num_shards, reader.total_length) == (3, 7)
        assert [reader.length(shard) for shard in range(3)] == [3, 0, 4]
        found = reader.read(2, 4)
        assert found.elements.dtype == dtype
        assert found.elements["tokens"].tolist() == found.elements["weight"].tolist() == [2, 3, 4, 5]
        assert found.spans == [1, 2, 2, 2]
        empty = reader.read(3, 0)
        assert (empty.elements.shape, empty.payload_spans, empty.spans) == ((0,), [], [])
        for index, length in ((7, 1), (-1, 1), (0, -1)):
            with pytest.raises(IndexError):
                reader.read(index, length)


def test_empty_and_large_payloads(tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Keyed())
    records = [([0, 0, 1], {0: b"", 1: b"x" * 300_000}), ([5], {5: memoryview(b"view")}), ([5], {5: bytearray()})]
    with storage.sync_writer() as writer:
        for keys, payloads in records:
            writer.append(0, [(key, payloads[key]) for key in keys])
    elements, index, payloads = READ["sync"](storage, [(0, 5)])[0]
    assert elements == [0, 1, 2, 0, 0]
    assert index == [0, 0, 1, 2, 3]
    assert payloads == [b"", b"x" * 300_000, b"view", b""]


class Keyed:
    """Yields the pairs it is given."""

    stream_dtype = np.dtype("<i4")

    def __init__(self, claims: int | None = None, returns: Any = None) -> None:
        self.claims = claims
        self.returns = returns

    def size(self, data: Sequence[tuple[Any, Any]]) -> int:
        return len(data) if self.claims is None else self.claims

    def pack(self, data: Sequence[tuple[Any, Any]]) -> Generator[tuple[Any, Any], None, Any]:
        yield from data
        return np.arange(len(data), dtype="<i4") if self.returns is None else self.returns

    def unpack(self, stream: Any, shard: Any, index: Any, data: Any) -> tuple[list[int], list[int], list[bytes]]:
        assert all(isinstance(payload, bytearray | memoryview) for payload in data)
        return stream.tolist(), index.tolist(), [bytes(payload) for payload in data]


def test_keys_are_compared_within_one_append_only(tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Keyed())
    with storage.sync_writer() as writer:
        writer.append(0, [("a", b"1"), ("a", None), ("b", b"2")])
        writer.append(0, [("b", b"3"), ("a", b"4"), ("a", b"not looked at")])
        assert writer.length(0) == 6
    _, index, payloads = READ["sync"](storage, [(0, 6)])[0]
    assert index == [0, 0, 1, 2, 3, 3]
    assert payloads == [b"1", b"2", b"3", b"4"]


def test_keys_may_be_anything_that_compares(tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Keyed())
    with storage.sync_writer() as writer:
        writer.append(0, [(None, b"1"), (None, None), ("b", b"2"), (np.int64(7), b"3"), (7, None), ("", b"4")])
    _, index, payloads = READ["sync"](storage, [(0, 6)])[0]
    assert index == [0, 0, 1, 2, 2, 3] and payloads == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("claims", [0, 1, 3, 2**62])
def test_size_must_be_what_pack_yields(claims: int, tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Keyed(claims=claims))
    with pytest.raises(ValueError, match=f"{claims}"), storage.sync_writer() as writer:
        writer.append(0, [("a", b"1"), ("a", None)])


@pytest.mark.parametrize(
    "returns",
    [np.arange(2, dtype="<i8"), np.arange(3, dtype="<i4"), np.zeros((2, 1), "<i4"), np.arange(1, dtype="<i4"), "text"],
    ids=["dtype", "long", "2-D", "short", "text"],
)
def test_pack_must_return_its_elements(returns: Any, tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Keyed(returns=returns))
    with pytest.raises((TypeError, ValueError)), storage.sync_writer() as writer:
        writer.append(0, [("a", b"1"), ("a", None)])


def test_pack_must_be_a_generator_that_returns(tmp_path: Path) -> None:
    class Lists(Keyed):
        def pack(self, data: Any) -> Any:
            return list(data)

    storage = StreamWithMetaStorage(tmp_path, Lists())
    with pytest.raises((TypeError, ValueError), match="generator"), storage.sync_writer() as writer:
        writer.append(0, [("a", b"1")])


def test_an_append_without_elements(tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, IdSpanFormat())
    with storage.sync_writer() as writer:
        writer.append(0, Span(0, []))
        writer.append(1, Span(0, [(0, 2)]))
        writer.append(1, Span(2, []))
        assert (writer.length(0), writer.length(1)) == (0, 2)
    check(READ["sync"](storage, [(0, 2)])[0], [[], [2]], 0, 2)


def test_no_index_beside_every_element(tmp_path: Path) -> None:
    make_spans(tmp_path, [[100] * 200], "<i4", payload_size=lambda span: 8, per_append=50)
    total = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix == ".bin")
    # 4 bytes an element, 8 a payload, 16 a row of the span table, and a little for its sample and end.
    assert total <= 20_000 * 4 + 200 * (8 + 16) + 200
