"""Programs of their own, whose memory, descriptors, maps and threads are theirs alone."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import gc, json, os, sys, threading
from pathlib import Path
import numpy as np
import guideloom.io, guideloom.testing
from guideloom import *
from guideloom.testing import IdStreamFormat

folder = Path(sys.argv[1])

class Raw:
    def pack(self, data):
        return data

    def unpack(self, encoded, shard):
        return bytes(encoded)

def backend(name):
    return getattr(guideloom.io, name, None) or getattr(guideloom.testing, name)

def anonymous_kib(pid="self"):
    # What is the process's own: pages of mapped files come and go with the page cache.
    gc.collect()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])

def held():
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": Path("/proc/self/maps").read_text().count("\\n"),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
    }
"""


def run(program: str, folder: Path, *arguments: object) -> Any:
    """Run a program, and return the JSON it prints last."""
    # From a file, so that processes that are spawned can import it.
    script = folder.parent / f"{folder.name}-program.py"
    script.write_text(HEAD + textwrap.dedent(program))
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
