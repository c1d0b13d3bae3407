"""The check of arguments that the pure functions share."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from guideloom._base.errors import ArgumentError


def integer(value: SupportsIndex, name: str) -> int:
    """Return ``value`` as a Python integer; what is not one (a float, a string) is an ``ArgumentError``."""
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
