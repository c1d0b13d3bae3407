"""Real text that is on every machine: the Python installation's own sources and documentation."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SUFFIXES = frozenset({".py", ".txt", ".rst", ".md"})
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
# Tables that a program wrote are most of what is longer, and they teach a model of language nothing.
_LARGEST_BYTES = 400_000
_SMALLEST_BYTES = 200


@dataclass(frozen=True, slots=True)
class TextFile:
    """One document of the corpus.

    Parameters
    ----------
    name : str
        Which root it is under and where, e.g. ``"stdlib/asyncio/base_events.py"``; the same on every machine.
    path : str
        Where the file is on this machine.
    num_bytes : int
        Its size.
    """

    name: str
    path: str
    num_bytes: int

    def read(self) -> str:
        """Return the text."""
        return Path(self.path).read_text(encoding="utf-8")


def installed_roots() -> dict[str, Path]:
    """Return the folders with Python's standard library and with the installed packages, by label."""
    return {"stdlib": Path(sysconfig.get_path("stdlib")), "site-packages": Path(sysconfig.get_path("purelib"))}


def collect(limit_bytes: int, roots: Mapping[str, Path] | None = None) -> list[TextFile]:
    """Choose text files of at most ``limit_bytes`` in all.

    The order is that of the names' hashes: it is the same each time, and a small corpus is a fair sample of the whole.
    Files that are not UTF-8, and second copies of a text, are left out.

    Parameters
    ----------
    limit_bytes : int
    roots : mapping of label -> folder, optional
        By default :func:`installed_roots`.

    Raises
    ------
    FileNotFoundError
        If there is no usable text at all.
    """
    chosen: list[TextFile] = []
    seen: set[bytes] = set()
    total = 0
    roots = installed_roots() if roots is None else roots
    found = [(label, root, path) for label, root in roots.items() for path in _walk(root)]
    named = {f"{label}/{path.relative_to(root).as_posix()}": path for label, root, path in found}
    for name in sorted(named, key=_digest_of_name):
        content = named[name].read_bytes()
        if total + len(content) > limit_bytes:
            break
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest in seen or not _is_text(content):
            continue
        seen.add(digest)
        chosen.append(TextFile(name, str(named[name]), len(content)))
        total += len(content)
    if not chosen:
        raise FileNotFoundError(f"no text of at most {limit_bytes} bytes under {', '.join(map(str, roots.values()))}")
    return chosen


def sample_texts(files: list[TextFile], limit_bytes: int) -> Iterator[str]:
    """Yield the texts of the first files, until ``limit_bytes`` are reached; at least one."""
    total = 0
    for file in files:
        yield file.read()
        total += file.num_bytes
        if total >= limit_bytes:
            return


def _walk(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        inside = Path(folder)
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        for name in names:
            path = inside / name
            if path.suffix in _SUFFIXES and _SMALLEST_BYTES <= path.stat().st_size <= _LARGEST_BYTES:
                yield path


def _digest_of_name(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _is_text(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\x00" not in content
