"""Whether what is on disk is what the caller asked for: kind, dtype, format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from guideloom._base.checks import describe_dtype
from guideloom._base.errors import WrongKindError
from guideloom._format.naming import formats_agree
from guideloom._storage.catalog import Kind
from guideloom._storage.names import STORAGE_CLASS

_WORDS: dict[Kind, str] = {
    "stream": "a stream",
    "document": "documents",
    "stream_with_meta": "a stream with metadata",
}


def check_kind(found: Kind, asked: Kind, folder: str) -> None:
    """Check the kind of a data set.

    Raises
    ------
    WrongKindError
        It names both kinds, and the class to use.
    """
    if found != asked:
        raise WrongKindError(
            f"asked for {_WORDS[asked]} ({STORAGE_CLASS[asked]}), but this data set holds {_WORDS[found]}: "
            f"use {STORAGE_CLASS[found]}",
            path=folder or None,
        )


def check_agrees(
    found: tuple[Kind, np.dtype[Any] | None, Iterable[str]],
    asked: tuple[Kind, np.dtype[Any] | None, str],
    folder: str,
) -> None:
    """Check kind, dtype (packed, little-endian) and format name of a data set against those asked for.

    Only two different built-in document formats exclude each other: a user's format may well read what another wrote.

    Raises
    ------
    WrongKindError
        With both values.
    """
    kind, dtype, formats = found
    asked_kind, asked_dtype, asked_format = asked
    check_kind(kind, asked_kind, folder)
    if dtype != asked_dtype:
        raise WrongKindError(
            f"the storage's format has elements of dtype {describe_dtype(asked_dtype)}, "
            f"but this data set holds {describe_dtype(dtype)}: give the format that dtype",
            path=folder or None,
        )
    if kind == "document":
        for name in sorted(set(formats)):
            if not formats_agree(name, asked_format):
                theirs = name.partition("(")[0]
                same = theirs == asked_format.partition("(")[0]
                raise WrongKindError(
                    f"asked for {asked_format}, but this data set was written with {name}: "
                    f"use {theirs}{' with the fields that it was written with' if same else ''}",
                    path=folder or None,
                )
