"""Writing, from arrays and documents to committed shards.

Ceiling: ``test_ceiling_of_a_plain_write``, the same bytes through a buffered file with one ``fsync`` a shard. What is
counted: bytes on disk, and how often something is made durable: never more often for longer shards.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.conftest import TOKEN, document_storage, span_storage, stream_storage
from guideloom.io import SeekIO
from guideloom.testing import Span

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
