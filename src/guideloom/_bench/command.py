"""``guideloom bench``: options, and the run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from guideloom._base.errors import ArgumentError
from guideloom._bench.sizes import BATCH_SIZE, SEQUENCE_LENGTH, Sizes, choose_sizes
from guideloom._storage.catalog import Catalog

HELP = "which backend, workers and prefetch to use for this data set on this machine, measured"

_EPILOG = """\
It reads and never writes. Batches are shuffled. A first batch is told apart from those after it, and cold reads from
warm ones. --cold drops the data's files from the page cache, which slows down whoever else reads them.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--sequence-length",
        type=int,
        metavar="T",
        help=f"elements of a window, for streams (default: {SEQUENCE_LENGTH}, or what small data has room for)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="B", help=f"samples (default: {BATCH_SIZE}, or what small data has room for)"
    )
    parser.add_argument("--backends", type=_names, metavar="NAMES", help="seek,pread,mmap or pread+advice")
    parser.add_argument(
        "--workers", type=_numbers, default=[0, 1, 2], metavar="N,N", help="reading threads (default: 0,1,2)"
    )
    parser.add_argument(
        "--prefetch", type=_numbers, default=[0, 4], metavar="N,N", help="batches made ahead (default: 0,4)"
    )
    parser.add_argument("--step-ms", type=float, metavar="MS", help="length of a training step to hide loading behind")
    parser.add_argument(
        "--collate",
        metavar="HOW",
        help="none (numeric batches), stack, list, or your own module:function (default: none where possible)",
    )
    parser.add_argument(
        "--format",
        metavar="MODULE:OBJECT",
        help="your format; without it documents of arrays or JSON are decoded, others stay bytes",
    )
    parser.add_argument("--device", help="where batches go (default: the current CUDA device, else cpu)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help="time for everything (default: %(default)s)"
    )
    parser.add_argument("--cold", action="store_true", help="also measure without the page cache")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(number) for number in text.split(",")})
    except ValueError:
        numbers = [-1]
    if numbers[0] < 0:
        raise argparse.ArgumentTypeError(f"expected numbers of at least 0, such as 0,1,2, found {text!r}")
    return numbers


def run(options: argparse.Namespace, catalog: Catalog) -> str:
    """Measure, and return what is to be printed.

    Raises
    ------
    ArgumentError
        An option is out of range or does not suit the data set, or PyTorch is not installed.
    """
    try:
        from guideloom._bench import subject as subjects
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ArgumentError(f"bench measures the loader: {error}") from error
    from guideloom._bench.advice import recommend
    from guideloom._bench.measure import measure, num_measurements
    from guideloom._bench.report import facts, text

    _check(options, catalog)
    available = subjects.backends()
    names = options.backends or [name for name in available if name != "pread+advice"]
    for name in names:
        if name not in available:
            raise ArgumentError(f"--backends: expected some of {', '.join(available)}, found {name!r}")
    settings = [
        subjects.Setting(name, workers, prefetch)
        for name in dict.fromkeys(names)
        for workers in options.workers
        for prefetch in options.prefetch
    ]
    known = catalog.kind == "document" or catalog.dtype is not None
    sizes = choose_sizes(
        catalog.total if known else None,
        is_document=catalog.kind == "document",
        sequence_length=options.sequence_length,
        batch_size=options.batch_size,
        path=options.directory,
    )
    subject, collate = _subject(options, catalog, sizes)
    step_s = None if options.step_ms is None else options.step_ms / 1e3
    with _progress(num_measurements(len(settings), options.cold, step_s is not None)) as progress:
        try:
            measured = measure(
                subject,
                available,
                settings,
                seconds=options.seconds,
                cold=options.cold,
                step_s=step_s,
                progress=progress,
            )
        except Exception as error:
            if options.format is None and subject.collate_fn is not None:
                error.add_note(
                    "guideloom bench: without --format MODULE:OBJECT the collate function gets plain arrays and bytes, "
                    "and not what a format of your own would unpack"
                )
            raise
    found = facts(subject, measured, recommend(measured.rows, step_s), collate, step_s)
    if sizes.note is not None:
        found["notes"].insert(0, sizes.note)
    return json.dumps(found, indent=2) if options.json else text(found)


def _check(options: argparse.Namespace, catalog: Catalog) -> None:
    for name in ("sequence_length", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ArgumentError(f"--{name.replace('_', '-')} must be at least 1, found {value}")
    for name in ("seconds", "step_ms"):
        value = getattr(options, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"--{name.replace('_', '-')} must be a number above 0, found {value}")
    if catalog.kind == "document" and options.sequence_length is not None:
        raise ArgumentError("documents are read whole: leave --sequence-length out", path=options.directory)


def _subject(options: argparse.Namespace, catalog: Catalog, sizes: Sizes) -> tuple[Any, str]:
    from guideloom._bench import subject as subjects
    from guideloom._loader.bridge import as_device

    if options.format is None:
        storage_format = subjects.default_format(catalog)
    else:
        storage_format = subjects.load_object(options.format)
        if isinstance(storage_format, type) or not hasattr(storage_format, "unpack"):
            storage_format = storage_format()
    is_document = catalog.kind == "document"
    numeric = not is_document or getattr(storage_format, "ragged_dtype", None) is not None
    collate = options.collate or ("none" if numeric else "list")
    if collate == "none" and not numeric:
        raise ArgumentError("--collate none needs numeric batches, these documents have none: use list, or your own")
    if collate == "stack" and is_document:
        raise ArgumentError("--collate stack needs samples of one size: use list, or your own, for documents")
    functions: dict[str, Any] = {"none": None, "stack": subjects.stack, "list": subjects.keep}
    function = functions[collate] if collate in functions else subjects.load_object(collate)
    return (
        subjects.Subject(
            options.directory,
            catalog,
            storage_format,
            function,
            sizes.sequence_length,
            sizes.batch_size,
            as_device(options.device),
        ),
        collate,
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=total, leave=False, bar_format="{l_bar}{bar}| {elapsed} {postfix}") as bar:

        def progress(what: str) -> None:
            bar.update()
            bar.set_postfix_str(what)

        yield progress
