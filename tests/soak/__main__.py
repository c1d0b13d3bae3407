"""Run one part of the soak, or all: ``python -m tests.soak --help``; ``make soak`` runs all.

A part runs a number of cases, or as many as a time allows, each with a seed of its own. Its last line is a summary as
JSON; the first case that fails ends the run with its seed, the command that repeats it, and exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from tests.soak import full, kills, mutations, schedule, stress

tqdm.monitor_interval = 0  # no thread: cases fork

PARTS: dict[str, tuple[Callable[[int, Path], int], str]] = {
    "schedule": (schedule.run_case, "kills"),
    "kills": (kills.run_case, "kills"),
    "stress": (stress.run_case, "looks"),
    "full": (full.run_case, "found no room"),
    "properties": (mutations.run_properties, "files"),
    "mutations": (mutations.run_mutations, "files"),
}
"""Name -> one case, given a seed and an empty folder, and what it counts."""


def run(part: str, seed: int, num_cases: int | None, seconds: float | None) -> int:
    """Run cases until there were enough; return the exit status."""
    run_case, counted = PARTS[part]
    done = count = 0
    begin = time.monotonic()
    with tqdm(total=num_cases, desc=part, unit=" cases", disable=None) as bar:
        while done != num_cases and (seconds is None or time.monotonic() - begin < seconds):
            scratch = Path(tempfile.mkdtemp(prefix="guideloom-soak-"))
            try:
                count += run_case(seed + done, scratch)
            except Exception:  # noqa: BLE001 - a case may fail in any way
                traceback.print_exc()
                print(f"to repeat it: python -m tests.soak {part} --seed {seed + done} --cases 1", file=sys.stderr)
                return 1
            finally:
                shutil.rmtree(scratch)
            done += 1
            bar.update()
            bar.set_postfix({counted: count})
    took = round(time.monotonic() - begin, 1)
    print(json.dumps({"part": part, "seed": seed, "cases": done, counted: count, "seconds": took}), flush=True)
    return 0


def run_coverage(seconds: float) -> int:
    """Fuzz the parsers guided by coverage, in a process of its own; return the exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.coverage", str(max(1, int(seconds)))], capture_output=True, text=True
    )
    counted = re.search(r"number_of_executed_units: ([0-9]+)", done.stderr)
    if done.returncode or counted is None:
        print(done.stdout + done.stderr[-5000:], file=sys.stderr)
        return 1
    print(json.dumps({"part": "coverage", "files": int(counted[1]), "seconds": seconds}), flush=True)
    return 0


def main() -> int:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "coverage", "all"])
    parser.add_argument("--seed", type=int, help="of the first case; random, and printed, if not given")
    parser.add_argument("--cases", type=int, help="how many in each part")
    parser.add_argument("--seconds", type=float, help="how long in all; 60 if --cases is not given")
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk: kills do not need it")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    seconds = 60.0 if options.seconds is None and options.cases is None else options.seconds
    if options.no_fsync:
        os.fsync = lambda descriptor: None
    names = [options.part]
    if options.part == "all":
        names = list(PARTS)
        if not full.is_possible():
            print("this machine lets no user mount a file system: the part 'full' is left out", file=sys.stderr)
            names.remove("full")
        if find_spec("atheris") is not None:
            names.append("coverage")
        else:
            print("atheris is not installed: the parsers are fuzzed without coverage", file=sys.stderr)
    share = None if seconds is None else seconds / len(names)
    return max(
        run_coverage(share or 60.0) if name == "coverage" else run(name, seed, options.cases, share) for name in names
    )


if __name__ == "__main__":
    sys.exit(main())
