"""Everything that a folder's records say, one by one: a damaged record is a finding, and the others still count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guideloom._base.checks import describe_dtype
from guideloom._base.errors import DamagedRecordError, DataSetError, NewerVersionError
from guideloom._base.fingerprint import canonical_json, fingerprint
from guideloom._storage.catalog import Kind
from guideloom._storage.findings import Finding
from guideloom._storage.local import FOLLOW_LINKS, LocalFolder
from guideloom._storage.manifest import Manifest, decode_manifest
from guideloom._storage.names import (
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    RECORD_LIMIT_BYTES,
    ROLES,
    parse_data_name,
    parse_record_name,
    record_name,
)
from guideloom._storage.parts import gaps
from guideloom._storage.published import is_published_name
from guideloom._storage.record import CommitRecord, decode_record

_MOST_LISTINGS = 16

Numbers = tuple[int, int]
"""Shard and part."""

REGATHER = "gather it anew with: guideloom manifest"
REPAIR = "restore it from a copy, or let guideloom repair drop the part"
FILL_GAP = "restore the missing shards from a copy, or put empty ones there with: guideloom repair --create-empty"
REPAIR_LATER = "restore it from a copy, or let guideloom repair drop the later parts"


@dataclass(frozen=True, slots=True)
class Row:
    """A commit record without its checksums, which are read again where they are needed.

    Parameters
    ----------
    names, sizes : mapping role -> str, int
    digests : mapping role -> bytes
    notes : str
        Fingerprint of the user's metadata.
    """

    kind: Kind
    shard: int
    part: int
    replaces: bool
    dtype: np.dtype[Any] | None
    format_name: str
    count: int
    spans: int
    stride: int
    names: Mapping[str, str]
    sizes: Mapping[str, int]
    digests: Mapping[str, bytes]
    tag: str
    notes: str
    checksum: str

    @property
    def name(self) -> str:
        """Name of the record."""
        return record_name(self.shard, self.part)


@dataclass
class Inventory:
    """What lies in a folder.

    Parameters
    ----------
    directory : pathlib.Path
    listing : dict of name -> size
    rows : dict of (shard, part) -> Row
        The records that can be trusted, in order.
    damaged : set of (shard, part)
        Records that cannot, or that belong to another data set.
    not_ours : set of (shard, part)
        Those among them that may be good: of a newer version, of another data set, or unreadable just now.
    manifest_state : {"absent", "damaged", "disagrees", "good"}
    published : list of str
        Files of the published 1.x layout.
    links : dict of name -> path
        Files that are symbolic links out of the folder; they are not read.
    findings : list of Finding
    """

    directory: Path
    listing: dict[str, int]
    rows: dict[Numbers, Row] = field(default_factory=dict)
    damaged: set[Numbers] = field(default_factory=set)
    not_ours: set[Numbers] = field(default_factory=set)
    manifest_state: Literal["absent", "damaged", "disagrees", "good"] = "absent"
    published: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def path(self, name: str) -> str:
        """Path of a file."""
        return os.path.join(self.directory, name)

    def add(
        self,
        what: str,
        name: str,
        expected: str,
        found: str,
        remedy: str,
        *,
        at: Numbers | None = None,
        place: Numbers | None = None,
        note: bool = False,
    ) -> None:
        """Add a finding about the file ``name``; ``at`` is its shard and part, ``place`` a half-open range of bytes."""
        shard, part = (None, None) if at is None else at
        begin, end = (None, None) if place is None else place
        self.findings.append(
            Finding(
                "note" if note else "error", what, self.path(name), shard, part, begin, end, expected, found, remedy
            )
        )

    def read_row(self, numbers: Numbers) -> CommitRecord:
        """Read a record again, with its checksums."""
        name = record_name(*numbers)
        data = LocalFolder(self.directory).read_file(name, RECORD_LIMIT_BYTES)
        if data is None:
            raise DamagedRecordError(
                "the commit record is gone since it was listed", remedy=REPAIR, path=self.path(name)
            )
        return decode_record(data, name, str(self.directory))

    def shards(self) -> dict[int, list[int]]:
        """Numbers of the parts of each shard that have a record, good or damaged, in order."""
        found: dict[int, list[int]] = {}
        for shard, part in sorted({*self.rows, *self.damaged}):
            found.setdefault(shard, []).append(part)
        return found

    def current(self, shard: int, parts: list[int]) -> list[int]:
        """Parts of a shard that make it up: from the last readable one that replaces, or from the first."""
        first = 0
        for place, part in enumerate(parts):
            row = self.rows.get((shard, part))
            if row is not None and row.replaces:
                first = place
        return parts[first:]


def take_inventory(directory: Path) -> Inventory:
    """Read the listing, every record and the manifest of a folder.

    Raises
    ------
    DataSetNotFoundError, ForeignDataError, PermissionError
        The folder cannot be listed.
    """
    local = LocalFolder(directory)
    listing = _settled_listing(local)
    inventory = Inventory(directory, listing, links=local.links)
    for name, target in sorted(local.links.items()):
        inventory.add(
            "symlink",
            name,
            "a file in the folder",
            f"a symbolic link that leads out of it, to {target!r}",
            FOLLOW_LINKS,
            at=parse_data_name(name) or parse_record_name(name),
        )
    _read_records(inventory)
    inventory.published = sorted(name for name in inventory.listing if is_published_name(name))
    if inventory.published and (inventory.rows or inventory.damaged):
        inventory.add(
            "kind",
            inventory.published[0],
            "only files of the current layout",
            f"{len(inventory.published)} files of the published 1.x layout",
            "move one of the two data sets to another folder",
        )
    _read_manifest(inventory)
    _check_holes(inventory)
    return inventory


def _settled_listing(local: LocalFolder) -> dict[str, int]:
    """List until no record is new: a listing made while a writer commits may have a record and not its data files."""
    listing = local.listing()
    for _ in range(_MOST_LISTINGS):
        earlier, listing = listing, local.listing()
        if all(name in earlier for name in listing if parse_record_name(name) is not None):
            break
    return listing


def _read_records(inventory: Inventory) -> None:
    local = LocalFolder(inventory.directory)
    names = {numbers: name for name in inventory.listing if (numbers := parse_record_name(name)) is not None}
    head: Row | None = None
    for numbers, name in sorted(names.items()):
        if name in inventory.links:
            inventory.damaged.add(numbers)
            continue
        try:
            data = local.read_file(name, RECORD_LIMIT_BYTES)
            if data is None:
                inventory.add("missing", name, "the record that was listed", "no such file", REPAIR, at=numbers)
                inventory.damaged.add(numbers)
                continue
            record = decode_record(data, name, str(inventory.directory))
        except NewerVersionError as error:
            inventory.add(
                "record", name, "a version this GuideLoom reads", error.message, "upgrade guideloom", at=numbers
            )
            inventory.damaged.add(numbers)
            inventory.not_ours.add(numbers)
            continue
        except (DataSetError, OSError) as error:
            text = _fault(error)
            size = _size(inventory.path(name))
            inventory.add("record", name, "a commit record", text, REPAIR, at=numbers, place=(0, size))
            inventory.damaged.add(numbers)
            if isinstance(error, OSError) and not isinstance(error, DataSetError):
                inventory.not_ours.add(numbers)
            continue
        row = _row(record)
        if head is None:
            head = row
        elif (row.kind, row.dtype) != (head.kind, head.dtype):
            inventory.add(
                "kind",
                name,
                f"a {head.kind} of {describe_dtype(head.dtype)}, as in {head.name}",
                f"a {row.kind} of {describe_dtype(row.dtype)}",
                "two data sets were written into one folder: move one of them",
                at=numbers,
            )
            inventory.damaged.add(numbers)
            inventory.not_ours.add(numbers)
            continue
        inventory.rows[numbers] = row


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _row(record: CommitRecord) -> Row:
    return Row(
        kind=record.kind,
        shard=record.shard,
        part=record.part,
        replaces=record.replaces,
        dtype=record.dtype,
        format_name=record.format_name,
        count=record.count,
        spans=record.spans,
        stride=record.stride,
        names={role: record.data_name(role) for role in ROLES[record.kind]},
        sizes={role: record.files[role].size for role in ROLES[record.kind]},
        digests={role: record.files[role].digest for role in ROLES[record.kind]},
        tag=record.tag,
        notes=_notes(record.metadata),
        checksum=record.checksum,
    )


def _notes(metadata: Mapping[str, Any]) -> str:
    return fingerprint([canonical_json(metadata)])


def _read_manifest(inventory: Inventory) -> None:
    if MANIFEST not in inventory.listing:
        return
    if MANIFEST in inventory.links:
        inventory.manifest_state = "damaged"
        return
    data = None
    try:
        data = LocalFolder(inventory.directory).read_file(MANIFEST, MANIFEST_LIMIT_BYTES)
        if data is None:
            return
        manifest = decode_manifest(data, str(inventory.directory))
    except NewerVersionError as error:
        inventory.manifest_state = "damaged"
        inventory.add("manifest", MANIFEST, "a version this GuideLoom reads", error.message, "upgrade guideloom")
        return
    except (DataSetError, OSError) as error:
        inventory.manifest_state = "damaged"
        text = _fault(error)
        place = (0, inventory.listing[MANIFEST])
        inventory.add("manifest", MANIFEST, "a manifest that can be trusted", text, REGATHER, place=place)
        return
    before = len(inventory.findings)
    _compare(inventory, manifest)
    inventory.manifest_state = "good" if len(inventory.findings) == before else "disagrees"


def _fault(error: DataSetError | OSError) -> str:
    """Say what is wrong with a file, without what to do: a finding says that itself."""
    return error.fault if isinstance(error, DataSetError) else str(error.strerror)


def _compare(inventory: Inventory, manifest: Manifest) -> None:
    """Compare the manifest with the records, which decide."""
    parts = manifest.parts
    head = next(iter(inventory.rows.values()), None)
    if head is not None and (head.kind, head.dtype) != (parts.kind, parts.dtype):
        inventory.add(
            "manifest",
            MANIFEST,
            f"a {head.kind} of {describe_dtype(head.dtype)}, as in the records",
            f"a {parts.kind} of {describe_dtype(parts.dtype)}",
            REGATHER,
        )
        return
    named: set[Numbers] = set()
    last = int(parts.shard[-1])
    notes: dict[int, str] = {}
    for place, numbers in enumerate(zip(parts.shard.tolist(), parts.part.tolist(), strict=True)):
        named.add(numbers)
        row = inventory.rows.get(numbers)
        if row is None:
            if numbers not in inventory.damaged and not os.path.lexists(inventory.path(record_name(*numbers))):
                inventory.add(
                    "missing",
                    record_name(*numbers),
                    "a commit record, named by the manifest",
                    "no such file",
                    REPAIR,
                    at=numbers,
                )
            continue
        metadata = parts.metadata[place]
        if id(metadata) not in notes:
            notes[id(metadata)] = _notes(metadata)
        pairs = {
            "record": (row.checksum, parts.checksums[place]),
            "tag": (row.tag, parts.tags[place]),
            "replaces": (row.replaces, bool(parts.replaces[place])),
            "count": (row.count, int(parts.count[place])),
            "spans": (row.spans, int(parts.spans[place])),
            "stride": (row.stride, int(parts.stride[place])),
            "payload": (row.sizes.get("payload", 0), int(parts.payload[place])),
            "format": (row.format_name, parts.formats[place]),
            "metadata": (row.notes, notes[id(metadata)]),
            "digest": (
                {role: digest.hex() for role, digest in row.digests.items()},
                {role: digests[place].tobytes().hex() for role, digests in parts.digests.items()},
            ),
        }
        for key, (expected, found) in pairs.items():
            if expected != found:
                inventory.add(
                    "manifest",
                    MANIFEST,
                    f"{key!r} of {row.name} as in the record, {str(expected)[:120]}",
                    str(found)[:120],
                    REGATHER,
                    at=numbers,
                )
                break
    pending = set(manifest.pending)
    for shard, part in inventory.rows:
        if shard <= last and (shard, part) not in named and (shard, part) not in pending:
            inventory.add(
                "manifest",
                MANIFEST,
                f"a manifest that names {record_name(shard, part)}",
                "one that does not: a reader that cannot list the folder misses the part",
                REGATHER,
                at=(shard, part),
            )


def _check_holes(inventory: Inventory) -> None:
    shards = inventory.shards()
    if not shards:
        return
    reported = {(finding.shard, finding.part) for finding in inventory.findings if finding.what == "missing"}
    for low, high in gaps(sorted(shards)):
        if all((shard, 0) in reported for shard in range(low, min(high, low + len(reported) + 1))):
            continue
        which = f"shard {low}" if high == low + 1 else f"shards {low} to {high - 1}"
        inventory.add(
            "hole",
            record_name(low, 0),
            f"shards 0 to {max(shards)} without holes",
            f"no commit record of {which}",
            FILL_GAP,
            at=(low, 0),
        )
    for shard, parts in shards.items():
        chain = inventory.current(shard, parts)
        row = inventory.rows.get((shard, chain[0]))
        expected = chain[0] if row is not None and row.replaces else 0
        for part in chain:
            if part != expected:
                if (shard, expected) in reported:
                    break
                inventory.add(
                    "hole",
                    record_name(shard, expected),
                    f"the parts of shard {shard} without holes",
                    f"part {part}, but not part {expected}",
                    REPAIR_LATER,
                    at=(shard, expected),
                )
                break
            expected = part + 1


def data_names_of(listing: Mapping[str, int]) -> dict[Numbers, list[str]]:
    """Names of data files by the shard and part in them."""
    found: dict[Numbers, list[str]] = {}
    for name in sorted(listing):
        numbers = parse_data_name(name)
        if numbers is not None:
            found.setdefault(numbers, []).append(name)
    return found
