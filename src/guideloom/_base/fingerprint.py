"""Canonical bytes of plain values, and fingerprints of them that never change between releases."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII.

    Raises
    ------
    ValueError
        NaN, an infinity, or a reference cycle.
    TypeError
        Something that JSON does not have.
    RecursionError
        Nested too deeply.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def fingerprint(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the BLAKE2b-128 of the chunks joined, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
