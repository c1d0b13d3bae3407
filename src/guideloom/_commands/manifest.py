"""``guideloom manifest``: gather the manifest anew from the commit records."""

from __future__ import annotations

import argparse
from typing import Any

from guideloom._commands.data_set import add_directory
from guideloom._commands.text import counted
from guideloom._storage.names import MANIFEST
from guideloom._storage.repair import rebuild_manifest


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("manifest", help="gather the manifest anew from the commit records")
    add_directory(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> tuple[str, int]:
    """Gather; say how much, and what was known before and is gone, since nothing will tell it again."""
    num_parts, lost = rebuild_manifest(options.directory)
    text = f"{options.directory / MANIFEST}: names {counted(num_parts, 'part')}"
    if not lost:
        return text, 0
    names = ", ".join(lost[:5]) + (" ..." if len(lost) > 5 else "")
    return (
        f"{text}, and no longer {counted(len(lost), 'part')} whose commit record is gone ({names}): to have the data "
        "back, restore the record from a copy and run this again, before anything else is written"
    ), 1
