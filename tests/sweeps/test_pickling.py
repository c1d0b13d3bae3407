"""Closed readers and loaders can go to other processes; open ones say why they cannot, and what can."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentDataset, StatefulDataLoader, StreamDataset
from guideloom.errors import InUseError
from guideloom.testing import make_documents, make_stream

MAKE: dict[str, Callable[[Path], Any]] = {
    "stream": lambda folder: make_stream(folder, (6,)),
    "windows": lambda folder: StreamDataset(make_stream(folder, (6,)), 2),
    "documents": lambda folder: make_documents(folder, (6,)),
    "items": lambda folder: DocumentDataset(make_documents(folder, (6,))),
}


@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy], ids=["pickle", "copy"])
@pytest.mark.parametrize("kind", MAKE)
def test_readers(kind: str, copied: Callable[[Any], Any], tmp_path: Path) -> None:
    reader = MAKE[kind](tmp_path).sync_reader()
    for _ in range(2):
        expected = pytest.raises(InUseError, match="give other processes the data set or the storage")
        with copied(reader) as other, expected:
            copied(other)
        reader.open()
        reader.close()


@pytest.mark.parametrize("kind", MAKE)
def test_asyncio_readers(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        reader = pickle.loads(pickle.dumps(MAKE[kind](tmp_path).async_reader()))
        async with reader:
            with pytest.raises(InUseError, match="give other processes the data set or the storage"):
                pickle.dumps(reader)

    asyncio.run(main())


def test_a_loader_takes_its_position_along(tmp_path: Path) -> None:
    loader = StatefulDataLoader(MAKE["windows"](tmp_path), list, device="cpu")
    with loader:
        iterator = iter(loader)
        (first,) = next(iterator)
        with pytest.raises(InUseError, match="an open loader cannot be pickled"):
            pickle.dumps(loader)
    with pickle.loads(pickle.dumps(loader)) as other:
        assert other.state_dict() == loader.state_dict()
        found = [sample.elements.tolist() for (sample,) in other]
    assert first.elements.tolist() == [0, 1] and found == [[2, 3], [4, 5]]
