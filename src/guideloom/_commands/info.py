"""``guideloom info``: what a data set is."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from guideloom._base.checks import descr_of
from guideloom._commands.data_set import NO_DTYPE, UNITS, add_common, open_any
from guideloom._commands.text import table, words
from guideloom._storage.catalog import Catalog
from guideloom._storage.identity import identify_published
from guideloom._storage.local import LocalFolder, drive

MAX_ROWS = 20
"""Shards that are printed; ``--json`` gives all."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("info", help="what a data set is: kind, dtype, shards, counts, bytes, identity")
    add_common(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> str:
    """Return the facts as text, or as JSON."""
    catalog = open_any(options.directory, options.dtype)
    identity = catalog.identity
    if identity is None:
        identity = drive(identify_published(catalog), LocalFolder(options.directory).answer)
    known = catalog.kind == "document" or catalog.dtype is not None
    facts: dict[str, Any] = {
        "path": str(options.directory),
        "kind": catalog.kind,
        "layout": catalog.layout,
        "format": catalog.format_name or None,
        "dtype": None if catalog.dtype is None else descr_of(catalog.dtype),
        "identity": identity,
        "num_shards": catalog.num_shards,
        "num_parts": int(catalog.shard.size),
        "count": catalog.total if known else None,
        "spans": int(catalog.spans.sum()) if catalog.kind == "stream_with_meta" else None,
        "bytes": int(catalog.sizes.sum()),
        "metadata": dict(catalog.metadata),
    }
    shards = _shard_rows(catalog, known)
    if options.json:
        return json.dumps({**facts, "shards": shards}, indent=2)
    unit = UNITS[catalog.kind]
    lines = [
        (key.removeprefix("num_") if key != "count" else unit, words(value))
        for key, value in facts.items()
        if value not in (None, {}) or key == "count"
    ]
    if not known:
        lines.append(("note", NO_DTYPE))
    width = max(len(name) for name, _ in lines)
    head = "\n".join(f"{name:<{width}}  {text}" for name, text in lines)
    keys = [
        key for key in ("shard", "parts", "count", "spans", "bytes") if key != "spans" or facts["spans"] is not None
    ]
    columns = [unit if key == "count" else key for key in keys]
    rows = [[words(row[key]) for key in keys] for row in shards[:MAX_ROWS]]
    more = f"\n... {len(shards) - MAX_ROWS:,} more shards: --json lists them all" if len(shards) > MAX_ROWS else ""
    return f"{head}\n\n{table(columns, rows)}{more}"


def _shard_rows(catalog: Catalog, known: bool) -> list[dict[str, int | None]]:
    num_shards = catalog.num_shards
    parts = np.bincount(catalog.shard, minlength=num_shards)
    spans, sizes = np.zeros((2, num_shards), np.int64)
    np.add.at(spans, catalog.shard, catalog.spans)
    for column in (catalog.elements_file, catalog.offsets_file, catalog.payload_file, catalog.table_file):
        there = column >= 0
        np.add.at(sizes, catalog.shard[there], catalog.sizes[column[there]])
    return [
        {
            "shard": shard,
            "parts": int(parts[shard]),
            "count": int(catalog.shard_counts[shard]) if known else None,
            "spans": int(spans[shard]) if catalog.kind == "stream_with_meta" else None,
            "bytes": int(sizes[shard]),
        }
        for shard in range(num_shards)
    ]
