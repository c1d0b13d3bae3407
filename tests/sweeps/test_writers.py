"""Writers through storages of all kinds: what they count, and what readers find of it, now and while others write."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom.testing import IdDocumentFormat, IdSpanFormat, IdStreamFormat, Span
from tests.sweeps.support import BACKENDS

KINDS = ("stream", "documents", "spans")


def storage_of(kind: str, folder: Path) -> Any:
    if kind == "stream":
        return StreamStorage(folder, IdStreamFormat())
    if kind == "documents":
        return DocumentStorage(folder, IdDocumentFormat())
    return StreamWithMetaStorage(folder, IdSpanFormat())


def record(kind: str, number: int) -> Any:
    """A record of one element or document."""
    if kind == "stream":
        return np.array([number])
    return (number, 9) if kind == "documents" else Span(number, [(number, 1)])


def content(storage: Any) -> list[list[int]]:
    """The numbers of each shard's records, read one by one."""
    with storage.sync_reader() as reader:
        counts = [reader.length(shard) for shard in range(reader.num_shards)]
        found: list[list[int]] = []
        start = 0
        for count in counts:
            found.append([number(reader, i) for i in range(start, start + count)])
            start += count
    return found


def number(reader: Any, index: int) -> int:
    try:
        item = reader.read(index, 1)
    except TypeError:
        return reader.read(index).id
    return int(item.elements[0])


def write(storage: Any, kind: str, shards: dict[int, list[int]], mode: Any = "create") -> None:
    with storage.sync_writer(mode=mode) as writer:
        for shard, numbers in shards.items():
            for one in numbers:
                writer.append(shard, record(kind, one))


@pytest.mark.parametrize("kind", KINDS)
def test_length_counts_what_this_writer_appended(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    with storage.sync_writer() as writer:
        with pytest.raises(KeyError, match="0"):
            writer.length(0)
        writer.append(0, record(kind, 0))
        writer.append(2, record(kind, 1))
        writer.append(1, record(kind, 2))
        writer.append(0, record(kind, 3))
        assert [writer.length(shard) for shard in range(3)] == [2, 1, 1]
        for shard in (3, -1):
            with pytest.raises(KeyError):
                writer.length(shard)
    assert content(storage) == [[0, 3], [2], [1]]
    with storage.sync_writer(mode="append") as writer:
        with pytest.raises(KeyError):
            writer.length(0)
        writer.append(0, record(kind, 4))
        writer.create(3)
        assert (writer.length(0), writer.length(3)) == (1, 0)
    assert content(storage) == [[0, 3, 4], [2], [1], []]


@pytest.mark.parametrize("kind", KINDS)
def test_create_never_touches_a_committed_shard(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0, 1]})
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match=r"append|overwrite"):
        write(storage, kind, {0: [9]})
    assert content(storage) == [[0, 1]]
    assert snapshot(tmp_path) == before, "the refused writer left something behind"
    write(storage, kind, {1: [2]})
    assert content(storage) == [[0, 1], [2]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_an_exception_in_the_block_commits_nothing(kind: str, mode: Any, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0]})
    before = snapshot(tmp_path)
    with pytest.raises(ZeroDivisionError), storage.sync_writer(mode=mode) as writer:
        for shard in range(1 if mode == "create" else 0, 7):
            writer.append(shard, record(kind, 5))
        for part in writer._parts.values():
            part.flush()
        raise ZeroDivisionError
    assert content(storage) == [[0]]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_was_refused_leaves_the_shard_as_it_was(kind: str, tmp_path: Path) -> None:
    # Another dtype; a size that is no number; a span that comes back after its first elements were taken.
    wrong = {"stream": np.zeros(2, "<f4"), "documents": (1, "x"), "spans": Span(0, [(1, 2), (2, 1), (1, 1)])}
    storage = storage_of(kind, tmp_path)
    with storage.sync_writer() as writer:
        writer.append(0, record(kind, 0))
        with pytest.raises((TypeError, ValueError)):
            writer.append(0, wrong[kind])
        writer.append(0, record(kind, 1))
    assert content(storage) == [[0, 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_holes_between_shards_are_found(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0], 2: [1]})
    with pytest.raises(FileNotFoundError, match="1"):
        storage.sync_reader().open()
    write(storage, kind, {1: [2]})
    assert content(storage) == [[0], [2], [1]]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _write_one(kind: str, folder: Path, shard: int) -> None:
    write(storage_of(kind, folder), kind, {shard: list(range(10 * shard, 10 * shard + 7))})


@pytest.mark.parametrize("kind", KINDS)
def test_processes_write_different_shards_at_once(kind: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(_write_one, kind, tmp_path), range(8)))
    for backend in BACKENDS.values():
        storage = storage_of(kind, tmp_path)
        storage.read_interface = backend()
        assert content(storage) == [list(range(10 * shard, 10 * shard + 7)) for shard in range(8)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_content_gives_the_same_folder_and_identity(kind: str, tmp_path: Path) -> None:
    write(storage_of(kind, tmp_path / "a"), kind, {0: [0, 1], 1: [2]})
    write(storage_of(kind, tmp_path / "b"), kind, {1: [2]})
    write(storage_of(kind, tmp_path / "b"), kind, {0: [0, 1]})
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    write(storage_of(kind, tmp_path / "c"), kind, {0: [2], 1: [0, 1]})
    identities = []
    for name in "abc":
        with storage_of(kind, tmp_path / name).sync_reader() as reader:
            identities.append(reader.identity)
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_open_at_once_on_different_shards(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    with storage.sync_writer() as first, pickle.loads(pickle.dumps(storage)).sync_writer() as second:
        first.append(0, record(kind, 0))
        second.append(1, record(kind, 1))
        first.append(0, record(kind, 2))
    assert content(storage) == [[0, 2], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_reader_keeps_what_it_opened(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0, 1]})
    with storage.sync_reader() as reader:
        assert number(reader, 1) == 1
        write(storage, kind, {0: [2]}, "append")
        assert reader.total_length == 2
        assert [number(reader, i) for i in range(2)] == [0, 1]
    assert content(storage) == [[0, 1, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_may_have_any_size(kind: str, tmp_path: Path) -> None:
    make: dict[str, Callable[[int, int], Any]] = {
        "stream": lambda start, n: np.arange(start, start + n),
        "documents": lambda start, n: (start, n),
        "spans": lambda start, n: Span(start, [(start, n)] if n else []),
    }
    storage = storage_of(kind, tmp_path)
    sizes = [0, 70_000, 1, 300_000, 0]
    with storage.sync_writer() as writer:
        start = 0
        for size in sizes:
            writer.append(0, make[kind](start, size))
            start += size
    with storage.sync_reader() as reader:
        if kind == "documents":
            assert [document.size for document in reader.read_many(range(5))] == sizes
        else:
            assert reader.total_length == 370_001
            np.testing.assert_array_equal(reader.read(69_990, 300_011).elements, np.arange(69_990, 370_001))
