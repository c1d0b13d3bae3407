"""Writers: what lands in the files, what is refused, and that a failing append changes nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from guideloom._base.errors import (
    ArgumentError,
    ForeignDataError,
    InUseError,
    NotOpenError,
    OutOfRangeError,
    PackError,
    ShardExistsError,
    WrongKindError,
)
from guideloom._storage import disk, session
from guideloom._storage.record import decode_record
from guideloom._storage.writer import DocumentWriter, StreamWithMetaWriter, StreamWriter
from tests.storage.support import (
    KINDS,
    Raw,
    Spans,
    Tokens,
    names,
    opened,
    record_of,
    shards_of,
    write,
    writer,
    written,
)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: Any, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "with parents"
    numbers = {0: range(5), 1: [], 2: range(100, 101), 3: range(700)}
    write(kind, folder, numbers)
    for listing in (True, False):
        catalog = opened(kind, folder, listing=listing)
        assert shards_of(folder, catalog) == [written(kind, numbers[shard]) for shard in range(4)]
        assert catalog.shard.tolist() == [0, 1, 2, 3]
        assert catalog.identity is not None and catalog.identity.startswith("v2:")
    assert not [name for name in names(folder) if name.startswith(".tmp")]


@given(data=st.data())
def test_any_sequence_of_appends(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small buffers and blocks of any fill: the files hold the appends end to end, and every block's checksum."""
    folder = tmp_path_factory.mktemp("appends")
    sizes = data.draw(st.lists(st.integers(0, 3000), max_size=12))
    expected = [b"%d" % (index % 10) * size for index, size in enumerate(sizes)]
    limit = data.draw(st.sampled_from([600, 4096, 1 << 20]))
    with DocumentWriter(folder, Raw()) as opened_writer:
        opened_writer.create(0)
        opened_writer._buffer_limit = limit
        for document in expected:
            opened_writer.append(0, data.draw(st.sampled_from([bytes, bytearray, memoryview]))(document))
    assert shards_of(folder, opened("document", folder)) == [expected]


@given(
    sizes=st.lists(st.one_of(st.integers(0, 12), st.integers(0, 300)), max_size=40),
    limit=st.sampled_from([1, 8, 17, 64, 200]),
    failing=st.sets(st.integers(0, 40)),
)
def test_documents_beside_the_bounds_of_the_buffers(
    sizes: list[int], limit: int, failing: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever fits or does not, and whichever writes fail before they are tried again: the documents, end to end."""
    folder = tmp_path_factory.mktemp("bounds")
    expected = [b"%d" % (index % 10) * size for index, size in enumerate(sizes)]
    num_writes = 0

    def fail(step: str, path: str) -> None:
        nonlocal num_writes
        if step == "write":
            num_writes += 1
            if num_writes in failing:
                raise OSError(errno.ENOSPC, "the disk is full", path)

    with DocumentWriter(folder, Raw()) as opened_writer:
        opened_writer.create(0)
        opened_writer._buffer_limit = limit
        part = opened_writer._parts[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, "before", fail)
            for index, document in enumerate(expected):
                appended = False
                while not appended:
                    with contextlib.suppress(OSError):
                        opened_writer.append(0, document)
                        appended = True
                    assert opened_writer.length(0) == index + appended
                held = part.payload.pending
                assert held + 8 * len(part.sizes) <= (limit if held else limit + 8)
    assert shards_of(folder, opened("document", folder)) == [expected]


def test_offsets_are_written_out_less_often_than_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: dict[str, int] = {"offsets": 0, "payload": 0}

    def count(step: str, path: str) -> None:
        if step == "write" and not path.endswith("record"):
            writes[path.rpartition(".")[2]] += 1

    expected = [b"%05d" % index * 100 for index in range(1000)]
    with DocumentWriter(tmp_path, Raw()) as opened_writer:
        opened_writer.create(0)
        opened_writer._buffer_limit = 4096
        with monkeypatch.context() as patch:
            patch.setattr(disk, "before", count)
            for document in expected:
                opened_writer.append(0, document)
    assert writes["payload"] >= 1000 * 500 / 4096
    assert 10 < writes["offsets"] <= 1000 * 8 / (4096 / 16) + 1
    assert shards_of(tmp_path, opened("document", tmp_path)) == [expected]


def test_a_thread_that_asks_for_the_length_sees_no_append_half_done(tmp_path: Path) -> None:
    askers: list[threading.Thread] = []
    seen: list[int] = []

    class Sizes(array):  # type: ignore[type-arg]
        def __delitem__(self, key: Any) -> None:
            # Within a flush: what was written out is counted, and not yet gone from here.
            asker = threading.Thread(target=lambda: seen.append(opened_writer.length(0)))
            askers.append(asker)
            asker.start()
            asker.join(0.1)
            super().__delitem__(key)

    with DocumentWriter(tmp_path, Raw()) as opened_writer:
        opened_writer.append(0, b"abc")
        part = opened_writer._parts[0]
        part.sizes = Sizes(part.sizes.typecode, part.sizes)
        opened_writer.append(0, bytes(2 * opened_writer._buffer_limit))
        with opened_writer._lock:
            part.flush()
        askers[0].join()
    assert seen == [2]


def test_checksums_are_those_of_the_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pieces = [rng.integers(0, 1 << 30, size, dtype=np.int32) for size in (10, 262_144, 100_000, 5, 700_000)]
    with StreamWriter(tmp_path, Tokens()) as stream:
        for piece in pieces:
            stream.append(0, piece)
    record = decode_record((tmp_path / "0000000-0000.commit.json").read_bytes(), "0000000-0000.commit.json")
    raw = (tmp_path / record.data_name("elements")).read_bytes()
    assert raw == np.concatenate(pieces).tobytes()
    entry = record.files["elements"]
    assert entry.size == len(raw)
    sums = [xxhash.xxh3_64_intdigest(raw[start : start + (1 << 20)]) for start in range(0, len(raw), 1 << 20)]
    assert np.frombuffer(entry.sums, "<u8").tolist() == sums


def test_the_record_is_plain_json_with_the_users_notes(tmp_path: Path) -> None:
    notes = {"tokenizer": "bpe", "nested": [1, {"ü": None}]}
    with writer("stream", tmp_path, metadata=notes) as stream:
        stream.append(0, [1, 2, 3])
    value = json.loads((tmp_path / "0000000-0000.commit.json").read_text())
    assert value["metadata"] == notes
    assert (value["kind"], value["count"], value["dtype"], value["format"]) == ("stream", 3, "<i4", "Tokens")
    assert np.fromfile(tmp_path / value["files"]["elements"]["name"], value["dtype"]).tolist() == [1, 2, 3]
    assert opened("stream", tmp_path).metadata == notes


@pytest.mark.parametrize("kind", KINDS)
def test_bad_shard_numbers(kind: Any, tmp_path: Path) -> None:
    with writer(kind, tmp_path) as opened_writer:
        opened_writer.append(np.int64(1), record_of(kind, 1))
        for wrong in (True, 1.0, "1", None, [1]):
            with pytest.raises(ArgumentError, match="shard number"):
                opened_writer.append(wrong, record_of(kind, 1))
        with pytest.raises(OutOfRangeError, match="-1"):
            opened_writer.append(-1, record_of(kind, 1))
        with pytest.raises(ArgumentError):
            opened_writer.append(2**31, record_of(kind, 1))
        opened_writer.create(0)
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [[], written(kind, [1])]


@pytest.mark.parametrize("kind", KINDS)
def test_open_and_closed(kind: Any, tmp_path: Path) -> None:
    opened_writer = writer(kind, tmp_path)
    opened_writer.close()
    with pytest.raises(NotOpenError):
        opened_writer.append(0, record_of(kind, 1))
    opened_writer.open()
    with pytest.raises(InUseError):
        opened_writer.open()
    opened_writer.append(0, record_of(kind, 1))
    opened_writer.close()
    opened_writer.close()
    with pytest.raises(NotOpenError):
        opened_writer.append(0, record_of(kind, 1))
    opened_writer.open()
    with pytest.raises(ShardExistsError, match='mode="append"'):
        opened_writer.append(0, record_of(kind, 1))
    opened_writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_leaves_the_writer_to_its_parent(kind: Any, tmp_path: Path) -> None:
    """Also a shard that was begun: the child would write into the parent's file."""
    with writer(kind, tmp_path) as session_of_parent:
        session_of_parent.append(0, record_of(kind, 1))
        session_of_parent._parts[0].flush()
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                for shard in (0, 1):
                    with pytest.raises(InUseError, match="another process"):
                        session_of_parent.append(shard, record_of(kind, 2))
                    refused += 1
                session_of_parent.abandon()
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        session_of_parent.append(0, record_of(kind, 3))
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [written(kind, [1, 3])]


# --- what pack gives ---


def test_stream_values_in_other_byte_order_or_layout_are_converted(tmp_path: Path) -> None:
    struct = np.dtype([("token", "<u2"), ("weight", "<f8", (2,))])
    aligned = np.dtype(
        {"names": ["token", "weight"], "formats": ["<u2", ("<f8", (2,))], "offsets": [0, 8], "itemsize": 24}
    )
    values = np.zeros(4, aligned)
    values["token"] = [1, 2, 3, 4]
    with StreamWriter(tmp_path / "a", Tokens(aligned)) as stream:
        stream.append(0, values)
        stream.append(0, values[::2].astype(struct.newbyteorder(">")))
        stream.append(0, values[:0])
    catalog = opened("stream", tmp_path / "a", aligned)
    assert catalog.dtype == struct
    assert np.fromfile(tmp_path / "a" / catalog.files[0], struct)["token"].tolist() == [1, 2, 3, 4, 1, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(3, "<i8"),
        np.zeros(3, "<u4"),
        np.zeros(3, [("token", "<i4")]),
        np.zeros((3, 1), "<i4"),
        np.int32(3),
        np.zeros(3, "<f4"),
        (1, 2, 3),
        b"1234",
        np.ma.masked_array(np.zeros(3, "<i4"), [True, False, False]),
        np.array([None]),
    ],
)
def test_a_stream_pack_that_gives_something_else(wrong: Any, tmp_path: Path) -> None:
    with StreamWriter(tmp_path, Tokens()) as stream:
        stream.append(0, [1])
        for shard in (0, 1):
            with pytest.raises(PackError, match="1-D|dtype"):
                stream.append(shard, wrong)
    assert shards_of(tmp_path, opened("stream", tmp_path)) == [[1]]


def test_document_buffers_of_any_shape(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype="<i2").reshape(3, 4)
    with DocumentWriter(tmp_path, Raw()) as documents:
        documents.append(0, memoryview(matrix))
        documents.append(0, memoryview(matrix)[::2])
        documents.append(0, memoryview(b"abcdef")[::-2])
        documents.append(0, memoryview(np.zeros((0, 3))))
        for wrong in ("text", np.zeros(3), None, 3, [b"x"]):
            with pytest.raises(PackError):
                documents.append(0, wrong)
    expected = [matrix.tobytes(), matrix[::2].tobytes(), b"fdb", b""]
    assert shards_of(tmp_path, opened("document", tmp_path)) == [expected]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(1, b"a", 1), (2, b"b", 2), (1, b"c", 3)], "again"),
        ([([1], b"a", 1), ([2], b"b", 2), ([1], b"c", 3)], "again"),
        ([(1, None, 1), (1, b"late", 2)], "no payload"),
        ([(1, b"a", 1), (2, None, 2)], "no payload"),
        ([(1, "text", 1)], "bytes"),
    ],
)
def test_spans_that_are_refused(data: Any, message: str, tmp_path: Path) -> None:
    with StreamWithMetaWriter(tmp_path, Spans()) as spans:
        spans.append(0, [(9, b"z", 7)])
        for shard in (0, 1):
            with pytest.raises(PackError, match=message):
                spans.append(shard, data)
        # Keys are compared within one append only, and later payloads of a span do not count.
        spans.append(0, [(9, b"y", 8), (9, b"ignored", 9)])
    assert shards_of(tmp_path, opened("stream_with_meta", tmp_path)) == [[(7, b"z"), (8, b"y"), (9, b"y")]]


class Miscounted(Spans):
    def __init__(self, pairs: int, elements: int) -> None:
        self.pairs, self.elements = pairs, elements
        self.closed = False

    def size(self, data: Any) -> int:
        return 5

    def pack(self, data: Any) -> Any:
        try:
            for index in range(self.pairs):
                yield 0, (None if index else b"p")
        finally:
            self.closed = True
        return np.zeros(self.elements, "<i4")


@pytest.mark.parametrize(("pairs", "elements"), [(4, 5), (0, 5), (6, 5), (10**12, 5), (5, 4), (5, 6)])
def test_spans_are_counted(pairs: int, elements: int, tmp_path: Path) -> None:
    storage_format = Miscounted(pairs, elements)
    with StreamWithMetaWriter(tmp_path, storage_format) as spans, pytest.raises(PackError, match="size"):
        spans.append(0, None)
    assert storage_format.closed
    assert names(tmp_path) == []


def test_an_error_of_the_users_pack_is_the_one_that_arrives(tmp_path: Path) -> None:
    class Failing(Spans):
        def pack(self, data: Any) -> Any:
            yield 1, b"a"
            raise ValueError("theirs")

    with StreamWithMetaWriter(tmp_path, Failing()) as spans, pytest.raises(ValueError, match=r"^theirs$"):
        spans.append(0, [1, 2])


# --- arguments ---


@pytest.mark.parametrize("notes", [{1: 2}, {"a": float("nan")}, {"a": object()}, [1], {"a": "x" * (1 << 20)}])
def test_metadata_that_are_no_json(notes: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="metadata"):
        writer("stream", tmp_path, metadata=notes)


@pytest.mark.parametrize("dtype", ["O", "V0", "S0"])
def test_dtypes_that_cannot_be_stored(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError):
        StreamWriter(tmp_path, Tokens(dtype))


def test_other_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="mode"):
        writer("stream", tmp_path, "w")
    with pytest.raises(ArgumentError, match=r"pathlib\.Path"):
        writer("stream", str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="stream_dtype"):
        StreamWriter(tmp_path, Raw())  # type: ignore[arg-type]
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link"):
        with pytest.raises(ForeignDataError, match="found a file, or a link to nothing: give another path"):
            writer("stream", path).open()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_one_folder_holds_one_kind(kind: Any, other: Any, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1]})
    for manifest in (True, False):
        if not manifest:
            (tmp_path / "manifest.json").unlink()
        opened_writer = writer(other, tmp_path, "append")
        if kind == other:
            opened_writer.open()
            opened_writer.close()
        else:
            with pytest.raises(WrongKindError, match="Storage"):
                opened_writer.open()


def test_one_folder_holds_one_dtype_and_one_built_in_format(tmp_path: Path) -> None:
    write("stream", tmp_path / "a", {0: [1]})
    with pytest.raises(WrongKindError, match=r"<u2.*<i4"):
        StreamWriter(tmp_path / "a", Tokens("<u2"), "append").open()
    StreamWriter(tmp_path / "a", Tokens(">i4"), "append").open()

    built_in = type("DocumentPickleFormat", (Raw,), {})
    other = type("DocumentJsonFormat", (Raw,), {})
    with DocumentWriter(tmp_path / "b", built_in()) as documents:
        documents.append(0, b"")
    with pytest.raises(WrongKindError, match="use DocumentPickleFormat"):
        DocumentWriter(tmp_path / "b", other(), "append").open()
    DocumentWriter(tmp_path / "b", Raw(), "append").open()


def test_payloads_of_spans_are_written_out_before_they_exceed_their_buffer(tmp_path: Path) -> None:
    with StreamWithMetaWriter(tmp_path, Spans()) as spans:
        for number in range(5):
            spans.append(0, [(number, bytes(700 << 10), number)])
            assert spans._parts[0].payload.pending == 700 << 10  # two of them are more than 1 MiB


def test_buffers_shrink_as_shards_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_BUFFER_BUDGET_BYTES", 1 << 16)
    document = b"x" * 999
    with DocumentWriter(tmp_path, Raw()) as documents:
        for number in range(3000):
            documents.append(number % (1 + number // 50), document)
            held = sum(part.payload.buffer.getbuffer().nbytes for part in documents._parts.values())
            # One buffer may be over its limit by the last document before it is written out.
            assert held <= (1 << 16) + 1000 * len(documents._parts)
            assert all(part.payload.pending <= documents._buffer_limit for part in documents._parts.values())
    counts = opened("document", tmp_path).shard_counts
    assert counts.size == 60 and counts.sum() == 3000
