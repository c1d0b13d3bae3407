"""Data that the benchmarks share, and what they count."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import stream_storage
from guideloom import DocumentNumpyFormat, DocumentStorage, StreamWithMetaStorage
from guideloom._read.fileset import FileSet
from guideloom.io import SeekIO
from guideloom.testing import IdSpanFormat, make_spans

SHARDS = 4


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 shards of 1 Mi tokens, 16 MiB: 64 batches of 32 windows of 2,048."""
    folder = tmp_path_factory.mktemp("stream")
    with stream_storage(folder, SeekIO()).sync_writer() as writer:
        for shard in range(SHARDS):
            writer.append(shard, {"tokens": np.arange(1 << 20, dtype=np.int32) + shard})
    return folder


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,048 documents of 256 to 1,024 tokens in 4 shards."""
    folder = tmp_path_factory.mktemp("documents")
    sizes = np.random.default_rng(0).integers(256, 1024, 2048).tolist()
    with DocumentStorage(folder, DocumentNumpyFormat({"tokens": "<i4"})).sync_writer() as writer:
        for number, size in enumerate(sizes):
            writer.append(number * SHARDS // 2048, {"tokens": np.arange(size, dtype=np.int32)})
    return folder


@pytest.fixture(scope="session")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 shards of 1,024 spans of 1 to 199 elements, about 100 on average."""
    folder = tmp_path_factory.mktemp("spans")
    lengths = np.random.default_rng(0).integers(1, 200, (SHARDS, 1024)).tolist()
    make_spans(folder, lengths, np.dtype("<i8"), per_append=64)
    return folder


def document_storage(folder: Path, backend: Any) -> DocumentStorage:
    return DocumentStorage(folder, DocumentNumpyFormat({"tokens": "<i4"}), backend)


def span_storage(folder: Path, backend: Any) -> StreamWithMetaStorage:
    return StreamWithMetaStorage(folder, IdSpanFormat(np.dtype("<i8")), backend)


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each gather that a reader executes, from here on: those of operations, and those without one."""
    seen: list[str] = []
    inside = threading.local()
    execute, gather = FileSet.execute, FileSet.gather

    def counted(self: FileSet, request: Any) -> None:
        seen.append(type(request).__name__)
        inside.operation = True
        try:
            execute(self, request)
        finally:
            inside.operation = False

    def counted_gather(self: FileSet, *runs: Any) -> None:
        if not getattr(inside, "operation", False):
            seen.append("Gather")
        gather(self, *runs)

    monkeypatch.setattr(FileSet, "execute", counted)
    monkeypatch.setattr(FileSet, "gather", counted_gather)
    return seen


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what is made durable instead of doing it: thousands of shards are made in seconds."""
    calls: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, calls.append)
    return calls
