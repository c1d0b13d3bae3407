"""A loop over an open data set: every item, and no error taken for the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentDataset, DocumentStorage, StreamDataset
from guideloom.errors import NotOpenError
from guideloom.testing import IdDocumentFormat, make_documents, make_stream


class Strict(IdDocumentFormat):
    """Finds document 3 wanting, with the error that ends Python's own loops."""

    def unpack(self, encoded: Any, shard: int) -> Any:
        document = super().unpack(encoded, shard)
        return [document.id][document.id == 3]


def test_an_index_error_of_a_format_does_not_end_a_loop(tmp_path: Path) -> None:
    make_documents(tmp_path, [3, 2])
    with DocumentDataset(DocumentStorage(tmp_path, Strict())).sync_reader() as reader:
        seen: list[int] = []
        with pytest.raises(IndexError):
            seen.extend(reader)
        assert seen == [0, 1, 2]


def test_a_loop_gives_all_windows_and_needs_an_open_reader(tmp_path: Path) -> None:
    reader = StreamDataset(make_stream(tmp_path, [3, 0, 4]), 2).sync_reader()
    with reader:
        assert [window.elements.tolist() for window in reader] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(NotOpenError):
        list(reader)
