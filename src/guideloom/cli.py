"""The command ``guideloom``: looks at data sets, checks and mends them, without a program of the user's.

It needs no format: kind and dtype come from the data set (or, for the published 1.x layout, from ``--dtype``).
An error of GuideLoom's own is one line on stderr, with exit status 2.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from guideloom._base.errors import GuideLoomError
from guideloom._bench import command as bench_command
from guideloom._commands import clean, info, manifest, repair, show, upgrade, verify
from guideloom._commands.data_set import add_common, open_any
from guideloom._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, 1 when something is damaged, was left as it was, or the reader of the output went away, 2 for an
        error that was reported, 130 after Ctrl-C.
    """
    _print_whatever_there_is()
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # By itself argparse would answer with the usage of `guideloom`, which says nothing of the command's options.
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help()
        return 0
    try:
        result: str | tuple[str, int] = options.command(options)
        text, status = (result, 0) if isinstance(result, str) else result
        print(text, flush=True)
    except BrokenPipeError:
        # Without this the interpreter complains once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\nguideloom: interrupted", file=sys.stderr)
        return 130
    except (GuideLoomError, OSError) as error:
        print(f"guideloom: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return status


def _print_whatever_there_is() -> None:
    """Have letters that a terminal or a pipe cannot show come as escapes: payloads, paths and bars may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="guideloom", description="Look at GuideLoom data sets, check and mend them.")
    parser.add_argument("--version", action="version", version=f"guideloom {__version__}")
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    info.add(commands)
    show.add(commands)
    verify.add(commands)
    repair.add(commands)
    clean.add(commands)
    manifest.add(commands)
    upgrade.add(commands)
    bench = commands.add_parser("bench", help=bench_command.HELP)
    add_common(bench)
    bench_command.add_options(bench)
    bench.set_defaults(command=_bench)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _bench(options: argparse.Namespace) -> str:
    return bench_command.run(options, open_any(options.directory, options.dtype))
