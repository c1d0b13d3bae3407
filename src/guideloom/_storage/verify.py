"""Checks everything of a data set: records, manifest, sizes, blocks, offsets, span tables, leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._base.checks import packed_little_endian
from guideloom._base.errors import ArgumentError, DataSetNotFoundError
from guideloom._storage.content import (
    RESTORE,
    FileCheck,
    Structure,
    num_jobs,
    numbers_structure,
    offsets_structure,
    run_checks,
    spans_structure,
)
from guideloom._storage.findings import Finding, Report
from guideloom._storage.inventory import FILL_GAP, REPAIR, REPAIR_LATER, Inventory, Numbers, Row, take_inventory
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.meter import Meter, Progress
from guideloom._storage.names import BLOCK_BYTES, MANIFEST, TEMPORARY_PREFIX, parse_data_name
from guideloom._storage.opening import open_catalog
from guideloom._storage.published import (
    ELEMENTS,
    NEEDS,
    OFFSETS,
    PAYLOAD,
    SPAN_NUMBER,
    published_kind,
    published_shards,
)

_CLEAN = "while no writer is at work, remove it with: guideloom clean"
_COPY = "restore the file from a copy"


def verify(
    directory: Path,
    quick: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    dtype: np.dtype[Any] | None = None,
) -> Report:
    """Check a data set, and say everything that is wrong with it.

    Parameters
    ----------
    directory : pathlib.Path
    quick : bool
        Records, manifest and sizes only: no data file is read.
    jobs : int, optional
        Threads; as many as there are cores by default, at most 16.
    progress : callable, optional
        Called in this thread with the bytes that are done and all bytes.
    dtype : dtype, optional
        Element dtype, for streams in the published 1.x layout, which does not say it: without it the sizes of element
        files are not checked.

    Returns
    -------
    Report

    Raises
    ------
    DataSetNotFoundError, ForeignDataError, PermissionError
        There is nothing to check.

    Notes
    -----
    Every byte is read once, in blocks of 1 MiB; memory does not grow with the data set but for about 1 KiB a part.
    In the published 1.x layout there are no checksums: sizes, offsets and span numbers are checked, bytes cannot be.
    """
    threads = num_jobs(jobs)
    inventory = take_inventory(directory)
    if not (inventory.rows or inventory.damaged):
        if inventory.published:
            return _verify_published(inventory, quick, threads, progress, dtype)
        if MANIFEST not in inventory.listing:
            # Says what is there instead.
            drive(open_catalog("stream", None, "", folder=str(directory)), LocalFolder(directory).answer)
            raise DataSetNotFoundError("a data set appeared while it was looked for: run it again", path=directory)
    current = current_rows(inventory)
    for row in current:
        check_sizes(inventory, row)
    bytes_checked = 0
    if not quick:
        found, bytes_checked = check_bytes(inventory, current, threads, progress)
        inventory.findings += found
    _say_what_repair_does(inventory)
    _note_manifest(inventory)
    _note_leftovers(inventory, current)
    return Report(
        path=str(directory),
        layout="current",
        kind=next((row.kind for row in inventory.rows.values()), None),
        quick=quick,
        num_shards=len(inventory.shards()),
        num_parts=len(current),
        num_files=sum(len(row.names) for row in current),
        bytes_checked=bytes_checked,
        findings=_ordered(inventory.findings),
    )


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    def key(finding: Finding) -> tuple[Any, ...]:
        shard = -1 if finding.shard is None else finding.shard
        part = -1 if finding.part is None else finding.part
        return finding.severity, shard, part, finding.path, finding.begin or 0

    return tuple(sorted(findings, key=key))


def _say_what_repair_does(inventory: Inventory) -> None:
    """Where repair would have to do more than drop the part of a finding, say that."""
    bad = {(finding.shard, finding.part) for finding in inventory.findings if finding.severity == "error"}
    shards = inventory.shards()
    left = set()
    for shard, parts in shards.items():
        chain = inventory.current(shard, parts)
        head = inventory.rows.get((shard, chain[0]))
        # A shard cannot begin behind its first part, unless with one that replaces what was before it.
        begins = chain[0] == 0 or (head is not None and head.replaces)
        # What was replaced counts again when what replaced it is dropped.
        if chain != parts or (begins and (shard, chain[0]) not in bad):
            left.add(shard)
    last_left = max(left, default=-1)
    for place, finding in enumerate(inventory.findings):
        number, part, remedy = finding.shard, finding.part, finding.remedy
        if remedy not in (FILL_GAP, REPAIR, REPAIR_LATER, RESTORE) or number is None or part is None:
            continue
        if remedy == FILL_GAP:
            if number > last_left:
                remedy = "restore it from a copy, or let guideloom repair drop the later shards, which are not whole"
        elif number not in left and number < last_left:
            remedy = (
                "restore it from a copy; without one, guideloom repair --create-empty puts an empty shard in its "
                "place, for later shards need its number"
            )
        elif remedy != REPAIR_LATER and number in shards and shards[number][-1] > part:
            remedy = "restore it from a copy, or let guideloom repair drop the part and the later ones of its shard"
        inventory.findings[place] = replace(finding, remedy=remedy)


def current_rows(inventory: Inventory) -> list[Row]:
    """Rows of the parts that make up the data set and whose records can be trusted."""
    return [
        inventory.rows[(shard, part)]
        for shard, parts in inventory.shards().items()
        for part in inventory.current(shard, parts)
        if (shard, part) in inventory.rows
    ]


def check_sizes(inventory: Inventory, row: Row) -> None:
    """Compare the sizes of a part's files with its record."""
    at = (row.shard, row.part)
    for role, name in row.names.items():
        if name in inventory.links:
            continue
        expected, found = row.sizes[role], inventory.listing.get(name)
        if found is None:
            inventory.add("missing", name, f"{expected} bytes", "no such file", REPAIR, at=at)
        elif found != expected:
            place = (min(expected, found), max(expected, found))
            inventory.add("size", name, f"{expected} bytes", f"{found} bytes", REPAIR, at=at, place=place)
        if found is not None and os.path.islink(inventory.path(name)):
            inventory.add(
                "symlink",
                name,
                "a regular file in the folder",
                f"a symbolic link to {os.readlink(inventory.path(name))!r}",
                "copy the file into the folder if the data set is to be moved",
                at=at,
                note=True,
            )


def check_bytes(
    inventory: Inventory, rows: list[Row], jobs: int, progress: Progress | None = None
) -> tuple[list[Finding], int]:
    """Check the blocks and the structure of parts' files, as far as the files are there.

    Returns
    -------
    findings : list of Finding
    bytes_checked : int
    """
    rows = [row for row in rows if inventory.links.keys().isdisjoint(row.names.values())]
    total = sum(min(row.sizes[role], inventory.listing.get(row.names[role], 0)) for row in rows for role in row.names)
    meter = Meter(total, progress)
    found = list(run_checks(_file_checks(inventory, rows), jobs, meter.add))
    return found, meter.done


def _file_checks(inventory: Inventory, rows: list[Row]) -> Iterator[FileCheck]:
    for row in rows:
        numbers: Numbers = (row.shard, row.part)
        if all(inventory.listing.get(name, 0) == 0 for name in row.names.values()):
            continue
        record = inventory.read_row(numbers)
        for role, name in row.names.items():
            size, there = row.sizes[role], inventory.listing.get(name, 0)
            # Of a file that is too short, the blocks that are whole can still be placed as good or bad.
            checked = size if there >= size else there - there % BLOCK_BYTES
            structure: Structure | None = None
            if there == size:
                payload = row.sizes.get("payload", 0)
                if role == "offsets":
                    structure = offsets_structure(size, payload)
                elif role == "spans":
                    structure = spans_structure(row.spans, row.stride, row.count, payload)
            yield FileCheck(
                inventory.path(name),
                row.shard,
                row.part,
                checked,
                np.frombuffer(record.files[role].sums, "<u8"),
                structure,
                what="spans" if role == "spans" else "offsets",
            )


def _note_manifest(inventory: Inventory) -> None:
    if inventory.manifest_state == "absent" and inventory.rows:
        inventory.add(
            "manifest",
            MANIFEST,
            "a manifest",
            "none: opening reads every record",
            "if no writer is at work, gather it with: guideloom manifest",
            note=True,
        )


def _note_leftovers(inventory: Inventory, current: list[Row]) -> None:
    used = {name for row in current for name in row.names.values()}
    superseded = {name for row in inventory.rows.values() for name in row.names.values()} - used
    for name, size in sorted(inventory.listing.items()):
        numbers = parse_data_name(name)
        if name.startswith(TEMPORARY_PREFIX):
            found = "a writer's work in progress, or left by one that was killed"
        elif numbers is None or name in used or name in inventory.links or numbers in inventory.damaged:
            continue
        else:
            found = "data of a part that was replaced" if name in superseded else "data that no commit record names"
        inventory.add(
            "leftover", name, "files that readers use", f"{found} ({size} bytes)", _CLEAN, at=numbers, note=True
        )


# --- published 1.x ---


def _verify_published(
    inventory: Inventory, quick: bool, jobs: int, progress: Progress | None, dtype: np.dtype[Any] | None
) -> Report:
    shards = published_shards(inventory.listing)
    kind = published_kind(shards.values())
    itemsize = 0
    if dtype is not None:
        if kind == "document":
            raise ArgumentError("documents have no dtype: leave it out", path=inventory.directory)
        itemsize = packed_little_endian(dtype).itemsize + (SPAN_NUMBER.itemsize if kind == "stream_with_meta" else 0)
    checks = []
    for shard in range(max(shards) + 1 if not inventory.links else 0):
        checks += _published_shard(inventory, shard, shards.get(shard, {}), NEEDS[kind], itemsize)
    bytes_checked = 0
    if not quick:
        meter = Meter(sum(check.size for check in checks), progress)
        inventory.findings += run_checks(checks, jobs, meter.add)
        bytes_checked = meter.done
    return Report(
        path=str(inventory.directory),
        layout="published-1",
        kind=kind,
        quick=quick,
        num_shards=len(shards),
        num_parts=len(shards),
        num_files=len(inventory.published),
        bytes_checked=bytes_checked,
        findings=_ordered(inventory.findings),
    )


def _published_shard(
    inventory: Inventory, shard: int, sizes: dict[str, int], needs: Sequence[str], itemsize: int
) -> list[FileCheck]:
    """Check the sizes of one shard, and return what is to be read."""
    checks: list[FileCheck] = []
    missing = [suffix for suffix in needs if suffix not in sizes]
    for suffix in missing:
        inventory.add("missing", f"{shard:07d}.{suffix}", "a file of the shard", "no such file", _COPY, at=(shard, 0))
    elements = sizes.get(ELEMENTS, 0)
    if itemsize and elements % itemsize:
        torn = elements - elements % itemsize
        inventory.add(
            "size",
            f"{shard:07d}.{ELEMENTS}",
            f"a multiple of {itemsize} bytes",
            f"{elements} bytes",
            f"{_COPY}, or give the dtype that it was written with",
            at=(shard, 0),
            place=(torn, elements),
        )
    if missing or OFFSETS not in needs:
        return checks
    offsets = sizes[OFFSETS]
    name = f"{shard:07d}.{OFFSETS}"
    if offsets == 0 or offsets % 8:
        place = (offsets - offsets % 8, offsets)
        expected = "a multiple of 8 bytes, at least 8"
        inventory.add("size", name, expected, f"{offsets} bytes", _COPY, at=(shard, 0), place=place)
        return checks
    last = int(np.frombuffer(LocalFolder(inventory.directory).read_range(name, offsets - 8, 8), "<i8")[0])
    payload = sizes[PAYLOAD]
    if last != payload:
        place = (offsets - 8, offsets)
        expected = f"last offset {payload}, the payload file's size"
        inventory.add("offsets", name, expected, str(last), _COPY, at=(shard, 0), place=place)
    checks.append(FileCheck(inventory.path(name), shard, 0, offsets, None, offsets_structure(offsets, last)))
    if itemsize:
        step = max(1, BLOCK_BYTES // itemsize) * itemsize
        structure = numbers_structure(itemsize, offsets // 8 - 1)
        whole = elements - elements % itemsize
        path = inventory.path(f"{shard:07d}.{ELEMENTS}")
        checks.append(FileCheck(path, shard, 0, whole, None, structure, step, "spans"))
    return checks
