"""Rates of reading and writing beside their ceilings: the tables of docs/performance.md.

    python -m benchmarks.rates [FOLDER] [--json] [--only NAME ...] [--seconds 90]

It makes its data once in FOLDER, 0.7 GB with the default sizes, and reads them out of the page cache. What is compared
takes turns in several rounds; ratios are those within a round, and their median is given, so that other work on the
machine, which comes and goes, weighs less. The caller does nothing but take batches, except for ``queue``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rates_reading import READINGS, Sizes, make_data, queue_rows, reading_rows
from benchmarks.rates_tables import tables
from benchmarks.rates_writing import WRITINGS, writing_rows
from guideloom import __version__

QUEUE = "queue"
NAMES = (*READINGS, QUEUE, *WRITINGS)
LEAST = {"windows": 512, "documents": 512, "spans": 6_000}
"""What makes a few batches of each kind."""


def machine() -> dict[str, Any]:
    return {
        "processors": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "guideloom": __version__,
    }


def measure(
    folder: Path,
    sizes: Sizes,
    names: Sequence[str] = NAMES,
    *,
    rounds: int = 5,
    seconds: float = 90.0,
    steps: int = 40,
    width: int = 700,
) -> dict[str, Any]:
    """Measure what ``names`` says, and return plain numbers and strings, for JSON.

    Parameters
    ----------
    folder : Path
        For the data, which stay there.
    sizes : Sizes
    names : sequence of str
    rounds : int
    seconds : float
        For all that is read, shared by rounds and rows; each takes at least one batch. What is written, and ``queue``,
        take as long as they do.
    steps, width : int
        Of ``queue``: steps of a round, and the size of the matrices.
    """
    load = [os.getloadavg()[0]]
    readings = [name for name in names if name in READINGS]
    kinds = [READINGS[name].kind for name in readings] + ["stream"] * (QUEUE in names)
    make_data(folder, sizes, kinds)
    found: dict[str, Any] = {"machine": machine(), "sizes": asdict(sizes), "rounds": rounds, "seconds": seconds}
    found["reading"] = reading_rows(folder, sizes, readings, rounds, seconds)
    found["queue"] = queue_rows(folder, sizes, rounds, steps, width) if QUEUE in names else []
    found["writing"] = writing_rows(folder, sizes, [name for name in names if name in WRITINGS], rounds)
    return found | {"load_average": [*load, os.getloadavg()[0]]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rates", description="Rates of reading and writing beside their ceilings."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="for its data, kept there (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="all figures as one document of JSON, in units a second")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--seconds", type=float, default=90.0, help="for all that is read (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=40, help="of queue, in a round (default: %(default)s)")
    parser.add_argument("--width", type=int, default=700, help="of the matrices of queue (default: %(default)s)")
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value, help="in the data (default: %(default)s)")
    options = parser.parse_args(arguments)
    least = {"seconds": 0.0, "rounds": 1, "steps": 1, "width": 1} | LEAST
    for name, bound in least.items():
        if not getattr(options, name) >= bound:
            parser.error(f"--{name}: expected at least {bound}, found {getattr(options, name)}")
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(
            options.folder or Path(scratch),
            Sizes(**{name: getattr(options, name) for name in asdict(Sizes())}),
            options.only,
            rounds=options.rounds,
            seconds=options.seconds,
            steps=options.steps,
            width=options.width,
        )
    print(json.dumps(found, indent=2) if options.json else tables(found))


if __name__ == "__main__":
    main()
