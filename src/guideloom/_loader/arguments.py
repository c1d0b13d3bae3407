"""Checks of the loader's arguments, and whose line a warning about them names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType

from guideloom._base.checks import as_int
from guideloom._base.errors import ArgumentError


def at_least(name: str, value: int, least: int) -> int:
    """Return ``value`` as an int, or refuse it."""
    number = as_int(value, name)
    if number < least:
        raise ArgumentError(f"{name} must be at least {least}, found {number}")
    return number


def level_outside(module: str) -> int:
    """Stack level, for a warning by the calling function, of the first frame outside a module: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__") == module:
        frame, level = frame.f_back, level + 1
    return level


def describe_samples(view: Mapping[str, int | None]) -> str:
    """Say what the samples of a data set are: windows of a length are something else than documents."""
    length = view.get("sequence_length")
    if length is None:
        return "samples"
    overlap = view.get("overlap") or 0
    return f"windows of sequence_length {length}" + (f" and overlap {overlap}" if overlap else "")
