"""What ``benchmarks.rates`` writes: each way beside a plain buffered write of the same bytes with one fsync a file."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.rates_reading import Row, Sizes, ratio
from benchmarks.workloads import (
    BytesFormat,
    Documents,
    HeadFormat,
    PairFormat,
    Spans,
    WholeSpanFormat,
    stream_storage,
    take_turns,
    tokens_of_shard,
)
from guideloom import DocumentStorage, StreamWithMetaStorage
from guideloom.io import SeekIO

PLAIN, ALONE = "plain", "pack alone"
NUM_SHARDS = 4
BUFFER = 1 << 20
"""Bytes of a plain write's buffer. Python's default of 8 KiB makes a call for every three documents."""
APPEND = 1_000_000
"""Tokens of a stream that are given to ``append`` at once."""

Records = Sequence[tuple[int, Any]]
"""Shards, ascending, and what is appended to each."""
Files = Mapping[str, Sequence[Any]]
"""Names, and the bytes of each file in the pieces in which they are written."""
Call = Callable[[], float]


def append(scratch: Path, storage: Callable[[Path], Any], records: Records) -> float:
    """Write a data set, its commit included, and return the seconds."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        begun = perf_counter()
        with storage(Path(folder)).sync_writer() as writer:
            for shard, record in records:
                writer.append(shard, record)
        return perf_counter() - begun


def write_plainly(scratch: Path, files: Files) -> float:
    """Write files one after the other, and return the seconds."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        begun = perf_counter()
        for name, pieces in files.items():
            with open(Path(folder) / name, "wb", BUFFER) as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        return perf_counter() - begun


def pack_only(pack: Callable[[Any], Any], records: Records) -> float:
    """Do what the user's format does, write nothing, and return the seconds."""
    begun = perf_counter()
    for _, record in records:
        pack(record)
    return perf_counter() - begun


def exhaust(pairs: Iterable[Any]) -> None:
    deque(pairs, 0)


def in_shards(records: Sequence[Any]) -> Records:
    return [(number * NUM_SHARDS // len(records), record) for number, record in enumerate(records)]


def by_shard(records: Records) -> dict[int, list[Any]]:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for shard, record in records:
        found[shard].append(record)
    return found


# --- the ways to write -----------------------------------------------------------------------------------------------


def stream_calls(scratch: Path, sizes: Sizes) -> tuple[int, dict[str, Call]]:
    tokens = tokens_of_shard(sizes.windows // NUM_SHARDS)
    pieces = [tokens[begin : begin + APPEND] for begin in range(0, tokens.size, APPEND)]
    records = [(shard, {"tokens": piece}) for shard in range(NUM_SHARDS) for piece in pieces]
    files = {f"{shard}.elements": [piece.data.cast("B") for piece in pieces] for shard in range(NUM_SHARDS)}
    return tokens.size * NUM_SHARDS, {
        PLAIN: partial(write_plainly, scratch, files),
        "append": partial(append, scratch, lambda folder: stream_storage(folder, SeekIO()), records),
    }


def document_calls(scratch: Path, sizes: Sizes) -> tuple[int, dict[str, Call]]:
    documents = Documents(sizes.documents)
    encoded, records = in_shards(documents.encoded()), in_shards([*documents.records()])
    files: dict[str, Sequence[Any]] = {}
    for shard, pieces in by_shard(encoded).items():
        files |= {f"{shard}.payload": pieces, f"{shard}.offsets": [bytes(8 * (len(pieces) + 1))]}
    return sizes.documents, {
        PLAIN: partial(write_plainly, scratch, files),
        "bytes": partial(append, scratch, partial(DocumentStorage, storage_format=BytesFormat()), encoded),
        "pack": partial(append, scratch, partial(DocumentStorage, storage_format=HeadFormat()), records),
        ALONE: partial(pack_only, HeadFormat().pack, records),
    }


def span_calls(scratch: Path, sizes: Sizes) -> tuple[int, dict[str, Call]]:
    spans = Spans(sizes.spans)
    records = in_shards(spans.records())
    files: dict[str, Sequence[Any]] = {}
    for shard, packed in by_shard(records).items():
        count = sum(len(record.lengths) for record in packed)
        files |= {
            f"{shard}.elements": [record.tokens.data.cast("B") for record in packed],
            f"{shard}.payload": [b"".join(payload.tobytes() for payload in record.payloads) for record in packed],
            # A row of the span table is 16 bytes, and one more ends it; each 256 begun have 8 more in its index.
            f"{shard}.spans": [bytes(16 * (count + 1) + 8 * -(-count // 256))],
        }
    pairs = PairFormat()
    return int(spans.lengths().sum()), {
        PLAIN: partial(write_plainly, scratch, files),
        "pack_spans": partial(
            append, scratch, partial(StreamWithMetaStorage, storage_format=WholeSpanFormat()), records
        ),
        "pack": partial(append, scratch, partial(StreamWithMetaStorage, storage_format=pairs), records),
        ALONE: partial(pack_only, lambda record: exhaust(pairs.pack(record)), records),
    }


WRITINGS: dict[str, tuple[str, Callable[[Path, Sizes], tuple[int, dict[str, Call]]]]] = {
    "write-streams": ("tokens", stream_calls),
    "write-documents": ("samples", document_calls),
    "write-spans": ("tokens", span_calls),
}


def writing_rows(folder: Path, sizes: Sizes, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Measure writing under ``folder``, and leave nothing there; rates are units a second."""
    rows: list[dict[str, Any]] = []
    for name in names:
        unit, make_calls = WRITINGS[name]
        units, calls = make_calls(folder, sizes)
        found = take_turns({Row(name, by): call for by, call in calls.items()}, rounds, "writing")
        plain = [units / seconds for seconds in found[Row(name, PLAIN)]]
        for row, times in found.items():
            rates = [units / seconds for seconds in times]
            entry: dict[str, Any] = {"what": row.what, "by": row.by, "unit": unit, "rates": rates}
            entry |= {"median": statistics.median(rates), "best": max(rates), "of_plain": ratio(rates, plain)}
            rows.append(entry)
    return rows
