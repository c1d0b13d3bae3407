"""``guideloom manifest``: gather the manifest anew from the commit records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from guideloom._commands.progress import counted
from guideloom._storage.names import MANIFEST
from guideloom._storage.repair import rebuild_manifest


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("manifest", help="gather the manifest anew from the commit records")
    parser.add_argument("directory", metavar="DIR", type=Path, help="the data set's folder")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> str:
    """Gather, and say how much."""
    num_parts = rebuild_manifest(options.directory)
    return f"{options.directory / MANIFEST}: names {counted(num_parts, 'part')}"
