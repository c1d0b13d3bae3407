"""Values, numbers and tables as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def words(value: Any) -> str:
    """Return a fact of a data set as text."""
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def counted(number: int, thing: str) -> str:
    """Return a number and its noun: "1 file", "2,000 files"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def table(columns: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under the names of their columns, right-aligned."""
    lines = [list(columns), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
