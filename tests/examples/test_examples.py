"""Every example runs as a program of its own, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SAYS = {
    "streams.py": ["3 shards, 1200 tokens", "[397, 398, 399, 400, 401, 402]", "torch.int64 (4, 32)"],
    "documents.py": ["['chat-9', 'chat-0', 'chat-0']", "every document once"],
    "spans.py": ["'Call me Ishmael. ' is from moby/1", "is from emma/1"],
    "span_batches.py": ["[['web'], ['web', 'books']]", "window 1: 3 tokens of books, the first 100"],
    "document_masks.py": [
        "cu_seqlens [0, 3, 8, 10, 16] longest 6",
        "positions [0, 1, 2, 0, 1, 2, 3, 4]",
        "counts    [1, 1, 0, 1, 1, 1, 1, 0]",
    ],
    "converting.py": [
        "5 windows; the first: tokens [0, 1, 2, 3, 4, 5, 6, 7, 8], documents [0, 0, 0, 0, 0, 1, 1, 1, 1]",
        "[0 1 2] naïve {'weight': 2.5}",
        "9 tokens in 2 shards: [0 1 2 0 1 2 3 0 1]",
    ],
    "choosing.py": ["[34, 38, 48, 55], [81, 99]]", "111 samples an epoch", "  0: [0]\n  0.5: [0, 1]\n  3: [3]\n"],
    "mixing.py": ["75 windows of the web and 50 of books, 25 batches", "the rest is the same"],
    "arrays.py": ["tokens [2, 3, 4, 5, 6, 7] rewards [1.0]", "pixels (4, 6, 3) label 7", "lengths [6, 1, 5, 8]"],
    "processes.py": ["[300, 300, 300, 300]", "a second time it is refused", "[303, 300, 300, 1]", "[2298, 2299, 9]"],
    "workers.py": ["6 batches from 2 processes, the same as without"],
    "resume.py": ["20 windows before, 28 after", "another seed is refused", "32 of 52 windows left"],
    "two_ranks.py": ["two ranks, 4 steps", "one rank, 2 steps more: every one of 48 windows was seen once"],
    "custom_backend.py": ["window [98, 99, 100, 101] of two shards took 2 reads", "with asyncio it is the same"],
    "custom_format.py": [],
}


def run(script: str, *arguments: str) -> str:
    """Run an example with warnings as errors; return what it printed."""
    process = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("script", SAYS)
def test_example_runs_and_says_what_it_should(script: str) -> None:
    said = run(script)
    assert said
    for expected in SAYS[script]:
        assert expected in said


def test_example_writes_where_it_is_told(tmp_path: Path) -> None:
    run("streams.py", str(tmp_path / "data"))
    assert len(list((tmp_path / "data").glob("*.commit.json"))) == 3


def test_no_example_is_left_out() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"}
    assert scripts == set(SAYS)
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [script for script in sorted(scripts) if f"`{script}`" not in told] == []
