"""Integer and slice indexes, checked alike everywhere."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, OutOfRangeError


def integer(value: Any, name: str) -> int:
    """Return ``value`` as a Python int; NumPy integers will do, floats and bools will not."""
    if isinstance(value, bool | np.bool_):
        raise ArgumentError(f"expected an integer as {name}, found the bool {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"expected an integer as {name}, found {type(value).__name__} {value!r}") from None


def item_index(index: Any, size: int, what: str) -> int:
    """Check an index into ``size`` items; negative ones are errors, not counted from the end."""
    number = integer(index, f"{what} index")
    if not 0 <= number < size:
        raise OutOfRangeError(f"{what} index {number} is outside [0, {size})")
    return number


def slice_indexes(index: slice, size: int) -> npt.NDArray[np.int64]:
    """Return the indexes that a slice names, as Python's sequences do, with any step."""
    return np.arange(*index.indices(size), dtype=np.int64)
