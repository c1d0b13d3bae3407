"""``guideloom repair``: go back to what is whole, after saying what that means."""

from __future__ import annotations

import argparse
from typing import Any

from guideloom._commands.data_set import add_directory
from guideloom._commands.progress import confirm, progress_bar
from guideloom._storage.repair import apply, plan_repair


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "repair",
        help="drop what is not whole, and gather the manifest anew",
        description="Says what it will do, and asks. Nothing is deleted: files are moved into DIR/dropped-<time>. "
        "To be run while no writer is at work. Exit status: 0 whole now, 1 left as it was, 2 error.",
    )
    add_directory(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--quick", action="store_true", help="trust the bytes of files whose size is right")
    parser.add_argument("--create-empty", action="store_true", help="put empty shards where nothing whole is left")
    parser.add_argument("--jobs", type=int, metavar="N", help="threads (default: one a core)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> tuple[str, int]:
    """Plan, say, ask, and do."""
    with progress_bar("check") as progress:
        actions = plan_repair(
            options.directory,
            quick=options.quick,
            create_empty=options.create_empty,
            jobs=options.jobs,
            progress=progress,
        )
    if not actions:
        return f"{options.directory}: nothing to repair", 0
    print("\n".join(f"{number}. {action.text}" for number, action in enumerate(actions, 1)), flush=True)
    if any(action.kind == "refused" for action in actions):
        return "nothing was changed", 1
    if not confirm("Is no writer at work? Do this?", options.yes):
        return "nothing was changed", 1
    moved = apply(actions)
    return "done" if moved is None else f"done; what was moved away lies in {moved}", 0
