"""Data sets of format version 2, as the release that introduced it wrote them: read right, and written the same."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._storage.verify import verify
from tests.storage.support import opened, shards_of
from tests.sweeps.support import BACKENDS

GOLDEN = Path(__file__).parents[1] / "data" / "format-2"
recipe = importlib.import_module("tests.data.format-2.make")
IDENTITIES = {
    "stream": "v2:3450bfaf15632812d28f76221f138ba0",
    "documents": "v2:4996862af9e984fb651d4eaeda687907",
    "spans": "v2:f723c61012757d19f669c506bd66e3de",
}


def test_the_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    recipe.make(tmp_path)
    for name in IDENTITIES:
        made = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        golden = {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir()}
        assert made.keys() == golden.keys()
        for file, data in golden.items():
            assert made[file] == data, file


@pytest.mark.parametrize("name", IDENTITIES)
def test_they_are_sound(name: str) -> None:
    assert verify(GOLDEN / name).is_sound


def test_identities() -> None:
    found = {
        "stream": opened("stream", GOLDEN / "stream", recipe.TOKENS).identity,
        "documents": opened("document", GOLDEN / "documents").identity,
        "spans": opened("stream_with_meta", GOLDEN / "spans").identity,
    }
    assert found == IDENTITIES


@pytest.mark.parametrize("backend", BACKENDS)
def test_content(backend: str) -> None:
    with StreamStorage(GOLDEN / "stream", recipe.GoldenStream(), BACKENDS[backend]()).sync_reader() as reader:
        assert [reader.length(shard) for shard in range(3)] == [100, 30, 7]
        assert reader.read(0, 137).tolist() == recipe.stream_elements(0, 137).tolist()
    with DocumentStorage(
        GOLDEN / "documents", recipe.GoldenDocuments(), BACKENDS[backend]()
    ).sync_reader() as documents:
        assert [documents.length(shard) for shard in range(3)] == [10, 3, 0]
        assert [documents.read(number) for number in range(13)] == [recipe.document(number) for number in range(13)]
    with StreamWithMetaStorage(GOLDEN / "spans", recipe.GoldenSpans(), BACKENDS[backend]()).sync_reader() as reader:
        elements, shards, places, payloads = reader.read(0, reader.total_length)
    expected = [
        (element, recipe.payload(number))
        for number, size in [*recipe.SPANS, (600, 3)]
        for element in recipe.span_elements(number, size).tolist()
    ]
    found = [
        (element, bytes(payloads[place])) for element, place in zip(elements.tolist(), places.tolist(), strict=True)
    ]
    assert found == expected
    assert shards.tolist() == [0] * 600 + [1]


def test_content_with_numpy_alone() -> None:
    catalog = opened("stream_with_meta", GOLDEN / "spans")
    assert [len(shard) for shard in shards_of(GOLDEN / "spans", catalog)] == [sum(size for _, size in recipe.SPANS), 3]
    assert catalog.metadata == {}
    assert opened("stream", GOLDEN / "stream", recipe.TOKENS).metadata == {"tokenizer": "none", "täglich": 1}
