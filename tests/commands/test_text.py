"""Values, numbers and tables as commands print them."""

from __future__ import annotations

from typing import Any

import pytest

from guideloom._commands.text import counted, table, words


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0, "0"), (1234567, "1,234,567"), ("<u2", "<u2"), ([["a", "<u2"]], '[["a", "<u2"]]')],
)
def test_words(value: Any, text: str) -> None:
    assert words(value) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (2000, "2,000 files")])
def test_counted(number: int, text: str) -> None:
    assert counted(number, "file") == text


def test_table() -> None:
    assert table(["shard", "n"], [["0", "12,345"], ["10", "7"]]) == "shard       n\n    0  12,345\n   10       7"
