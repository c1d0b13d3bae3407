"""``guideloom upgrade``: turn a published-1.x data set into the current format."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from guideloom._commands.data_set import parse_dtype
from guideloom._commands.progress import progress_bar
from guideloom._commands.text import counted
from guideloom._storage.names import KINDS
from guideloom._storage.upgrade import upgrade


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "upgrade",
        help="convert a data set of the published 1.x layout",
        description="Copies shard by shard, reads each back and compares it. After a kill, the same command goes on.",
    )
    parser.add_argument("old", metavar="OLD", type=Path, help="folder of the published 1.x data set; only read")
    parser.add_argument("new", metavar="NEW", type=Path, help="folder to write")
    parser.add_argument("--kind", choices=KINDS, help="checked against what is there")
    parser.add_argument(
        "--dtype",
        type=parse_dtype,
        help="element dtype of streams, which the old layout does not say: '<u2', or a list",
    )
    parser.add_argument(
        "--format", default="", metavar="NAME", help="class name of the format that wrote it, for the records"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> str:
    """Convert, and say what was done."""
    with progress_bar("upgrade") as progress:
        done = upgrade(
            options.old,
            options.new,
            kind=options.kind,
            dtype=options.dtype,
            format_name=options.format,
            progress=progress,
        )
    unit = "document" if done.kind == "document" else "element"
    resumed = f", {done.num_resumed:,} of them by an earlier run" if done.num_resumed else ""
    return (
        f"{options.new}: {counted(done.num_shards, 'shard')}{resumed}, {counted(done.count, unit)}; "
        f"{counted(done.bytes_read, 'byte')} read, and compared with what was written"
    )
