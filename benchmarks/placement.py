"""What threads cost a caller who does nothing but take batches, by how far apart two processors are at that moment.

    python -m benchmarks.placement [FOLDER] [--only NAME ...] [--by BACKEND ...] [--seconds 120] [--json]

The two processors of a virtual machine may be two cores that share a cache, two threads of one core, or cores without a
common cache, and the host moves them while a program runs. Which of these it is shows in the time that a cache line
takes from one to the other and back. That is measured before and after each short stretch of batches, and stretches
in which it did not change are sorted by it. It reads the data that ``benchmarks.rates`` makes in FOLDER, in its ways.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from benchmarks.rates_reading import READINGS, Collector, Reading, Sizes, folder_of, make_data, take
from benchmarks.workloads import BACKENDS, loader
from guideloom._kernels.native_desk import load, swap

SETTINGS = {"without threads": (0, 0), "2 workers": (2, 4)}
ROUND_TRIPS = 3000
WARM, STRETCH_S = 24, 0.01
"""Batches that are not timed after a pause, and for how long batches are then taken."""
WORDS_APART = 16
"""Words of 8 bytes between two signals, so that neither a cache line nor the one beside it holds both."""


class Stretch(NamedTuple):
    """Seconds a batch, and the round trip in ns before and after."""

    batch_s: float
    before_ns: float
    after_ns: float


@numba.njit(nogil=True)  # type: ignore[misc, unused-ignore]
def _answer(asked: int, answered: int, num: int) -> None:
    """Say each number from 1 to ``num`` after the other thread; ``asked`` and ``answered`` are addresses of words."""
    for number in range(1, num + 1):
        while load(asked) != number:
            pass
        swap(answered, number)


@numba.njit(nogil=True)  # type: ignore[misc, unused-ignore]
def _ask(asked: int, answered: int, first: int, last: int) -> None:
    """Say the numbers from ``first`` to ``last``, each when the one before was answered."""
    for number in range(first, last + 1):
        swap(asked, number)
        while load(answered) != number:
            pass


def round_trip_ns(processors: tuple[int, int], num: int = ROUND_TRIPS) -> float:
    """Return how long a cache line takes from one processor to the other and back."""
    words = np.zeros(3 * WORDS_APART, np.int64)
    asked, answered = (words.ctypes.data + words.itemsize * WORDS_APART * place for place in (1, 2))

    def answer() -> None:
        os.sched_setaffinity(0, {processors[1]})
        _answer(asked, answered, num)

    allowed = os.sched_getaffinity(0)
    other = threading.Thread(target=answer)
    other.start()
    os.sched_setaffinity(0, {processors[0]})
    try:
        # The first answer comes when the other thread runs.
        _ask(asked, answered, 1, 1)
        began_at = time.perf_counter()
        _ask(asked, answered, 2, num)
        return (time.perf_counter() - began_at) * 1e9 / (num - 1)
    finally:
        os.sched_setaffinity(0, allowed)
        other.join()


def stretches(
    reading: Reading, dataset: Any, setting: tuple[int, int], trip_ns: Callable[[], float]
) -> Iterator[Stretch]:
    """Take the batches of an epoch, a stretch at a time."""
    with loader(dataset, reading.collate, *setting) as source:
        batches = iter(source)
        while True:
            before_ns = trip_ns()
            for _ in islice(batches, WARM):
                pass
            num, took_s = take(batches, Collector(), STRETCH_S)
            if took_s < STRETCH_S:
                break
            yield Stretch(took_s / num, before_ns, trip_ns())


def placed(stretch: Stretch, near_ns: float, far_ns: float) -> str:
    """Say how far apart the processors were; ``moved`` where that was not the same before and after."""

    def distance(trip_ns: float) -> str:
        return "near" if trip_ns < near_ns else "far" if trip_ns > far_ns else "between"

    before = distance(stretch.before_ns)
    return before if before == distance(stretch.after_ns) else "moved"


def compare(
    folder: Path, sizes: Sizes, ways: Sequence[tuple[str, str]], seconds: float, near_ns: float, far_ns: float
) -> list[dict[str, Any]]:
    """Return a row for each way (what is read, by which backend) and distance, in turn for ``seconds``.

    With the stretches, seconds a batch, and the rate as a part of that without threads.
    """
    first, second, *_ = sorted(os.sched_getaffinity(0))
    make_data(folder, sizes, [READINGS[what].kind for what, _ in ways])
    found: dict[tuple[str, str, str], dict[str, list[Stretch]]] = {}
    ends_at = time.monotonic() + seconds
    while True:
        for what, by in ways:
            reading = READINGS[what]
            dataset = reading.dataset(folder_of(folder, reading.kind, sizes), BACKENDS[by]())
            for name, setting in SETTINGS.items():
                for stretch in stretches(reading, dataset, setting, lambda: round_trip_ns((first, second))):
                    key = what, by, placed(stretch, near_ns, far_ns)
                    found.setdefault(key, {name: [] for name in SETTINGS})[name].append(stretch)
        if time.monotonic() >= ends_at:
            break
    return [_row(key, found[key]) for key in sorted(found)]


def _row(key: tuple[str, str, str], found: dict[str, list[Stretch]]) -> dict[str, Any]:
    trips = [trip for rows in found.values() for stretch in rows for trip in (stretch.before_ns, stretch.after_ns)]
    batch_s = {name: statistics.median(stretch.batch_s for stretch in rows) for name, rows in found.items() if rows}
    alone, threads = (batch_s.get(name) for name in SETTINGS)
    return {
        "what": key[0],
        "by": key[1],
        "processors": key[2],
        "round_trip_ns": statistics.median(trips),
        "stretches": {name: len(rows) for name, rows in found.items()},
        "batch_s": batch_s,
        "of_no_threads": alone / threads if alone and threads else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["what", "by", "processors", "round trip, ns", "stretches", "us a batch", "with 2 workers", "rate"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        times = [f"{row['batch_s'][name] * 1e6:.0f}" if name in row["batch_s"] else "" for name in SETTINGS]
        part = f"{row['of_no_threads']:.2f}" if row["of_no_threads"] else ""
        count = " and ".join(str(num) for num in row["stretches"].values())
        cells = [row["what"], row["by"], row["processors"], f"{row['round_trip_ns']:.0f}", count, *times, part]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placement", description="What threads cost, by how far apart two processors are."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="for its data, kept there (default: a temporary one)")
    parser.add_argument(
        "--only", nargs="+", choices=READINGS, default=["stack"], metavar="NAME", help=f"of {', '.join(READINGS)}"
    )
    parser.add_argument("--by", nargs="+", choices=BACKENDS, default=["mmap"], help="default: mmap")
    parser.add_argument("--seconds", type=float, default=120.0, help="default: %(default)s")
    parser.add_argument(
        "--near", type=float, default=70.0, help="round trips of one core take less ns (default: %(default)s)"
    )
    parser.add_argument("--far", type=float, default=170.0, help="without a common cache, more (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="as one document of JSON")
    options = parser.parse_args(arguments)
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("expected two processors, found one")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        ways = [(what, by) for what in options.only for by in options.by]
        rows = compare(folder, Sizes(), ways, options.seconds, options.near, options.far)
    print(json.dumps(rows, indent=2) if options.json else table(rows))


if __name__ == "__main__":
    main()
