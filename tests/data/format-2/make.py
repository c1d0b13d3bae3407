"""Makes the golden data sets of format version 2: ``python -m tests.data.format-2.make FOLDER``, or :func:`make`.

Never run it to make a failing test pass: what is in this folder was written by a release, and every later one must read
it, and write it again bit for bit until the format's version changes.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage

TOKENS = np.dtype([("token", "<u2"), ("weight", "<f4")])


class GoldenStream:
    """Elements as they are."""

    stream_dtype = TOKENS

    def pack(self, data: Any) -> Any:
        return data

    def unpack(self, stream: Any, *rest: Any) -> Any:
        return stream


class GoldenDocuments:
    """Bytes as they are."""

    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded: Any, shard: int) -> bytes:
        return bytes(encoded)


class GoldenSpans:
    """A record is one span: its number, and how many elements it has."""

    stream_dtype = np.dtype("<i4")

    def size(self, data: tuple[int, int]) -> int:
        return data[1]

    def pack(self, data: tuple[int, int]) -> Generator[Any, None, Any]:
        number, size = data
        for index in range(size):
            yield number, payload(number) if index == 0 else None
        return span_elements(number, size)

    def unpack(self, *arguments: Any) -> Any:
        return arguments


def stream_elements(start: int, stop: int) -> np.ndarray[Any, Any]:
    elements = np.zeros(stop - start, TOKENS)
    elements["token"] = np.arange(start, stop)
    elements["weight"] = np.arange(start, stop) / 4
    return elements


def document(number: int) -> bytes:
    return bytes((number + index) % 251 for index in range(number * 3))


def payload(number: int) -> bytes:
    return f"source {number}".encode() * (number % 3)


def span_elements(number: int, size: int) -> np.ndarray[Any, Any]:
    return np.arange(1000 * number, 1000 * number + size, dtype="<i4")


SPANS = [(number, 1 + number % 4) for number in range(600)]
"""Enough rows for three entries of the sample."""


def make(folder: Path) -> None:
    """Each with two or three shards, an empty one, an appended part and a replaced one."""
    streams = StreamStorage(folder / "stream", GoldenStream())
    with streams.sync_writer(metadata={"tokenizer": "none", "täglich": 1}) as writer:
        writer.append(0, stream_elements(0, 100))
        writer.create(1)
        writer.append(2, stream_elements(7, 9))
    with streams.sync_writer("append") as writer:
        writer.append(1, stream_elements(100, 130))
    with streams.sync_writer("overwrite") as writer:
        writer.append(2, stream_elements(130, 137))
    documents = DocumentStorage(folder / "documents", GoldenDocuments())
    with documents.sync_writer() as document_writer:
        for number in range(12):
            document_writer.append(number // 10, document(number))
        document_writer.create(2)
    with documents.sync_writer("append") as document_writer:
        document_writer.append(1, document(12))
    spans = StreamWithMetaStorage(folder / "spans", GoldenSpans())
    with spans.sync_writer() as writer:
        for span in SPANS:
            writer.append(0, span)
        writer.create(1)
    with spans.sync_writer("append") as writer:
        writer.append(1, (600, 3))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
