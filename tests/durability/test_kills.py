"""Writers killed at random, hundreds of times, and stress; ``make soak`` does the same for as long as one likes.

In an interpreter of its own, which is small: a case forks several processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def soak(part: str, *arguments: str) -> dict[str, Any]:
    """Run a part of the soak, and return its summary."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", part, "--no-fsync", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


@pytest.mark.slow
def test_any_interleaving_of_steps_and_kills() -> None:
    summary = soak("schedule", "--seed", "0", "--cases", "130")
    assert summary["cases"] == 130 and summary["kills"] > 100


@pytest.mark.slow
def test_kills_at_random_moments() -> None:
    summary = soak("kills", "--seed", "0", "--cases", "130")
    assert summary["cases"] == 130 and summary["kills"] > 80


@pytest.mark.slow
def test_eight_processes_at_once() -> None:
    summary = soak("stress", "--seed", "0", "--cases", "5")
    assert summary["cases"] == 5 and summary["looks"] > 5 * 4
