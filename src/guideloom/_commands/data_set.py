"""The data set that a command is about: its folder, its dtype where that is not on disk, and opening it."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any, Final

import numpy as np

from guideloom._base.errors import ArgumentError
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.names import RECORD_LIMIT_BYTES, parse_record_name
from guideloom._storage.opening import open_catalog
from guideloom._storage.published import published_kind, published_shards
from guideloom._storage.record import decode_record
from guideloom._storage.requests import ListFolder, ReadFile

NO_DTYPE: Final = "the published 1.x layout does not say its dtype: give it with --dtype"
UNITS: Final[dict[Kind, str]] = {"stream": "elements", "document": "documents", "stream_with_meta": "elements"}


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``DIR``."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the data set's folder")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add ``DIR``, ``--json`` and ``--dtype``."""
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--dtype",
        type=parse_dtype,
        help="element dtype, for the published 1.x layout: '<u2', or '[[\"token\", \"<u2\"]]'",
    )


def parse_dtype(text: str) -> np.dtype[Any]:
    """Parse the value of ``--dtype``: a NumPy type, or a list of fields as ``info`` prints it."""
    try:
        dtype: np.dtype[Any] = np.dtype(_fields(ast.literal_eval(text)) if text.lstrip().startswith("[") else text)
    except (TypeError, ValueError, SyntaxError) as error:
        form = """'<u2', or a list of fields as info prints it: '[["token", "<u2"]]'"""
        raise argparse.ArgumentTypeError(f"expected a dtype ({form}), found {text!r} ({error})") from None
    return dtype


def _fields(descr: Any) -> Any:
    """Make NumPy's tuples out of the lists that JSON has, so that what ``info`` prints can be given back."""
    if not isinstance(descr, list) or not all(isinstance(field, list) and len(field) in (2, 3) for field in descr):
        return descr
    return [(name, _fields(of), *(tuple(extents) for extents in shape)) for name, of, *shape in descr]


def open_any(directory: Path, dtype: np.dtype[Any] | None = None) -> Catalog:
    """Open a data set of any kind, asking it what it is.

    Parameters
    ----------
    directory : pathlib.Path
    dtype : dtype, optional
        Element dtype, for streams in the published 1.x layout; without it their counts are 0.

    Raises
    ------
    DataSetError
        Not there, foreign, newer, with holes, or damaged.
    ArgumentError
        ``dtype`` for a data set that says itself what it holds, and another one.
    """
    folder = LocalFolder(directory)
    listing: dict[str, int] = folder.answer(ListFolder())
    records = sorted(name for name in listing if parse_record_name(name) is not None)
    data: bytes | None = folder.answer(ReadFile(records[0], RECORD_LIMIT_BYTES)) if records else None
    if data is not None:
        record = decode_record(data, records[0], str(directory))
        kind = record.kind
        if dtype is None:
            dtype = record.dtype
    else:
        kind = published_kind(published_shards(listing).values())
    if kind == "document" and dtype is not None:
        raise ArgumentError("documents have no dtype: leave --dtype out", path=directory)
    return drive(open_catalog(kind, dtype, "", folder=str(directory)), folder.answer)
