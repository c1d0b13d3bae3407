"""Integer and slice indexes, checked alike everywhere."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import as_int
from guideloom._base.errors import OutOfRangeError


def item_index(index: Any, size: int, what: str, path: PurePath | None = None) -> int:
    """Return an index into ``size`` items as an ``int``; a negative one is not counted from the end.

    Raises
    ------
    ArgumentError
        ``index`` is no integer.
    OutOfRangeError
        It is outside ``[0, size)``; the message names ``what`` is counted and the ``path``.
    """
    number = as_int(index, f"{what} index")
    if not 0 <= number < size:
        raise OutOfRangeError(f"{what} index {number} is outside [0, {size})", path=path)
    return number


def slice_indexes(index: slice, size: int) -> npt.NDArray[np.int64]:
    """Return the indexes that a slice names, as Python's sequences do, with any step."""
    return np.arange(*index.indices(size), dtype=np.int64)
