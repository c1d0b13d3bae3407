"""Times of the built-in formats on one document of 1024 tokens and a number: the table of docs/formats.md.

``pytest benchmarks/bench_formats.py --benchmark-enable``; without the option it checks the sizes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from guideloom import (
    DocumentJsonFormat,
    DocumentMsgpackFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    StreamNumpyFormat,
)

TOKENS = np.random.default_rng(0).integers(0, 50_000, 1024).astype("<u2")


class Listed(msgspec.Struct):
    id: int
    tokens: list[int]


class Viewed(msgspec.Struct):
    id: int
    tokens: memoryview


CASES: dict[str, tuple[Any, Any, int]] = {
    "pickle": (DocumentPickleFormat(), {"id": 7, "tokens": TOKENS}, 2300),
    "json": (DocumentJsonFormat(), {"id": 7, "tokens": TOKENS.tolist()}, 6000),
    "msgpack-list": (DocumentMsgpackFormat(Listed), Listed(7, TOKENS.tolist()), 3100),
    "msgpack-memoryview": (DocumentMsgpackFormat(Viewed), Viewed(7, TOKENS.data.cast("B")), 2070),
    "numpy-fields": (
        DocumentNumpyFormat({"id": "<i8", "tokens": "<u2"}),
        {"id": np.array([7]), "tokens": TOKENS},
        2072,
    ),
    "numpy-one-field": (DocumentNumpyFormat({"tokens": "<u2"}), {"tokens": TOKENS}, 2048),
    "numpy-self-described": (DocumentNumpyFormat(), {"id": np.int64(7), "tokens": TOKENS}, 2120),
}


@pytest.mark.parametrize("case", CASES)
def test_pack(benchmark: Any, case: str) -> None:
    fmt, document, largest = CASES[case]
    assert len(benchmark(fmt.pack, document)) <= largest


@pytest.mark.parametrize("case", CASES)
def test_unpack(benchmark: Any, case: str) -> None:
    fmt, document, _ = CASES[case]
    assert benchmark(fmt.unpack, memoryview(bytearray(fmt.pack(document))), 0)


@pytest.mark.parametrize("given_dtype", ["<u2", ">u2", "<i8", "<f8"])
def test_pack_a_million_tokens(benchmark: Any, given_dtype: str) -> None:
    tokens = (np.arange(1_000_000) % 50_000).astype(given_dtype)
    stream = benchmark(StreamNumpyFormat([("tokens", "<u2")]).pack, {"tokens": tokens})
    assert np.shares_memory(stream, tokens) == (given_dtype == "<u2")
