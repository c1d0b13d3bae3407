"""What writers take from formats: whole spans against spans element by element, and appends that are interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom import StreamWithMetaStorage
from guideloom._base import threads
from guideloom._base.errors import ArgumentError, CommitError, PackError
from guideloom._storage import disk
from guideloom._storage.names import MANIFEST
from guideloom._storage.writer import DocumentWriter, StreamWithMetaWriter, StreamWriter
from guideloom.types import SpanStorageFormat
from tests.storage.support import (
    KINDS,
    TOKEN,
    Raw,
    Tokens,
    names,
    opened,
    record_of,
    shards_of,
    writer,
    written,
)


class Sourced:
    """A record is (elements, lengths, payloads); only unpacking and the dtype, for both forms below."""

    stream_dtype = TOKEN

    def unpack(self, *arguments: Any) -> Any:
        return arguments


class Whole(Sourced):
    def pack_spans(self, data: Any) -> Any:
        return data


class Paired(Sourced):
    def size(self, data: Any) -> int:
        return len(data[0])

    def pack(self, data: Any) -> Generator[Any, None, Any]:
        elements, lengths, payloads = data
        for number, (length, payload) in enumerate(zip(lengths, payloads, strict=True)):
            for place in range(length):
                yield number, None if place else payload
        return elements


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


# --- whole spans ---


@given(
    appends=st.lists(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=40)), max_size=6), max_size=6),
    limit=st.sampled_from([64, 600, 1 << 20]),
    data=st.data(),
)
def test_whole_spans_and_pairs_give_the_same_folder(
    appends: Any, limit: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the containers and the buffers: files, records and manifest are equal, byte for byte."""
    as_lengths = data.draw(st.sampled_from([list, tuple, np.array, lambda n: np.array(n, np.uint8)]))
    as_payload = data.draw(st.sampled_from([bytes, bytearray, memoryview]))
    folders = []
    for form in (Whole, Paired):
        folders.append(tmp_path_factory.mktemp(form.__name__))
        storage_format = type("Same", (form,), {})()  # the record says the class's name
        with StreamWithMetaWriter(folders[-1], storage_format) as opened_writer:
            opened_writer.create(0)
            opened_writer._buffer_limit = limit
            start = 0
            for spans in appends:
                lengths = [length for length, _ in spans]
                elements = np.arange(start, start + sum(lengths), dtype=TOKEN)
                start += elements.size
                opened_writer.append(0, (elements, as_lengths(lengths), [as_payload(payload) for _, payload in spans]))
            assert opened_writer.length(0) == start
    assert folder_bytes(folders[0]) == folder_bytes(folders[1])
    spans = [span for append in appends for span in append]
    payloads = [payload for length, payload in spans for _ in range(length)]
    assert shards_of(folders[0], opened("stream_with_meta", folders[0])) == [list(enumerate(payloads))]


ELEMENTS = np.arange(5, dtype=TOKEN)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (None, "tuple"),
        ([ELEMENTS, [5], [b""]], "tuple"),
        ((ELEMENTS, [5]), "got a tuple of 2$"),
        ((ELEMENTS.astype("<i8"), [5], [b""]), "dtype.*, StreamNumpyFormat.pack refuses them"),
        ((ELEMENTS.reshape(1, 5), [5], [b""]), "1-D"),
        ((ELEMENTS, [5.0], [b""]), "integers"),
        ((ELEMENTS, [[5]], [b""]), "integers"),
        ((ELEMENTS, [[2], [1, 2]], [b"", b""]), "integers"),
        ((ELEMENTS, 5, [b""]), "integers"),
        ((ELEMENTS, [2, 3], [b""]), "2 lengths and 1 payloads"),
        ((ELEMENTS, [], []), "sum to the 5"),
        ((ELEMENTS, [2, 2], [b"", b""]), "sum to the 5"),
        ((ELEMENTS, [2, 4], [b"", b""]), "sum to the 5"),
        ((ELEMENTS, [5, 0], [b"", b""]), "span 1 a length of 0: .*leave out"),
        ((ELEMENTS, [6, -1], [b"", b""]), "span 1 a length of -1"),
        ((ELEMENTS, [2**62, 2**62, 2**62, 2**62, 5], [b""] * 5), "sum to the 5"),
        ((ELEMENTS, np.array([2**63 + 5]), [b""]), "sum to the 5"),
        ((ELEMENTS, [5], ["text"]), "bytes"),
        ((ELEMENTS, [5], [None]), "bytes"),
        ((ELEMENTS, [5], [np.zeros(3, "u1")]), "bytes"),
        ((ELEMENTS, [5], b"x"), "one bytes"),
        ((ELEMENTS, [5], 7), "sequence of payloads"),
    ],
)
def test_whole_spans_that_are_refused(packed: Any, words: str, tmp_path: Path) -> None:
    good = (ELEMENTS, [2, 3], (memoryview(np.arange(3, dtype="<i2")), b""))
    with StreamWithMetaWriter(tmp_path, Whole()) as spans:
        spans.append(0, good)
        for shard in (0, 1):
            with pytest.raises(PackError, match=rf"Whole\.pack_spans .*{words}"):
                spans.append(shard, packed)
    payload = np.arange(3, dtype="<i2").tobytes()
    expected = [(0, payload), (1, payload), (2, b""), (3, b""), (4, b"")]
    assert shards_of(tmp_path, opened("stream_with_meta", tmp_path)) == [expected]


def test_a_storage_takes_a_format_of_whole_spans(tmp_path: Path) -> None:
    storage = StreamWithMetaStorage(tmp_path, Whole())
    assert isinstance(Whole(), SpanStorageFormat) and not isinstance(Paired(), SpanStorageFormat)
    with storage.sync_writer() as spans:
        spans.append(0, (ELEMENTS, [2, 3], [b"a", b"bc"]))
    with storage.sync_reader() as reader:
        elements, shard, index, payloads = reader.read(1, 3)
    assert (elements.tolist(), shard.tolist(), index.tolist()) == ([1, 2, 3], [0, 0], [0, 1, 1])
    assert [bytes(payload) for payload in payloads] == [b"a", b"bc"]
    with pytest.raises(ArgumentError, match="size, pack"):
        StreamWithMetaStorage(tmp_path, Sourced())  # type: ignore[arg-type]


def test_whole_spans_win_where_a_format_has_both(tmp_path: Path) -> None:
    class Both(Paired):
        def pack(self, data: Any) -> Any:
            raise AssertionError("not asked")

        def pack_spans(self, data: Any) -> Any:
            return data

    with StreamWithMetaWriter(tmp_path, Both()) as spans:
        spans.append(0, (ELEMENTS, [5], [b"x"]))
    assert opened("stream_with_meta", tmp_path).total == 5


# --- buffers ---


@pytest.mark.parametrize("dtype", ["<M8[s]", "<U3", "S5", "V7", "?", [("a", "<u2"), ("b", "<f8", (2,))]])
def test_elements_of_any_dtype_pass_the_buffer(dtype: Any, tmp_path: Path) -> None:
    size = np.dtype(dtype).itemsize * 6
    values = (np.arange(size, dtype="u1") % 2).view(dtype)
    with StreamWriter(tmp_path, Tokens(dtype)) as stream:
        stream.append(0, values)
        stream.append(0, values[::2])
    raw = (tmp_path / opened("stream", tmp_path, dtype).files[0]).read_bytes()
    assert raw == values.tobytes() + values[::2].tobytes()


def test_a_large_payload_does_not_stay_in_memory(tmp_path: Path) -> None:
    with StreamWithMetaWriter(tmp_path, Whole()) as spans:
        for _ in range(3):
            spans.append(0, (ELEMENTS, [5], [bytes(3 << 20)]))
        spans._parts[0].flush()
        assert spans._parts[0].payload.buffer.getbuffer().nbytes == 0
    assert opened("stream_with_meta", tmp_path).total == 15


@pytest.mark.parametrize("sizes", [[1 << 20] * 9, [5 << 20, 1, 9 << 20], [(1 << 20) - 3] * 13])
def test_the_device_is_told_once_of_each_piece(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole pieces, in order, none twice, none that is not written yet: a page is not sent out half full."""
    told: list[tuple[int, int]] = []

    def start(descriptor: int, offset: int, size: int) -> None:
        assert os.fstat(descriptor).st_size >= offset + size
        told.append((offset, size))

    monkeypatch.setattr(disk, "start_writing", start)
    with DocumentWriter(tmp_path, Raw()) as documents:
        for size in sizes:
            documents.append(0, bytes(size))
    piece, end = 4 << 20, 0
    for offset, size in told:
        assert (offset, size % piece) == (end, 0)
        end = offset + size
    assert end == sum(sizes) // piece * piece


def test_a_platform_that_cannot_begin_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_sync_file_range", None)
    with DocumentWriter(tmp_path, Raw()) as documents:
        documents.append(0, bytes(5 << 20))
    assert shards_of(tmp_path, opened("document", tmp_path)) == [[bytes(5 << 20)]]


# --- interrupts ---


class Interrupting(BytesIO):
    """Takes the bytes, and is interrupted before it can say so."""

    def write(self, data: Any) -> int:
        super().write(data)
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["buffer", "write"])
def test_an_append_that_was_cut_short_gives_the_shard_up(
    kind: Any, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an append must not be committed by a caller who catches the interrupt and closes."""
    opened_writer = writer(kind, tmp_path)
    opened_writer.open()
    for shard in (0, 1):
        opened_writer.append(shard, record_of(kind, shard))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if at == "buffer":
            for file in opened_writer._parts[1].files.values():
                file.buffer = Interrupting(file.buffer.getvalue())
        else:

            def interrupt(step: str, path: str) -> None:
                if step == "write":
                    raise KeyboardInterrupt

            patch.setattr(opened_writer, "_buffer_limit", 1)
            patch.setattr(opened_writer._parts[1], "room", 0, raising=False)
            patch.setattr(disk, "before", interrupt)
        opened_writer.append(1, record_of(kind, 2))
    with pytest.raises(KeyError):
        opened_writer.length(1)
    with pytest.raises(CommitError, match="cut short by KeyboardInterrupt") as caught:
        opened_writer.append(1, record_of(kind, 3))
    assert caught.value.shard == 1
    opened_writer.append(0, record_of(kind, 4))
    with pytest.raises(CommitError, match="cut short by KeyboardInterrupt"):
        opened_writer.close()
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [written(kind, [0, 4])]
    assert not [name for name in names(tmp_path) if name.startswith(".tmp")]
    opened_writer.open()
    opened_writer.append(1, record_of(kind, 5))
    opened_writer.close()
    assert shards_of(tmp_path, opened(kind, tmp_path)) == [written(kind, [0, 4]), written(kind, [5])]


def test_an_interrupt_while_other_shards_are_written_out_gives_those_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guideloom._storage import session

    monkeypatch.setattr(session, "_BUFFER_BUDGET_BYTES", 1 << 12)
    opened_writer = DocumentWriter(tmp_path, Raw())
    opened_writer.open()
    opened_writer.append(0, b"a")

    def interrupt(step: str, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(disk, "before", interrupt)
        opened_writer.append(1, b"b")
        opened_writer.append(2, b"c")
    assert opened_writer._cut_short.keys() == {0}
    with pytest.raises(CommitError, match="shard 0"):
        opened_writer.close()
    assert not [name for name in names(tmp_path) if name.startswith(".tmp")]


@pytest.mark.parametrize("step", ["write_at", "finish_file"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_leaves_no_temporary_file_behind(
    kind: Any, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call of a step, when it is done; also while the writer closes."""
    calls = 0
    original = getattr(disk, step)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = original(*args, **kwargs)
        calls += 1
        if calls == fatal:
            raise KeyboardInterrupt
        return result

    for fatal in range(1, 50):
        calls, folder = 0, tmp_path / str(fatal)
        opened_writer = writer(kind, folder)
        try:
            with monkeypatch.context() as patch, opened_writer:
                for shard in (0, 1):
                    opened_writer.append(shard, record_of(kind, shard))
                    opened_writer._parts[shard].flush()
                patch.setattr(disk, step, interrupted)
                opened_writer.append(2, record_of(kind, 2))
                opened_writer._parts[2].flush()
        except KeyboardInterrupt:
            assert not [name for name in names(folder) if name.startswith(".tmp")], fatal
        else:
            break
    assert 4 < fatal < 49


def test_an_interrupt_before_the_manifest_has_its_name_leaves_no_temporary_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(step: str, path: str) -> None:
        if step == "rename" and path.endswith(MANIFEST):
            raise KeyboardInterrupt

    opened_writer = writer("document", tmp_path)
    opened_writer.open()
    opened_writer.append(0, record_of("document", 1))
    monkeypatch.setattr(disk, "before", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opened_writer.close()
    assert not [name for name in names(tmp_path) if name.startswith(".tmp")]
    assert shards_of(tmp_path, opened("document", tmp_path)) == [written("document", [1])]


def test_no_thread_of_a_close_goes_on_when_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose start was interrupted, which no pool waits for: its file is about to be removed."""
    started: list[threading.Thread] = []
    running: list[threading.Thread] = []
    at_work, over = threading.Event(), threading.Event()
    start, finish, wait = threading.Thread.start, disk.finish_file, threads._await

    def start_interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)
        if len(started) == 2:
            at_work.wait()
            raise KeyboardInterrupt

    def finish_late(path: str, size: int) -> None:
        thread = threading.current_thread()
        if started[1:] == [thread]:
            running.append(thread)
            at_work.set()
            over.wait()
            finish(path, size)
            running.remove(thread)
        else:
            at_work.wait()  # else the first thread might do all the work
            finish(path, size)

    def end_and_wait(*args: Any) -> None:
        over.set()
        wait(*args)

    documents = DocumentWriter(tmp_path, Raw())
    documents.open()
    for shard in range(6):
        documents.append(shard, b"1")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_interrupted)
        patch.setattr(disk, "finish_file", finish_late)
        # A close that does not wait comes back while the thread is at work.
        patch.setattr(threads, "_await", end_and_wait)
        with pytest.raises(KeyboardInterrupt):
            documents.close()
        still_running = list(running)
        over.set()
        for thread in started:
            thread.join()
    assert still_running == []
    assert not [name for name in names(tmp_path) if name.startswith(".tmp")]
