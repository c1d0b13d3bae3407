"""A reader that another thread closes and opens again, on other data, at any moment of a read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentDataset, DocumentStorage, StreamDataset, StreamStorage
from guideloom.errors import InUseError, MissingShardError, NotOpenError
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import IdDocumentFormat, IdStreamFormat

OLD, NEW = 24, 3
WINDOW = 2


def streams(folder: Path) -> Any:
    storage = StreamStorage(folder, IdStreamFormat(), PosixPreadIO())
    with storage.sync_writer() as writer:
        writer.append(0, list(range(WINDOW * OLD)))
    return storage


def documents(folder: Path) -> Any:
    storage = DocumentStorage(folder, IdDocumentFormat(), PosixPreadIO())
    with storage.sync_writer() as writer:
        for number in range(OLD):
            writer.append(0, (number, 9))
    return storage


def replace(storage: Any) -> None:
    with storage.sync_writer(mode="overwrite") as writer:
        if isinstance(storage, StreamStorage):
            writer.append(0, list(range(1000, 1000 + WINDOW * NEW)))
        else:
            for number in range(1000, 1000 + NEW):
                writer.append(0, (number, 9))


def plain(sample: Any) -> list[int]:
    return sample.elements.tolist() if hasattr(sample, "elements") else [sample.id]


# name -> (the data set, its reader, a read)
CASES: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "stream": (streams, lambda s: s.sync_reader(), lambda r: plain(r.read(4, 2))),
    "documents": (documents, lambda s: s.sync_reader(), lambda r: [plain(d) for d in r.read_many([2, 1])]),
    "windows": (streams, lambda s: StreamDataset(s, WINDOW).sync_reader(), lambda r: plain(r[2])),
    "windows, slice": (streams, lambda s: StreamDataset(s, WINDOW).sync_reader(), lambda r: [plain(x) for x in r[1:]]),
    "items": (documents, lambda s: DocumentDataset(s).sync_reader(), lambda r: plain(r[2])),
    "items, slice": (documents, lambda s: DocumentDataset(s).sync_reader(), lambda r: [plain(x) for x in r[1:]]),
    "length": (streams, lambda s: s.sync_reader(), lambda r: r.length(0)),
    "repr": (streams, lambda s: s.sync_reader(), lambda r: repr(r).replace("closed", "")),
}


class At:
    """Does something at one of the instructions that this package's readers run, and counts them."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self.left = number
        self.action = action
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if "_dataset" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.seen += 1
            if self.seen == self.left:
                # In another thread, which is done before this one goes on.
                thread = threading.Thread(target=self.action)
                thread.start()
                thread.join()
        return self


def traced(at: At, read: Callable[[], Any]) -> Any:
    before = sys.gettrace()
    sys.settrace(at)
    try:
        return read()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("case", CASES)
def test_a_read_sees_one_opening(case: str, tmp_path: Path) -> None:
    """Before each instruction in turn: the read gives what was, or what is now, or says that the reader was closed.

    The data is replaced by less, so that an index or a plan for the one does not fit the other.
    """
    make, reader_of, read = CASES[case]
    storage = make(tmp_path)
    with storage.sync_reader() as reader:
        snapshot = reader.catalog
        replace(storage)
    reader = reader_of(storage)
    open_old = getattr(reader, "open_snapshot", None) or reader.open_again

    def reopened() -> None:
        reader.close()
        reader.open()

    open_old(snapshot)
    traced(At(0, reopened), lambda: read(reader))  # Python 3.12 tells of no instruction in a process's first trace
    count = At(0, reopened)
    old = traced(count, lambda: read(reader))
    reopened()
    new = read(reader)
    assert old != new
    met = set()
    for number in range(1, count.seen + 1):
        reader.close()
        open_old(snapshot)
        try:
            found = traced(At(number, reopened), lambda: read(reader))
        except NotOpenError:
            met.add("closed")
        else:
            assert found in (old, new), (number, found)
            met.add("old" if found == old else "new")
    reader.close()
    assert {"old", "new"} <= met


@pytest.mark.parametrize("case", ["stream", "documents", "windows", "items"])
def test_a_second_open_is_refused(case: str, tmp_path: Path) -> None:
    make, reader_of, read = CASES[case]
    with reader_of(make(tmp_path)) as reader:
        before = read(reader)
        with pytest.raises(InUseError, match="open already"):
            reader.open()
        assert read(reader) == before
    with reader:
        assert np.array_equal(read(reader), before)


@pytest.mark.parametrize("backend", [SeekIO(), PosixPreadIO(), MmapIO()], ids=lambda backend: type(backend).__name__)
def test_a_file_that_goes_while_a_data_set_is_open_is_named(backend: Any, tmp_path: Path) -> None:
    """Though others of the same gather are there."""
    storage = StreamStorage(tmp_path, IdStreamFormat(), backend)
    with storage.sync_writer() as writer:
        for shard in range(3):
            writer.append(shard, [2 * shard, 2 * shard + 1])
    with StreamDataset(storage, WINDOW).sync_reader() as reader:
        (gone,) = tmp_path.glob("0000001-*.elements.bin")
        gone.unlink()
        for items in (slice(None), 1):
            with pytest.raises(MissingShardError) as caught:
                reader[items]
            assert (caught.value.path, caught.value.shard) == (str(gone), 1)
        assert [window.elements.tolist() for window in reader[2::-2]] == [[4, 5], [0, 1]]
