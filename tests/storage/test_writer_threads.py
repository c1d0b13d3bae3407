"""Threads that share one writer: no record is lost, torn or mixed with another one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom.errors import InUseError, NotOpenError
from guideloom.types import StorageBufferTypes

NUM_THREADS, EACH = 4, 800


class Seven:
    """A number as seven equal elements."""

    stream_dtype = np.dtype("<i4")

    def pack(self, data: int) -> Any:
        return np.full(7, data, np.int32)

    def unpack(self, stream: Any, shard_lengths: Any, shards: Any) -> list[int]:
        rows = stream.reshape(-1, 7)
        assert (rows == rows[:, :1]).all()
        return [int(row[0]) for row in rows]


class SevenNamed(Seven):
    """The same, with the number's text as payload."""

    def size(self, data: int) -> int:
        return 7

    def pack(self, data: int) -> Generator[tuple[int, bytes | None], None, Any]:
        for place in range(7):
            yield data, None if place else b"%d" % data
        return np.full(7, data, np.int32)

    def unpack(self, stream: Any, document_shard: Any, document_index: Any, document_data: Any) -> list[int]:
        numbers = super().unpack(stream, None, None)
        assert [bytes(payload) for payload in document_data] == [b"%d" % number for number in numbers]
        return numbers


class Text:
    """A number as a document whose length depends on it."""

    def pack(self, data: int) -> bytes:
        return b"%06d" % data * (1 + data % 5)

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> int:
        number = int(bytes(encoded[:6]))
        assert bytes(encoded) == self.pack(number)
        return number


def stream(folder: Path) -> StreamStorage:
    return StreamStorage(folder, Seven())


def spans(folder: Path) -> StreamWithMetaStorage:
    return StreamWithMetaStorage(folder, SevenNamed())


def documents(folder: Path) -> DocumentStorage:
    return DocumentStorage(folder, Text())


def read_all(storage: Any) -> list[int]:
    with storage.sync_reader() as reader:
        if isinstance(storage, DocumentStorage):
            return list(reader.read_many(range(reader.total_length)))
        numbers: list[int] = reader.read(0, reader.total_length)
        return numbers


@pytest.fixture(autouse=True)
def eager_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("make", [stream, spans, documents])
def test_every_record_is_there_once_and_whole(make: Callable[[Path], Any], tmp_path: Path) -> None:
    storage = make(tmp_path)
    with storage.sync_writer() as writer:

        def append(thread: int) -> None:
            for number in range(thread * EACH, (thread + 1) * EACH):
                writer.append(number % 2, number)

        in_threads(append)
    found = read_all(storage)
    assert sorted(found) == list(range(NUM_THREADS * EACH))
    for thread in range(NUM_THREADS):
        for shard in range(2):
            own = [number for number in found if number // EACH == thread and number % 2 == shard]
            assert own == sorted(own)


@pytest.mark.parametrize("attempt", range(12))
@pytest.mark.parametrize("make", [stream, documents])
def test_close_commits_what_was_appended_before_it(make: Callable[[Path], Any], attempt: int, tmp_path: Path) -> None:
    storage = make(tmp_path)
    writer = storage.sync_writer()
    writer.open()
    appended: list[int] = []
    all_at_work = threading.Barrier(NUM_THREADS + 1)

    def append(thread: int) -> None:
        number = thread
        with pytest.raises(NotOpenError):
            while True:
                writer.append(0, number)
                appended.append(number)
                if number == thread:
                    all_at_work.wait()
                number += NUM_THREADS

    closing = threading.Thread(target=lambda: (all_at_work.wait(), writer.close()))
    closing.start()
    in_threads(append)
    closing.join()
    assert sorted(read_all(storage)) == sorted(appended)


def test_a_forked_child_is_refused_also_while_another_thread_appends(tmp_path: Path) -> None:
    with documents(tmp_path).sync_writer() as writer:
        writer.append(0, 0)
        held, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with writer._lock:
                held.set()
                forked.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                writer.append(0, 1)
            except InUseError:
                os._exit(0)
            finally:
                os._exit(1)
        forked.set()
        holder.join()
        assert os.waitpid(child, 0)[1] == 0
    assert read_all(documents(tmp_path)) == [0]


def test_a_close_for_which_threads_cannot_be_started_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    starts: list[threading.Thread] = []

    def start_two(thread: threading.Thread) -> None:
        starts.append(thread)
        if len(starts) > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    writer = stream(tmp_path).sync_writer()
    writer.open()
    for shard in range(5):
        writer.append(shard, shard)
    with pytest.raises(RuntimeError, match="start new thread"):
        writer.close()
    # Files that have their names already are leftovers, which nothing refers to.
    assert [path for path in tmp_path.iterdir() if not path.name.endswith(".elements.bin")] == []
