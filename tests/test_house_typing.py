"""A user's format, backend and training script, written against the public types: mypy accepts it, and it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typing" / "user_program.py"


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    """Check one file as its user would: strict, with the package seen from outside."""
    # The project's own settings must not help; its cache may, because imports of torch and NumPy take a while.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT / '.mypy_cache' / 'user'}",
    ]
    return subprocess.run([*command, str(path)], cwd=path.parent, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_mypy_accepts_a_users_program() -> None:
    result = mypy(PROGRAM)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout


@pytest.mark.slow
def test_mypy_refuses_a_users_mistakes(tmp_path: Path) -> None:
    """Types that accept everything would pass the test above as well."""
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(
        """from pathlib import Path
from guideloom import DocumentStorage, StatefulDataLoader, StreamDataset
from guideloom.types import DocumentStorageFormat, IOReaderAbstract

class Half:
    def pack(self, data: str) -> bytes:
        return data.encode()

format: DocumentStorageFormat = Half()
storage = DocumentStorage(Path("x"), Half())
StreamDataset(storage, 4)
storage.sync_writer(mode="replace")
IOReaderAbstract()
"""
    )
    result = mypy(mistakes)
    lines = {line.split(":")[1] for line in result.stdout.splitlines() if ": error:" in line}
    assert lines == {"9", "10", "11", "12", "13"}, result.stdout


def test_the_users_program_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(PROGRAM), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")
