"""Formats that only read, for commands that look at data whose own format they do not have."""

from __future__ import annotations

from typing import Any

import numpy as np

from guideloom._base.errors import ArgumentError


class ReadingFormat:
    """Refuses to write; a subclass says what a sample is, with ``unpack``."""

    def size(self, data: Any) -> int:
        """Refuse."""
        raise ArgumentError("this format only reads")

    def pack(self, data: Any) -> Any:
        """Refuse."""
        raise ArgumentError("this format only reads")


class ReadingStreamFormat(ReadingFormat):
    """The same for streams, with or without spans.

    Parameters
    ----------
    stream_dtype : dtype
        Of an element.
    """

    def __init__(self, stream_dtype: np.dtype[Any]) -> None:
        self.stream_dtype = stream_dtype
