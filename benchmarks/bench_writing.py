"""Writing, from arrays and documents to committed shards.

Ceiling: ``test_ceiling_of_a_plain_write``, the same bytes through a buffered file with one ``fsync`` a shard. What is
counted: bytes on disk; calls that write, and bytes that are hashed; and how often something is made durable: never more
often for longer shards.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.conftest import document_storage, span_storage
from benchmarks.workloads import TOKEN, stream_storage
from guideloom import StreamWithMetaStorage
from guideloom._storage import partfile
from guideloom.io import SeekIO
from guideloom.testing import IdSpanFormat, Span

TOKENS = np.arange(1 << 20, dtype=np.int32)
NUM_SHARDS = 4


@pytest.fixture
def folders(tmp_path: Path) -> Any:
    """A new folder for each round."""
    return (tmp_path / str(number) for number in itertools.count())


def data_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.bin"))


def test_ceiling_of_a_plain_write(benchmark: Any, folders: Any) -> None:
    def write() -> Path:
        folder: Path = next(folders)
        folder.mkdir()
        for shard in range(NUM_SHARDS):
            with open(folder / f"{shard}.bin", "wb") as file:
                for begin in range(0, TOKENS.size, 1 << 16):
                    file.write(TOKENS[begin : begin + (1 << 16)])
                file.flush()
                os.fsync(file.fileno())
        return folder

    assert data_bytes(benchmark(write)) == NUM_SHARDS * TOKENS.nbytes


def test_streams(benchmark: Any, folders: Any) -> None:
    """Pack, check, checksums, and the commit of each shard."""

    def write() -> Path:
        folder: Path = next(folders)
        with stream_storage(folder, SeekIO()).sync_writer() as writer:
            for shard in range(NUM_SHARDS):
                for begin in range(0, TOKENS.size, 1 << 16):
                    writer.append(shard, {"tokens": TOKENS[begin : begin + (1 << 16)]})
        return folder

    assert data_bytes(benchmark(write)) == NUM_SHARDS * TOKENS.nbytes


def test_documents(benchmark: Any, folders: Any) -> None:
    """4,096 documents of 512 tokens: the cost of ``append``."""

    def write() -> Path:
        folder: Path = next(folders)
        with document_storage(folder, SeekIO()).sync_writer() as writer:
            for number in range(4096):
                writer.append(number // 1024, {"tokens": TOKENS[:512]})
        return folder

    payloads, offsets = 4096 * 512 * 4, (4096 + NUM_SHARDS) * 8
    assert data_bytes(benchmark(write)) == payloads + offsets


SPAN_LENGTHS = [100] * 16


class WholeSpans(IdSpanFormat):
    """Gives its spans whole: no Python for an element."""

    def pack_spans(self, data: Span) -> tuple[Any, list[int], list[bytes]]:
        """Give the same elements as ``pack``, and the number of each span as its payload."""
        elements = np.arange(data.start, data.start + self.size(data))
        return elements, [length for _, length in data.spans], [b"%08d" % span for span, _ in data.spans]


def test_ceiling_of_a_generator_of_pairs(benchmark: Any) -> None:
    """What Python needs to yield one pair an element, as often as :func:`test_spans` does, without any writing."""
    storage_format = IdSpanFormat(np.dtype("<i8"))

    def exhaust() -> int:
        for number in range(256):
            deque(storage_format.pack(Span(number * 1600, list(enumerate(SPAN_LENGTHS, number * 16)))), 0)
        return 256

    assert benchmark(exhaust) == 256


def test_whole_spans(benchmark: Any, folders: Any) -> None:
    """The records of :func:`test_spans` through ``pack_spans``."""

    def write() -> Path:
        folder: Path = next(folders)
        with StreamWithMetaStorage(folder, WholeSpans(np.dtype("<i8"))).sync_writer() as writer:
            for number in range(256):
                writer.append(0, Span(number * 1600, list(enumerate(SPAN_LENGTHS, number * 16))))
        return folder

    elements, payloads, rows = 256 * 1600 * 8, 256 * 16 * 8, (256 * 16 + 1) * 16
    assert data_bytes(benchmark(write)) == elements + payloads + rows + 256 * 16 // 256 * 8


def test_spans(benchmark: Any, folders: Any) -> None:
    """256 records of 16 spans of 100 elements: the user's generator is asked for every element."""

    def write() -> Path:
        folder: Path = next(folders)
        with span_storage(folder, SeekIO()).sync_writer() as writer:
            for number in range(256):
                writer.append(0, Span(number * 1600, [(number * 16 + k, 100) for k in range(16)]))
        return folder

    assert data_bytes(benchmark(write)) > 256 * 16 * 100 * 8


@pytest.mark.parametrize("length", [1, 1 << 20])
def test_what_is_made_durable_does_not_depend_on_the_length(tmp_path: Path, no_fsync: list[int], length: int) -> None:
    with stream_storage(tmp_path, SeekIO()).sync_writer() as writer:
        for shard in range(NUM_SHARDS):
            writer.append(shard, {TOKEN.names[0]: TOKENS[:length]})  # type: ignore[index]
    # For each shard: its data, its record, the folder once or twice; and the folder's own entry.
    assert NUM_SHARDS <= len(no_fsync) <= 4 * NUM_SHARDS + 2


class Counted:
    """Counts calls that write data files, their bytes, and the bytes that are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_writes = self.written = self.hashed = 0
        pwrite, digest = os.pwrite, partfile.xxhash.xxh3_64_intdigest

        def write(descriptor: int, data: Any, offset: int) -> int:
            self.num_writes += 1
            self.written += len(data)
            return pwrite(descriptor, data, offset)

        def hash_block(data: Any) -> int:
            self.hashed += len(data)
            return digest(data)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(partfile.xxhash, "xxh3_64_intdigest", hash_block)


def test_small_documents_are_written_in_large_pieces(
    tmp_path: Path, no_fsync: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12,000 documents of 1 KiB: a call that writes for each MiB of documents, and one for 8,192 offsets at least."""
    counted = Counted(monkeypatch)
    with document_storage(tmp_path, SeekIO()).sync_writer() as writer:
        for _ in range(12_000):
            writer.append(0, {"tokens": TOKENS[:256]})
        # Payloads whenever a MiB is full of them and of the offsets held; the last of both at the close.
        pieces = offset_pieces = payloads = offsets = in_payloads = in_offsets = 0
        for _ in range(12_000):
            if (payloads + 1) * 1024 + (offsets + 1) * 8 > 1 << 20:
                pieces, in_payloads, payloads = pieces + 1, in_payloads + payloads, 0
                if offsets * 8 >= 1 << 16:
                    offset_pieces, in_offsets, offsets = offset_pieces + 1, in_offsets + offsets, 0
            payloads, offsets = payloads + 1, offsets + 1
        assert (pieces, offset_pieces) == (12, 1)
        assert counted.num_writes == pieces + offset_pieces
        assert counted.written == in_payloads * 1024 + (in_offsets + 1) * 8


def test_large_records_are_neither_copied_nor_cut(
    tmp_path: Path, no_fsync: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call that writes each record, straight from the user's array; each byte hashed once, in whole blocks."""
    counted = Counted(monkeypatch)
    with stream_storage(tmp_path, SeekIO()).sync_writer() as writer:
        for _ in range(3):
            writer.append(0, {"tokens": TOKENS})
        assert (counted.num_writes, counted.written) == (3, 3 * TOKENS.nbytes)
        assert counted.hashed == counted.written
        assert writer._parts[0].elements.buffer.getbuffer().nbytes == 0
