"""The corpus on disk: uint16 tokens, and for each span of tokens the file it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tqdm import tqdm

from demo.corpus import TextFile
from demo.tokenise import END_OF_TEXT
from guideloom import StreamWithMetaStorage
from guideloom.types import StorageBufferTypes


@dataclass(frozen=True, slots=True)
class Document:
    """One tokenised file: its name, and its tokens as uint16[L]."""

    source: str
    tokens: npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Window:
    """One sample: tokens as int64[T + 1], and the files that they came from, in order."""

    tokens: npt.NDArray[np.int64]
    sources: tuple[str, ...]


class SourceFormat:
    """Two bytes a token; the name of the source file once a document."""

    stream_dtype: np.dtype[Any] = np.dtype("<u2")

    def pack_spans(self, data: Document) -> tuple[npt.NDArray[np.uint16], list[int], list[bytes]]:
        # A document is one span: its tokens, how many they are, and the payload that belongs to all of them.
        return data.tokens, [len(data.tokens)], [data.source.encode()]

    def unpack(
        self,
        stream: npt.NDArray[np.uint16],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> Window:
        return Window(stream.astype(np.int64), tuple(bytes(name).decode() for name in document_data))


def open_storage(folder: Path) -> StreamWithMetaStorage:
    """Return the storage in ``folder``; opens nothing."""
    return StreamWithMetaStorage(folder, SourceFormat())


@dataclass(frozen=True, slots=True)
class _Job:
    folder: Path
    tokenizer: Path
    shard: int
    files: tuple[TextFile, ...]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a writer process put into one shard."""

    shard: int
    num_documents: int
    num_tokens: int
    text_bytes: int


def write_shards(
    files: list[TextFile], folder: Path, tokenizer: Path, *, num_shards: int, num_writers: int
) -> list[ShardReport]:
    """Tokenise ``files`` and write ``num_shards`` shards from ``num_writers`` processes at once.

    The writers share a folder and nothing else: each shard is committed by the process that wrote it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [_Job(folder, tokenizer, shard, tuple(files[shard::num_shards])) for shard in range(num_shards)]
    reports: list[ShardReport] = []
    # Fresh processes, because the tokenizer has threads of its own by now, and a fork would copy their locks.
    with (
        get_context("spawn").Pool(num_writers) as pool,
        tqdm(
            total=sum(file.num_bytes for file in files),
            desc="shards",
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
            disable=None,
        ) as bar,
    ):
        for report in pool.imap_unordered(_write_shard, jobs):
            reports.append(report)
            bar.update(report.text_bytes)
            bar.set_postfix_str(f"{len(reports)} of {num_shards} committed")
    return sorted(reports, key=lambda report: report.shard)


def _write_shard(job: _Job) -> ShardReport:
    tokenizer = Tokenizer.from_file(str(job.tokenizer))
    end = tokenizer.token_to_id(END_OF_TEXT)
    # Metadata stays with the shard: whoever finds it can tell which tokenizer its numbers are of.
    metadata = {"tokenizer": hashlib.blake2b(job.tokenizer.read_bytes(), digest_size=8).hexdigest()}
    with open_storage(job.folder).sync_writer(metadata=metadata) as writer:
        for file in job.files:
            ids = tokenizer.encode(file.read(), add_special_tokens=False).ids
            writer.append(job.shard, Document(file.name, np.array([*ids, end], dtype=np.uint16)))
        num_tokens = writer.length(job.shard)
    return ShardReport(job.shard, len(job.files), num_tokens, sum(file.num_bytes for file in job.files))
