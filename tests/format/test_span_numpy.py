"""``SpanNumpyFormat``: what a record with spans becomes, and comes back as, through files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import SpanNumpyFormat, StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamWithMetaStorage
from guideloom.errors import ArgumentError, PackError, WrongKindError
from guideloom.io import PosixPreadIO
from guideloom.types import SpanStorageFormat

FIELDS = [("token", "<u2"), ("score", "<f4", (2,))]


def test_is_a_format_of_spans() -> None:
    fmt = SpanNumpyFormat([("token", ">u2")])
    assert isinstance(fmt, SpanStorageFormat)
    assert fmt.format_name == "SpanNumpyFormat"
    assert fmt.stream_dtype == np.dtype([("token", "<u2")])
    assert repr(fmt) == "SpanNumpyFormat([('token', '<u2')])"


@settings(max_examples=40)
@given(
    records=st.lists(st.lists(st.tuples(st.integers(1, 5), st.binary(max_size=4)), max_size=4), min_size=1, max_size=4),
    length=st.integers(1, 6),
)
def test_windows_know_their_spans(records: list[list[tuple[int, bytes]]], length: int) -> None:
    spans = [span for record in records for span in record]
    owner = [number for number, (count, _) in enumerate(spans) for _ in range(count)]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 65536, len(owner))
    scores = rng.random((len(owner), 2)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        storage = StreamWithMetaStorage(Path(folder), SpanNumpyFormat(FIELDS), PosixPreadIO())
        with storage.sync_writer() as writer:
            begin = 0
            for record in records:
                end = begin + sum(count for count, _ in record)
                writer.append(
                    0,
                    {
                        "token": tokens[begin:end].tolist(),
                        "score": scores[begin:end],
                        "span_lengths": [count for count, _ in record],
                        "span_payloads": [payload for _, payload in record],
                    },
                )
                begin = end
        dataset = StreamDataset(storage, length)
        with dataset.sync_reader() as windows:
            for number in range(len(windows)):
                window = windows[number]
                inside = range(number * length, (number + 1) * length)
                assert list(window) == ["token", "score", "span_index", "span_payloads"]
                assert window["token"].tolist() == tokens[inside].tolist()
                assert window["score"].tolist() == scores[inside].tolist()
                touched = sorted({owner[element] for element in inside})
                assert window["span_index"].tolist() == [touched.index(owner[element]) for element in inside]
                assert [bytes(payload) for payload in window["span_payloads"]] == [spans[span][1] for span in touched]
            num_windows = len(windows)
        if num_windows:
            with StatefulDataLoader(dataset, None, local_batch_size=num_windows, device="cpu") as loader:
                batch = next(iter(loader))
            assert sorted(batch) == ["score", "span_bounds", "span_index", "span_offsets", "span_payload", "token"]
            assert batch["token"].tolist() == tokens[: num_windows * length].reshape(-1, length).tolist()


def test_a_record_is_one_span_unless_it_says_otherwise() -> None:
    fmt = SpanNumpyFormat([("token", "<u2")])
    elements, lengths, payloads = fmt.pack_spans({"token": np.arange(3)})
    assert (elements["token"].tolist(), lengths, payloads) == ([0, 1, 2], [3], [b""])
    elements, lengths, payloads = fmt.pack_spans({"token": []})
    assert (elements.size, lengths, payloads) == (0, [], [])
    _, lengths, payloads = fmt.pack_spans({"token": np.arange(3), "span_lengths": np.array([1, 2])})
    assert (list(lengths), payloads) == ([1, 2], [b"", b""])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"token": [70000]}, "field 'token': value 70000 at position 0 does not fit <u2"),
        ({"tokens": [1]}, "expected a record with the fields 'token', got one without 'token' and with 'tokens'"),
        ({"token": [1], "span_payload": [b""]}, "got one with 'span_payload' besides"),
        ([1, 2], "expected a mapping of fields, 'span_lengths' and 'span_payloads', got list"),
        ({"token": [1, 2], "span_lengths": [1]}, "must give lengths that sum to the 2 elements, got at least 1"),
        ({"token": [1, 2], "span_lengths": [2, 0]}, "gives span 1 a length of 0"),
        ({"token": [1], "span_payloads": [b"", b""]}, "must give one payload a span, got 1 lengths and 2 payloads"),
        ({"token": [1], "span_payloads": b"x"}, "must give a sequence of payloads, one a span, got one bytes"),
        ({"token": [1], "span_payloads": ["x"]}, "str"),
    ],
)
def test_what_cannot_be_stored_is_refused(data: Any, message: str, tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, SpanNumpyFormat([("token", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"token": [1]})
        with pytest.raises(PackError) as caught:
            writer.append(0, data)
        assert message in str(caught.value)
        writer.append(0, {"token": [2]})
    with storage.sync_reader() as reader:
        assert reader.read(0, 2)["token"].tolist() == [1, 2]


def test_names_that_batches_use_are_refused() -> None:
    with pytest.raises(ArgumentError, match="do not begin with span_, got span_index: batches have the spans"):
        SpanNumpyFormat([("token", "<u2"), ("span_index", "<i4")])
    with pytest.raises(ArgumentError, match="expected a structured dtype"):
        SpanNumpyFormat("<u2")


def test_another_built_in_format_is_refused(tmp_path: Path) -> None:
    with StreamWithMetaStorage(tmp_path, SpanNumpyFormat([("token", "<u2")])).sync_writer() as writer:
        writer.append(0, {"token": [1]})
    other: Any = StreamNumpyFormat([("token", "<u2")])
    with pytest.raises((WrongKindError, ArgumentError)):
        StreamWithMetaStorage(tmp_path, other).sync_reader().open()
