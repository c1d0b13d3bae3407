"""``guideloom clean``: remove files that no reader looks at."""

from __future__ import annotations

import argparse
from typing import Any

from guideloom._commands.data_set import add_directory
from guideloom._commands.progress import confirm
from guideloom._commands.text import counted
from guideloom._storage.leftovers import find_leftovers, remove_leftovers

_WORDS = {
    "temporary": "a writer's work in progress",
    "uncommitted": "data that no commit record names",
    "superseded": "data of a part that was replaced",
}


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "clean",
        help="remove leftovers of killed writers, and data that was replaced",
        description="To be run while no writer is at work in the folder. Exit status: 0 clean now, 1 left as it was, "
        "2 error.",
    )
    add_directory(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> tuple[str, int]:
    """List, ask, and remove."""
    leftovers = find_leftovers(options.directory)
    if not leftovers:
        return f"{options.directory}: no leftovers", 0
    lines = [f"{leftover.name}: {_WORDS[leftover.kind]}, {counted(leftover.size, 'byte')}" for leftover in leftovers]
    print("\n".join(lines), flush=True)
    total = sum(leftover.size for leftover in leftovers)
    question = f"Is no writer at work? Remove {counted(len(leftovers), 'file')}, {counted(total, 'byte')}?"
    if not confirm(question, options.yes):
        return "nothing was removed", 1
    freed = remove_leftovers(options.directory, [leftover.name for leftover in leftovers])
    return f"removed {counted(len(leftovers), 'file')}, {counted(freed, 'byte')}", 0
