"""``guideloom verify``: check everything, or records and sizes only."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from typing import Any

from guideloom._commands.data_set import add_directory, parse_dtype
from guideloom._commands.progress import progress_bar
from guideloom._commands.text import counted
from guideloom._storage.verify import verify

MAX_LINES = 50
"""Notes that are printed; ``--json`` gives all. Errors are all printed."""

# What remedies name, and a shell needs the folder for.
_COMMANDS = re.compile(r"guideloom (?:manifest|clean|repair(?: --create-empty)?)")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        help="check records, sizes and every byte",
        description="Exit status: 0 nothing is damaged, 1 something is, 2 the check could not run.",
    )
    add_directory(parser)
    parser.add_argument("--quick", action="store_true", help="records, manifest and sizes only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--jobs", type=int, metavar="N", help="threads (default: one a core)")
    parser.add_argument("--dtype", type=parse_dtype, help="element dtype, for the published 1.x layout")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> tuple[str, int]:
    """Check, and return what to print and the exit status."""
    with progress_bar("verify") as progress:
        report = verify(options.directory, options.quick, options.jobs, progress, options.dtype)
    status = 0 if report.is_sound else 1
    if options.json:
        return json.dumps(report.as_json(), indent=2), status
    notes = [finding for finding in report.findings if finding.severity == "note"]
    lines = [str(finding) for finding in (*report.errors, *notes[:MAX_LINES])]
    if len(notes) > MAX_LINES:
        lines.append(f"... {counted(len(notes) - MAX_LINES, 'more note')}: --json lists them all")
    looked = "records and sizes" if report.quick else counted(report.bytes_checked, "byte")
    if report.layout != "current":
        looked += "; the published 1.x layout has no checksums, so bytes could not be checked"
    verdict = "sound" if report.is_sound else f"damaged: {counted(len(report.errors), 'error')}"
    named = {command for finding in report.findings for command in _COMMANDS.findall(finding.remedy)}
    lines += [f"in full: {command} {shlex.quote(report.path)}" for command in sorted(named)]
    lines.append(
        f"{report.path}: {verdict} ({counted(report.num_shards, 'shard')}, {counted(report.num_parts, 'part')}, "
        f"{counted(report.num_files, 'file')}; {looked})"
    )
    return "\n".join(lines), status
