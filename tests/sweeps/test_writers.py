"""Writers through the public interface: what they count, what they refuse, and that nothing committed is ever lost."""

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
        assert writer.length(0) == 1
    assert content(storage) == [[0, 3, 4], [2], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_integers_from_zero(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    with storage.sync_writer() as writer:
        writer.append(np.int64(0), record(kind, 0))
        with pytest.raises(IndexError, match="-1"):
            writer.append(-1, record(kind, 0))
        for wrong in (0.5, "0", None):
            with pytest.raises((TypeError, ValueError)):
                writer.append(wrong, record(kind, 0))
    assert content(storage) == [[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_must_be_open(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    writer = storage.sync_writer()
    with pytest.raises(RuntimeError, match="open"):
        writer.append(0, record(kind, 0))
    writer.open()
    writer.append(0, record(kind, 0))
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="open"):
        writer.append(0, record(kind, 1))
    assert content(storage) == [[0]]


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
def test_append_and_overwrite(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0], 1: [1]})
    write(storage, kind, {0: [2], 2: [3]}, "append")
    assert content(storage) == [[0, 2], [1], [3]]
    write(storage, kind, {0: [4], 1: [5, 6]}, "overwrite")
    assert content(storage) == [[4], [5, 6], [3]]
    write(storage, kind, {0: [7]}, "append")
    assert content(storage) == [[4, 7], [5, 6], [3]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_an_exception_in_the_block_commits_nothing(kind: str, mode: Any, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0]})
    before = snapshot(tmp_path)
    with pytest.raises(ZeroDivisionError), storage.sync_writer(mode=mode) as writer:
        writer.append(1 if mode == "create" else 0, record(kind, 5))
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


def test_unknown_modes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="update"), storage_of("stream", tmp_path).sync_writer(mode="update"):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_holes_between_shards_are_found(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0], 2: [1]})
    with pytest.raises(FileNotFoundError, match="1"):
        storage.sync_reader().open()
    write(storage, kind, {1: [2]})
    assert content(storage) == [[0], [2], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_made_and_files_are_not_mistaken_for_folders(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path / "a" / "b")
    write(storage, kind, {0: [0]})
    assert content(storage) == [[0]]
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises((OSError, ValueError), match="found a file, or a link to nothing: give another path"):
            write(storage_of(kind, tmp_path / name), kind, {0: [0]})


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_is_not_written_into_a_data_set(kind: str, tmp_path: Path) -> None:
    write(storage_of(kind, tmp_path), kind, {0: [0]})
    for other in set(KINDS) - {kind}:
        with pytest.raises(ValueError, match=r"(?i)stream|document"):
            write(storage_of(other, tmp_path), other, {1: [1]})
    assert content(storage_of(kind, tmp_path)) == [[0]]


def test_another_dtype_is_not_written_into_a_data_set(tmp_path: Path) -> None:
    write(storage_of("stream", tmp_path), "stream", {0: [0]})
    other = StreamStorage(tmp_path, IdStreamFormat("<u2"))
    with pytest.raises(ValueError, match=r"u2|uint16"), other.sync_writer() as writer:
        writer.append(1, np.zeros(1, "<u2"))
    assert content(storage_of("stream", tmp_path)) == [[0]]


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
def test_the_same_content_gives_the_same_folder(kind: str, tmp_path: Path) -> None:
    write(storage_of(kind, tmp_path / "a"), kind, {0: [0, 1], 1: [2]})
    write(storage_of(kind, tmp_path / "b"), kind, {1: [2]})
    write(storage_of(kind, tmp_path / "b"), kind, {0: [0, 1]})
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_open_at_once_on_different_shards(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    with storage.sync_writer() as first, pickle.loads(pickle.dumps(storage)).sync_writer() as second:
        first.append(0, record(kind, 0))
        second.append(1, record(kind, 1))
        first.append(0, record(kind, 2))
    assert content(storage) == [[0, 2], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_on_one_shard(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    first, second = storage.sync_writer(), storage.sync_writer()
    first.open()
    second.open()
    first.append(0, record(kind, 0))
    second.append(0, record(kind, 1))
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert content(storage) == [[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_readers_see_committed_shards_only(kind: str, tmp_path: Path) -> None:
    storage = storage_of(kind, tmp_path)
    write(storage, kind, {0: [0]})
    with storage.sync_writer() as writer:
        writer.append(1, record(kind, 1))
        assert content(storage) == [[0]]
    assert content(storage) == [[0], [1]]


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
