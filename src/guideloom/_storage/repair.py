"""Brings a damaged data set back to what is whole: a plan that says what will be done, and its execution.

Nothing is deleted: what is dropped is moved into the folder ``dropped-<time>`` inside the data set's folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guideloom._base.errors import ArgumentError, DataSetNotFoundError, ReadOnlyLayoutError
from guideloom._storage import disk
from guideloom._storage.catalog import Kind
from guideloom._storage.commit import Committer, gather_manifest
from guideloom._storage.content import OPENABLE, num_jobs
from guideloom._storage.inventory import Inventory, Numbers, Row, data_names_of, take_inventory
from guideloom._storage.local import FOLLOW_LINKS, data_sets_in, name_data_sets
from guideloom._storage.meter import Progress
from guideloom._storage.names import MANIFEST, TEMPORARY_PREFIX, parse_data_name, parse_record_name, record_name
from guideloom._storage.part import PART_CLASSES
from guideloom._storage.partfile import Descriptors
from guideloom._storage.parts import gaps
from guideloom._storage.verify import check_bytes, check_sizes


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair.

    Parameters
    ----------
    kind : {"drop_part", "drop_leftover", "create_empty", "rebuild_manifest", "refused"}
        "refused" does nothing and stops the repair: it says why, and what to do.
    text : str
        What will be done and why, for people.
    directory : pathlib.Path
    shard, part : int or None
    names : tuple of str
        Files that are moved into the folder ``dropped-<time>``, the commit record first.
    data_kind, dtype
        Of the part that is created.
    """

    kind: Literal["drop_part", "drop_leftover", "create_empty", "rebuild_manifest", "refused"]
    text: str
    directory: Path
    shard: int | None = None
    part: int | None = None
    names: tuple[str, ...] = ()
    data_kind: Kind | None = None
    dtype: np.dtype[Any] | None = None


def plan_repair(
    directory: Path,
    *,
    quick: bool = False,
    create_empty: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Action]:
    """Say what would make a data set whole; changes nothing.

    Parameters
    ----------
    directory : pathlib.Path
    quick : bool
        Trust the bytes of files whose size is right.
    create_empty : bool
        Put an empty shard where all parts of a shard are gone and later shards are not; refused otherwise.
    jobs, progress
        As for :func:`guideloom._storage.verify.verify`.

    Returns
    -------
    list of Action
        Empty when nothing has to be done.

    Raises
    ------
    DataSetNotFoundError, ForeignDataError, PermissionError
        There is nothing to repair.
    ReadOnlyLayoutError
        The published 1.x layout is never changed.

    Notes
    -----
    A shard is taken back to its newest state that is whole: a part that is not can only be dropped together with every
    later part of its shard. When a part that replaced others is dropped, the replaced ones count again, if they are
    still whole.
    """
    threads = num_jobs(jobs)
    inventory = take_inventory(directory)
    if not (inventory.rows or inventory.damaged):
        if inventory.published:
            raise ReadOnlyLayoutError(
                "a data set in the published 1.x layout has nothing to repair it from: restore it from a copy",
                path=directory,
            )
        if MANIFEST not in inventory.listing:
            raise _nothing_found(directory, "repair from")
    if inventory.links:
        return [_refuse_links(inventory)]
    if inventory.not_ours:
        return [_refuse_strangers(inventory)]
    closed: list[str] = []
    whole = _whole_parts(inventory, quick, threads, progress, closed)
    if closed:
        text = (
            f"{', '.join(closed[:5])}: cannot be opened just now, which is no damage: see to it that it can, and run "
            "repair again"
        )
        return [Action("refused", text, directory)]
    plan = _Plan(inventory, whole, create_empty)
    return plan.actions()


def _refuse_links(inventory: Inventory) -> Action:
    names = ", ".join(sorted(inventory.links)[:5])
    text = (
        f"{names}: symbolic links that lead out of the folder, whatever they lead to; {FOLLOW_LINKS}, and repair that"
    )
    return Action("refused", text, inventory.directory)


def _refuse_strangers(inventory: Inventory) -> Action:
    names = ", ".join(record_name(*numbers) for numbers in sorted(inventory.not_ours)[:5])
    text = (
        f"{names}: of a newer version, of another data set, or not readable just now; that may be no damage: move them "
        "away by hand, or make them readable, and run repair again"
    )
    return Action("refused", text, inventory.directory)


def _whole_parts(
    inventory: Inventory, quick: bool, jobs: int, progress: Progress | None, closed: list[str]
) -> set[Numbers]:
    """Parts with a good record and good files; those that were replaced are looked at only where they may be needed.

    ``closed`` gets the paths of files that could not even be opened.
    """
    rows: list[Row] = []
    replaced: dict[int, list[Row]] = {}
    for shard, parts in inventory.shards().items():
        current = inventory.current(shard, parts)
        for part in parts:
            row = inventory.rows.get((shard, part))
            if row is not None:
                (rows if part in current else replaced.setdefault(shard, [])).append(row)
    bad = _bad(inventory, rows, quick, jobs, progress, closed)
    whole = {(row.shard, row.part) for row in rows} - bad
    needed = [
        row
        for shard, old in replaced.items()
        if any((shard, part) not in whole for part in inventory.current(shard, inventory.shards()[shard]))
        for row in old
    ]
    return whole | ({(row.shard, row.part) for row in needed} - _bad(inventory, needed, quick, jobs, progress, closed))


def _bad(
    inventory: Inventory, rows: list[Row], quick: bool, jobs: int, progress: Progress | None, closed: list[str]
) -> set[Numbers]:
    inventory.findings.clear()
    for row in rows:
        check_sizes(inventory, row)
    if not quick:
        found, _ = check_bytes(inventory, rows, jobs, progress)
        inventory.findings += found
        closed += [finding.path for finding in found if finding.expected == OPENABLE]
    return {
        (finding.shard, finding.part)
        for finding in inventory.findings
        if finding.severity == "error" and finding.shard is not None and finding.part is not None
    }


class _Plan:
    def __init__(self, inventory: Inventory, whole: set[Numbers], create_empty: bool) -> None:
        self._inventory = inventory
        self._whole = whole
        self._create_empty = create_empty
        self._data = data_names_of(inventory.listing)
        self._shards = inventory.shards()
        self._kept: dict[int, list[int]] = {}
        self._drops: list[Action] = []

    def actions(self) -> list[Action]:
        for shard, parts in self._shards.items():
            self._choose(shard, parts)
        empty = self._empty_shards()
        refused = [action for action in empty if action.kind == "refused"]
        if refused:
            return refused
        leftovers = self._leftovers()
        changed = bool(self._drops or empty)
        actions = [*self._drops, *empty, *leftovers]
        state = self._inventory.manifest_state
        if (changed or state in ("damaged", "disagrees")) and (any(self._kept.values()) or empty):
            text = "gather the manifest anew from the commit records"
            actions.append(self._action("rebuild_manifest", text))
        elif changed and MANIFEST in self._inventory.listing:
            text = f"{MANIFEST}: no commit record is left for it"
            actions.append(self._action("drop_leftover", text, names=(MANIFEST,)))
        return actions

    def _action(self, kind: Any, text: str, **fields: Any) -> Action:
        return Action(kind, text, self._inventory.directory, **fields)

    def _choose(self, shard: int, parts: list[int]) -> None:
        """Keep as many parts of a shard as make a state that was once committed and is whole."""
        rows = self._inventory.rows
        for num_kept in range(len(parts), -1, -1):
            kept = [part for part in parts[:num_kept] if (shard, part) in rows]
            chain = self._inventory.current(shard, kept) if kept else []
            if num_kept and (not kept or kept[-1] != parts[num_kept - 1]):
                continue
            first = chain[0] if chain and rows[(shard, chain[0])].replaces else 0
            if chain == list(range(first, first + len(chain))) and all((shard, part) in self._whole for part in chain):
                break
        else:
            kept, chain = [], []
        self._kept[shard] = kept
        old = self._inventory.current(shard, parts)
        back = [part for part in chain if part not in old]
        for part in sorted(set(parts) - set(kept), reverse=True):
            row = rows.get((shard, part))
            why = "its commit record is damaged" if row is None else "it is not whole"
            if (shard, part) in self._whole:
                why = "an earlier part of the shard is missing or not whole, and a shard has no holes"
            text = f"move part {part} of shard {shard} away ({self._amount(row)}): {why}"
            if back and part == min(set(parts) - set(kept)):
                text += (
                    f"; part {back[0] if len(back) == 1 else back} of the shard, which had been replaced, counts again"
                )
            names = (record_name(shard, part), *self._data.get((shard, part), ()))
            self._drops.append(self._action("drop_part", text, shard=shard, part=part, names=names))

    def _amount(self, row: Row | None) -> str:
        if row is None:
            return "nobody knows how much it holds"
        return f"{row.count} {'documents' if row.kind == 'document' else 'elements'}"

    def _empty_shards(self) -> list[Action]:
        """What to do about shards of which nothing is left: none may lie before one of which something is."""
        left = sorted(shard for shard, kept in self._kept.items() if kept)
        missing = [shard for low, high in gaps(left) for shard in range(low, high)][:100_000]
        if not missing:
            return []
        head = next(iter(self._inventory.rows.values()))
        names = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        if not self._create_empty:
            which = f"shard {names}" if len(missing) == 1 else f"{len(missing)} shards ({names})"
            text = (
                f"nothing whole is left of {which}, and later shards need the number: restore from a copy, or put an "
                "empty shard there with --create-empty"
            )
            return [self._action("refused", text)]
        return [
            self._action(
                "create_empty",
                f"commit an empty shard {shard}: nothing whole is left of it",
                shard=shard,
                part=0,
                data_kind=head.kind,
                dtype=head.dtype,
            )
            for shard in missing
        ]

    def _leftovers(self) -> list[Action]:
        """Files of writers that never committed; those that were replaced are no damage, and stay."""
        known = {name for action in self._drops for name in action.names}
        known |= {name for row in self._inventory.rows.values() for name in row.names.values()}
        found = []
        for name in sorted(self._inventory.listing):
            if (name.startswith(TEMPORARY_PREFIX) or parse_data_name(name) is not None) and name not in known:
                text = f"move {name} away: no commit record names it"
                found.append(self._action("drop_leftover", text, names=(name,)))
        return found


def apply(actions: Iterable[Action]) -> Path | None:
    """Carry a plan out. To be called while no writer is at work in the folder.

    Parameters
    ----------
    actions : iterable of Action
        All of one plan.

    Returns
    -------
    pathlib.Path or None
        The folder with what was moved away.

    Raises
    ------
    ArgumentError
        The plan contains a refusal, or mixes folders; then nothing is done.
    OSError
        Run the repair again: each of its steps leaves a data set that can be repaired.
    """
    chosen = list(actions)
    refusal = next((action for action in chosen if action.kind == "refused"), None)
    if refusal is not None:
        raise ArgumentError(f"this cannot be repaired: {refusal.text}", path=refusal.directory)
    if not chosen:
        return None
    directory = chosen[0].directory
    if any(action.directory != directory for action in chosen):
        raise ArgumentError("the actions of two plans cannot be mixed", path=directory)
    if any(action.kind in ("drop_part", "create_empty", "rebuild_manifest") for action in chosen):
        # It names the records that are about to go.
        disk.unlink(os.path.join(directory, MANIFEST))
        disk.sync_folder(str(directory))
    moved = _move_away(directory, [name for action in chosen for name in action.names])
    empties = [action for action in chosen if action.kind == "create_empty"]
    if empties:
        _create_empty(directory, empties)
    if any(action.kind == "rebuild_manifest" for action in chosen):
        rebuild_manifest(directory)
    return moved


def _move_away(directory: Path, names: Sequence[str]) -> Path | None:
    if not names:
        return None
    target = directory / f"dropped-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    disk.make_folder(str(target))
    for name in names:
        source = os.path.join(directory, name)
        if os.path.lexists(source):
            disk.rename(source, os.path.join(target, name))
    disk.sync_folder(str(target))
    disk.sync_folder(str(directory))
    return target


def _create_empty(directory: Path, actions: Sequence[Action]) -> None:
    token = secrets.token_hex(8)
    head = actions[0]
    if head.data_kind is None:
        raise ArgumentError("an action that creates a shard must say of which kind", path=directory)
    committer = Committer(str(directory), token, head.data_kind, head.dtype, "", {})
    descriptors = Descriptors()
    prefix = os.path.join(directory, f"{TEMPORARY_PREFIX}{token}-")
    make = PART_CLASSES[head.data_kind]
    parts = [make(action.shard or 0, 0, False, prefix, descriptors) for action in actions]
    try:
        _, failures = committer.commit(parts)
    finally:
        descriptors.close()
    if failures:
        raise failures[0][1]


def rebuild_manifest(directory: Path) -> tuple[int, list[str]]:
    """Gather the manifest anew from all commit records, whatever the old one says.

    Returns
    -------
    num_parts : int
        Parts that it names.
    lost : list of str
        Commit records that only the old manifest knew of. The new one cannot name them.

    Raises
    ------
    DataSetNotFoundError, ForeignDataError
        No folder, or no record in it.
    DamagedRecordError, NewerVersionError, CorruptDataError
        A record cannot be trusted: the old manifest stays.
    OSError
    """
    inventory = take_inventory(directory)
    if not (inventory.rows or inventory.damaged):
        raise _nothing_found(directory, "gather")
    gather_manifest(str(directory), secrets.token_hex(8), None)
    missing = [Path(finding.path).name for finding in inventory.findings if finding.what == "missing"]
    return len(inventory.rows), [name for name in missing if parse_record_name(name) is not None]


def _nothing_found(directory: Path, what: str) -> DataSetNotFoundError:
    if data_sets := data_sets_in(directory):
        return DataSetNotFoundError(name_data_sets(data_sets), path=directory)
    return DataSetNotFoundError(f"no commit record, so nothing to {what}: correct the path", path=directory)
