"""Checks that every backend of ours makes alike."""

from __future__ import annotations

import operator
from pathlib import PurePath

from guideloom._base.errors import ArgumentError, NotOpenError, OutOfRangeError

READ_AHEAD_BYTES = 64 << 20
"""Most bytes asked for ahead, unless the user says another number."""


def check_read_ahead(read_ahead_bytes: int) -> int:
    """Return how many bytes may be asked for ahead as a Python int; refuse what is no number of bytes."""
    try:
        number = -1 if isinstance(read_ahead_bytes, bool) else operator.index(read_ahead_bytes)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(
            f"read_ahead_bytes must be an integer of at least 0 (0: ask for nothing ahead), got {read_ahead_bytes!r}"
        )
    return number


def check_range(path: PurePath, offset: int, size: int) -> None:
    """Refuse a negative offset or size."""
    if offset < 0 or size < 0:
        raise OutOfRangeError(
            f"a read needs an offset and a size of at least 0, got offset {offset} and size {size}", path=path
        )


def short_read(path: PurePath, offset: int, size: int, found: int) -> OutOfRangeError:
    """Return the error for a read that goes past the end of the file."""
    return OutOfRangeError(f"expected {size} bytes, found {found} before the end of the file", path=path, offset=offset)


def not_open(path: PurePath) -> NotOpenError:
    """Return the error for a reader that is used before ``open`` or after ``close``."""
    return NotOpenError("this file is not open: call open() first, or use `with`", path=path)
