"""The kernels that use raw addresses, among pages without access: no plan makes one touch what is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(way: str, number: int, folder: Path, **variables: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.guarded", way, str(number), str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (result.returncode, result.stdout) == (0, "unharmed\n"), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mapped", "read", "spread", "populate", "tables"])
def test_no_plan_leads_outside(way: str, tmp_path: Path) -> None:
    run(way, 3000, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tables", "mapped"])
def test_no_plan_leads_outside_an_array(way: str, tmp_path: Path) -> None:
    """The same with every index checked: what stays inside a page is found too."""
    run(way, 100, tmp_path, NUMBA_BOUNDSCHECK="1")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mapped", "read", "spread"])
def test_the_numpy_twins_refuse_the_same_plans(way: str, tmp_path: Path) -> None:
    """NumPy would count a negative file number from the end, and give an IndexError for one that is too large."""
    run(way, 500, tmp_path, NUMBA_DISABLE_JIT="1")
