"""Files in a data set's folder that no reader will ever look at, and their removal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from guideloom._base.errors import ArgumentError
from guideloom._storage import disk
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.names import MANIFEST, ROLES, TEMPORARY_PREFIX, parse_data_name
from guideloom._storage.opening import read_manifest, read_unnamed
from guideloom._storage.requests import ListFolder


@dataclass(frozen=True)
class Leftover:
    """One file that may be removed while no writer is at work in the folder.

    Parameters
    ----------
    name : str
    size : int
        Bytes.
    kind : {"temporary", "uncommitted", "superseded"}
        A writer's work in progress, also that of a writer alive now; data files whose commit record was never written;
        data files of parts that ``mode="overwrite"`` replaced, which readers that opened before may still be reading.
    """

    name: str
    size: int
    kind: Literal["temporary", "uncommitted", "superseded"]


def find_leftovers(directory: Path) -> list[Leftover]:
    """Return the leftovers in a folder, by name; commit records are never among them.

    Raises
    ------
    DataSetNotFoundError, ForeignDataError
        No such folder; a file in its place.
    DamagedRecordError, NewerVersionError, MissingShardError, CorruptDataError
        The records cannot be trusted, and so nothing can be called a leftover.
    """
    folder = str(directory)
    local = LocalFolder(directory)
    listing: dict[str, int] = local.answer(ListFolder())
    manifest = drive(read_manifest(folder), local.answer) if MANIFEST in listing else None
    parts = drive(read_unnamed(listing, None if manifest is None else manifest.parts, folder), local.answer)
    current: set[str] = set()
    superseded: set[str] = set()
    if parts is not None:
        rows = parts.current_rows(folder)
        others = np.setdiff1d(np.arange(parts.shard.size), rows)
        for role in ROLES[parts.kind]:
            current.update(parts.take(rows).data_names(role))
            superseded.update(parts.take(others).data_names(role))
    found = []
    for name, size in sorted(listing.items()):
        if name.startswith(TEMPORARY_PREFIX):
            found.append(Leftover(name, size, "temporary"))
        elif parse_data_name(name) is not None and name not in current:
            found.append(Leftover(name, size, "superseded" if name in superseded else "uncommitted"))
    return found


def remove_leftovers(directory: Path, names: Iterable[str]) -> int:
    """Remove leftovers by name, and return the bytes that were freed.

    To be called while no writer is at work in the folder: its files look like those of a writer that was killed.

    Raises
    ------
    ArgumentError
        A name is not that of a leftover now; then nothing is removed.
    """
    sizes = {leftover.name: leftover.size for leftover in find_leftovers(directory)}
    chosen = sorted(set(names))
    for name in chosen:
        if name not in sizes:
            raise ArgumentError(f"{name!r} is not a leftover: nothing was removed", path=directory)
    for name in chosen:
        disk.unlink(os.path.join(directory, name))
    disk.sync_folder(str(directory))
    return sum(sizes[name] for name in chosen)
