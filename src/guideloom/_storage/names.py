"""The names of files in a data set's folder, and the sizes that counts imply."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from guideloom._storage.catalog import Kind

FORMAT_VERSION: Final = 2
MANIFEST: Final = "manifest.json"
TEMPORARY_PREFIX: Final = ".tmp-"
MANIFEST_IN_PROGRESS: Final = "-manifest"
"""End of the temporary name of a manifest: whoever commits removes those of others, and so takes back what they say."""
RECORD_SUFFIX: Final = ".commit.json"
BLOCK_BYTES: Final = 1 << 20
RECORD_LIMIT_BYTES: Final = 64 << 20
MANIFEST_LIMIT_BYTES: Final = 1 << 30
MAX_NUMBER: Final = 2**31 - 1
"""Largest shard number and part number."""
MAX_SIZE: Final = 2**62
"""Largest count and file size: sums of two still fit in 64 bits."""

KINDS: Final[tuple[Kind, ...]] = ("stream", "document", "stream_with_meta")
ROLES: Final[dict[Kind, tuple[str, ...]]] = {
    "stream": ("elements",),
    "document": ("offsets", "payload"),
    "stream_with_meta": ("elements", "payload", "spans"),
}
STORAGE_CLASS: Final[dict[Kind, str]] = {
    "stream": "StreamStorage",
    "document": "DocumentStorage",
    "stream_with_meta": "StreamWithMetaStorage",
}

_RECORD = re.compile(r"([0-9]{7,10})-([0-9]{4,10})\.commit\.json")
_DATA = re.compile(r"([0-9]{7,10})-([0-9]{4,10})\.([0-9a-f]{16})\.(elements|offsets|payload|spans)\.bin")


def record_name(shard: int, part: int) -> str:
    """Name of a commit record."""
    return f"{shard:07d}-{part:04d}{RECORD_SUFFIX}"


def data_name(shard: int, part: int, tag: str, role: str) -> str:
    """Name of a data file."""
    return f"{shard:07d}-{part:04d}.{tag}.{role}.bin"


def parse_record_name(name: str) -> tuple[int, int] | None:
    """Shard and part of a commit record's name, None for any other name."""
    match = _RECORD.fullmatch(name)
    if match is None:
        return None
    shard, part = int(match[1]), int(match[2])
    ours = max(shard, part) <= MAX_NUMBER and record_name(shard, part) == name
    return (shard, part) if ours else None


def parse_data_name(name: str) -> tuple[int, int] | None:
    """Shard and part of a data file's name, None for any other name."""
    match = _DATA.fullmatch(name)
    if match is None:
        return None
    shard, part = int(match[1]), int(match[2])
    ours = max(shard, part) <= MAX_NUMBER and data_name(shard, part, match[3], match[4]) == name
    return (shard, part) if ours else None


def expected_sizes(kind: Kind, itemsize: int, count: Any, spans: Any, stride: Any, payload: Any) -> dict[str, Any]:
    """Size in bytes of each role's file; the arguments are integers, or int64 arrays of one shape."""
    if kind == "stream":
        return {"elements": count * itemsize}
    if kind == "document":
        return {"offsets": (count + 1) * 8, "payload": payload}
    sample = -(-spans // stride)
    return {"elements": count * itemsize, "payload": payload, "spans": ((spans + 1) * 2 + sample) * 8}


def in_full(command: str, folder: str) -> str:
    """Return a command of ours on a folder as a shell takes it; without the folder where that is not known."""
    return f"guideloom {command} {shlex.quote(folder)}" if folder else f"guideloom {command}"
