"""Formats, and reading of data sets straight from their files, for the tests of the storage layer."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom._storage import disk
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.opening import open_catalog
from guideloom._storage.record import seal
from guideloom._storage.requests import ListFolder, Request
from guideloom._storage.writer import DocumentWriter, StreamWithMetaWriter, StreamWriter

TOKEN = np.dtype("<i4")
FORK = multiprocessing.get_context("fork")


class Tokens:
    """A record is a sequence of integers, or whatever array a test wants to see refused."""

    stream_dtype = TOKEN

    def __init__(self, dtype: Any = TOKEN) -> None:
        self.stream_dtype = np.dtype(dtype)

    def pack(self, data: Any) -> Any:
        return np.array(data, self.stream_dtype) if isinstance(data, list) else data

    def unpack(self, stream: Any, shard_lengths: Any, shards: Any) -> Any:
        return stream


class Raw:
    """A document is its bytes."""

    def pack(self, data: Any) -> Any:
        return data

    def unpack(self, encoded: Any, shard: int) -> Any:
        return bytes(encoded)


class Spans:
    """A record is a list of (key, payload or None, element)."""

    stream_dtype = TOKEN

    def size(self, data: Any) -> int:
        return len(data)

    def pack(self, data: Any) -> Generator[Any, None, Any]:
        for key, payload, _ in data:
            yield key, payload
        return np.array([element for _, _, element in data], TOKEN)

    def unpack(self, *arguments: Any) -> Any:
        return arguments


WRITERS: dict[Kind, Any] = {
    "stream": StreamWriter,
    "document": DocumentWriter,
    "stream_with_meta": StreamWithMetaWriter,
}
FORMATS: dict[Kind, Any] = {"stream": Tokens, "document": Raw, "stream_with_meta": Spans}
KINDS: tuple[Kind, ...] = ("stream", "document", "stream_with_meta")


def record_of(kind: Kind, number: int) -> Any:
    """A small record that holds its number."""
    if kind == "stream":
        return [number, number + 1]
    if kind == "document":
        return b"%d" % number
    return [(number, b"p%d" % number, number), (number, None, -number), (-1, b"", 0)]


def written(kind: Kind, numbers: Sequence[int]) -> list[Any]:
    """What :func:`shards_of` finds after the records of ``numbers`` were appended."""
    found: list[Any] = []
    for number in numbers:
        if kind == "stream":
            found += [number, number + 1]
        elif kind == "document":
            found.append(b"%d" % number)
        else:
            found += [(number, b"p%d" % number), (-number, b"p%d" % number), (0, b"")]
    return found


def writer(kind: Kind, folder: Path, mode: Any = "create", metadata: Any = None) -> Any:
    return WRITERS[kind](folder, FORMATS[kind](), mode, metadata)


def write(kind: Kind, folder: Path, shards: dict[int, Sequence[int]], mode: Any = "create") -> None:
    with writer(kind, folder, mode) as opened:
        for shard, numbers in shards.items():
            opened.create(shard)
            for number in numbers:
                opened.append(shard, record_of(kind, number))


def opened(kind: Kind, folder: Path, dtype: Any = TOKEN, format_name: str = "", listing: bool = True) -> Catalog:
    """Open with a listing, or as a backend does that has none."""
    local = LocalFolder(folder)

    def answer(request: Request) -> Any:
        return None if not listing and isinstance(request, ListFolder) else local.answer(request)

    wanted = None if kind == "document" else np.dtype(dtype)
    return drive(open_catalog(kind, wanted, format_name, folder=str(folder)), answer)


def shards_of(folder: Path, catalog: Catalog) -> list[list[Any]]:
    """Content of each shard, read with NumPy alone: elements, documents, or (element, its payload)."""
    shards: list[list[Any]] = [[] for _ in range(catalog.num_shards)]

    def file(index: Any) -> Path | None:
        return None if index < 0 else folder / catalog.files[index]

    def integers(index: Any) -> list[int]:
        path = file(index)
        return [] if path is None else np.fromfile(path, "<i8").tolist()

    def payload(index: Any) -> bytes:
        path = file(index)
        return b"" if path is None else path.read_bytes()

    for row, shard in enumerate(catalog.shard.tolist()):
        content = shards[shard]
        path = file(catalog.elements_file[row])
        elements = [] if path is None or catalog.dtype is None else np.fromfile(path, catalog.dtype).tolist()
        data = payload(catalog.payload_file[row])
        if catalog.kind == "stream":
            content += elements
        elif catalog.kind == "document":
            offsets = integers(catalog.offsets_file[row])
            assert offsets[0] == 0 and len(offsets) == catalog.count[row] + 1
            content += [data[low:high] for low, high in pairwise(offsets)]
        else:
            table = integers(catalog.table_file[row])
            num_spans, stride = int(catalog.spans[row]), int(catalog.table_stride[row])
            rows = np.array(table[: 2 * num_spans + 2]).reshape(-1, 2)
            assert table[2 * num_spans + 2 :] == rows[:-1:stride, 0].tolist()
            assert rows[-1].tolist() == [catalog.count[row], len(data)]
            for (start, low), (stop, high) in pairwise(rows.tolist()):
                assert start < stop
                content += [(element, data[low:high]) for element in elements[start:stop]]
    return shards


def resealed(value: dict[str, Any]) -> bytes:
    """A record or manifest with a checksum that holds: what a hostile writer gives."""
    return seal({key: entry for key, entry in value.items() if key != "checksum"})[0]


def in_child(function: Callable[[], None]) -> int:
    """Run in a forked child; its exit code, negative for a signal."""
    child = FORK.Process(target=function)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_failing_step(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int, act: Callable[[], object]
) -> tuple[str | None, OSError | None]:
    """Run ``act`` on a disk that fails at its step ``number``; return what that was, if it came, and the error."""
    steps: list[str] = []

    def fail(step: str, path: str) -> None:
        steps.append(step)
        if len(steps) == number + 1:
            raise OSError(code, os.strerror(code), path)

    error = None
    with monkeypatch.context() as patch:
        patch.setattr(disk, "before", fail)
        try:
            act()
        except OSError as caught:
            error = caught
    return (steps[number] if len(steps) > number else None), error
