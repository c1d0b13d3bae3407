"""Every kind of gather with the help of waiting threads: sizes that differ much, few open files, checked blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import (
    DocumentDataset,
    DocumentNumpyFormat,
    DocumentStorage,
    StatefulDataLoader,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
)
from guideloom._kernels.status import WATCHERS
from guideloom._loader import outbox
from guideloom._read import files
from guideloom.io import MmapIO, PosixPreadIO

SHARDS, LENGTH, NUM_WINDOWS, NUM_DOCUMENTS, NUM_SPANS = 4, 2048, 600, 300, 900
BATCH, MOST_EPOCHS, ENOUGH_WATCHED, ENOUGH_HELP = 75, 1000, 20, 1
FEW_FILES = 3
"""So few that runs are gathered by files: in order, for of a shuffled batch each then takes too little to share."""


def document(number: int) -> np.ndarray:
    """Its number and what follows; each thirteenth is as long as hundreds of others."""
    size = 40_000 if number % 13 == 7 else 1 + number * 7919 % 300
    return np.arange(number, number + size, dtype=np.int32)


def payload(span: int) -> bytes:
    """Of a span; empty, short or long."""
    size = 0 if span % 5 == 0 else 30_000 if span % 50 == 3 else span * 31 % 700
    return (np.arange(size) + span).astype(np.uint8).tobytes()


def size_of(span: int) -> int:
    """Number of its elements."""
    return 1 + span * 37 % 640


class Spans:
    """Elements that are the number of their span."""

    stream_dtype = np.dtype("<i4")

    def pack_spans(self, data: range) -> tuple[np.ndarray, list[int], list[bytes]]:
        sizes = [*map(size_of, data)]
        return np.repeat(np.arange(data.start, data.stop, dtype=np.int32), sizes), sizes, [*map(payload, data)]

    def unpack(self, stream: Any, shards: Any, index: Any, payloads: Any) -> Any:
        return stream, shards, index, payloads


def write(writer: Any, append: Callable[[Any, int, range], None], number: int) -> None:
    with writer:
        for shard in range(SHARDS):
            append(writer, shard, range(number * shard // SHARDS, number * (shard + 1) // SHARDS))


def windows(folder: Path, **options: Any) -> StreamDataset:
    storage = StreamStorage(folder, StreamNumpyFormat([("token", "<u4")]), **options)
    if not folder.exists():

        def append(writer: Any, shard: int, part: range) -> None:
            writer.append(shard, {"token": np.array(part, np.uint32)})

        write(storage.sync_writer(), append, NUM_WINDOWS * LENGTH)
    return StreamDataset(storage, LENGTH)


def windows_in(batch: Any) -> list[int]:
    rows = batch["token"].numpy()
    assert (rows == rows[:, :1] + np.arange(LENGTH, dtype=np.uint32)).all()
    return (rows[:, 0] // LENGTH).tolist()


def documents(folder: Path, **options: Any) -> DocumentDataset:
    storage = DocumentStorage(folder, DocumentNumpyFormat({"values": "<i4"}), **options)
    if not folder.exists():

        def append(writer: Any, shard: int, part: range) -> None:
            for number in part:
                writer.append(shard, {"values": document(number)})

        write(storage.sync_writer(), append, NUM_DOCUMENTS)
    return DocumentDataset(storage)


def documents_in(batch: Any) -> list[int]:
    values, offsets = batch["values"].numpy(), batch["offsets"].tolist()
    numbers = [int(values[begin]) for begin in offsets[:-1]]
    for number, begin, end in zip(numbers, offsets[:-1], offsets[1:], strict=True):
        assert np.array_equal(values[begin:end], document(number))
    return numbers


def spans(folder: Path, **options: Any) -> StreamDataset:
    storage = StreamWithMetaStorage(folder, Spans(), **options)
    if not folder.exists():

        def append(writer: Any, shard: int, part: range) -> None:
            writer.append(shard, part)

        write(storage.sync_writer(), append, NUM_SPANS)
    return StreamDataset(storage, LENGTH)


def spans_in(batch: Any) -> list[int]:
    """Number of the first element of each window, of those that all spans have one behind the other."""
    offsets, payloads = batch["span_offsets"].tolist(), batch["span_payload"].numpy()
    bounds, found = batch["span_bounds"].tolist(), []
    for elements, index, begin, end in zip(
        batch["elements"].numpy(), batch["span_index"].numpy(), bounds[:-1], bounds[1:], strict=True
    ):
        first = int(elements[0])
        assert (index == elements - first).all()
        assert end - begin == elements[-1] - first + 1
        for place in range(begin, end):
            found_payload = payloads[offsets[place] : offsets[place + 1]].tobytes()
            assert found_payload == payload(first + place - begin)
        left_over = int((elements == first).sum())
        found.append(int(ENDS[first]) - left_over)
    assert all(number % LENGTH == 0 for number in found)
    return [number // LENGTH for number in found]


ENDS = np.cumsum([size_of(span) for span in range(NUM_SPANS)])
KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], list[int]], int]] = {
    "windows": (windows, windows_in, NUM_WINDOWS),
    "documents": (documents, documents_in, NUM_DOCUMENTS),
    "spans": (spans, spans_in, int(ENDS[-1]) // LENGTH),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize("few_files", [False, True], ids=["", "few files"])
@pytest.mark.parametrize("backend", [MmapIO, PosixPreadIO])
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_is_right_with_help(
    kind: str, backend: type, few_files: bool, verify: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, numbers_in, size = KINDS[kind]
    make(folder / kind)
    watched, helped = [], []
    gather, watch = files.gather_helped.get(), outbox.Sleeper.watch

    def spy(desk: Any, *rest: Any) -> int:
        watched.append(int(desk[WATCHERS]))
        return int(gather(desk, *rest))

    def spy_on_help(*args: Any) -> int:
        helped.append(watch(*args))
        return helped[-1]

    monkeypatch.setattr(files.gather_helped, "run", spy)
    monkeypatch.setattr(outbox.Sleeper, "watch", spy_on_help)
    monkeypatch.setattr(outbox, "WATCHES", True)
    if few_files:
        monkeypatch.setattr(files, "default_capacity", lambda: FEW_FILES)
    dataset = make(folder / kind, read_interface=backend(), verify=verify)
    held: list[Any] = []
    options: dict[str, Any] = {"prefetch": 4, "shuffle": not few_files, "drop_last": False, "device": "cpu"}
    with StatefulDataLoader(dataset, None, local_batch_size=BATCH, **options) as loader:
        for _ in range(MOST_EPOCHS):
            found = []
            for batch in loader:
                found.extend(numbers_in(batch))
                # Memory that is used again must not be that of batches that are kept.
                held.append((batch, found[-1]))
                if len(held) > 3:
                    old, last = held.pop(0)
                    assert numbers_in(old)[-1] == last
            assert sorted(found) == list(range(size))
            if len(watched) >= ENOUGH_WATCHED and sum(helped) >= ENOUGH_HELP:
                break
    assert len(watched) >= ENOUGH_WATCHED
    assert sum(helped) >= ENOUGH_HELP
