"""Turns finished parts into committed ones, and gathers the manifest; the steps are those of ``docs/format.md``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._base.errors import ConcurrentCommitError, GuideLoomError
from guideloom._base.interrupts import interrupts_later
from guideloom._base.threads import map_in_threads
from guideloom._storage import disk
from guideloom._storage.catalog import Kind
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.manifest import encode_manifest
from guideloom._storage.names import (
    MANIFEST,
    MANIFEST_IN_PROGRESS,
    RECORD_LIMIT_BYTES,
    TEMPORARY_PREFIX,
    parse_data_name,
    parse_record_name,
    record_name,
)
from guideloom._storage.opening import read_unnamed
from guideloom._storage.part import OpenPart
from guideloom._storage.parts import Parts
from guideloom._storage.record import CommitRecord, decode_record, encode_record

# A file system commits its journal for many at once: 16 at a time are ten times as fast as one after the other.
_SYNC_THREADS = 16
_GATHER_ROUNDS = 16

Failure = tuple[int, Exception]


class Committer:
    """Commits the parts of one writer into a folder.

    Parameters
    ----------
    folder : str
    token : str
        Unique to the writer; part of every temporary name.
    kind, dtype, format_name, metadata
        What every record of the writer says.
    """

    def __init__(
        self,
        folder: str,
        token: str,
        kind: Kind,
        dtype: np.dtype[Any] | None,
        format_name: str,
        metadata: dict[str, Any],
    ) -> None:
        self._folder = folder
        self._token = token
        self._kind = kind
        self._dtype = dtype
        self._format_name = format_name
        self._metadata = metadata
        self._temporaries: list[str] = []

    def commit(self, parts: Sequence[OpenPart]) -> tuple[list[CommitRecord], list[Failure]]:
        """Commit parts, each for itself: one that fails leaves the others alone.

        Returns
        -------
        records : list of CommitRecord
            Of the parts that are committed.
        failures : list of (shard, exception)
            Of the others. Those of their files that have their final names stay, as leftovers.
        """
        failures: list[Failure] = []
        committed: list[CommitRecord] = []
        try:
            self._commit(parts, committed, failures)
        except BaseException as error:
            self.discard(parts)
            done = {record.shard for record in committed}
            say_what_is_committed(error, done, {part.shard for part in parts} - done)
            raise
        finally:
            self._remove_temporaries()
        return committed, failures

    def _commit(
        self,
        parts: Sequence[OpenPart],
        committed: list[CommitRecord],
        failures: list[Failure],
    ) -> None:
        records: dict[int, tuple[CommitRecord, str]] = {}

        def each(step: Callable[[OpenPart], None], over: Iterable[OpenPart], threads: int = 1) -> list[OpenPart]:
            passed = []
            chosen = list(over)
            for part, error in zip(chosen, _attempts(step, chosen, threads), strict=True):
                if error is None:
                    passed.append(part)
                else:
                    failures.append((part.shard, error))
                    self._discard(part)
            return passed

        def complete(part: OpenPart) -> None:
            part.complete()
            for file in part.files.values():
                file.release()

        def sync_and_name(part: OpenPart) -> None:
            for file in part.files.values():
                file.finish()
            record = self._record(part)
            data, checksum = encode_record(record)
            record = replace(record, checksum=checksum)
            temporary = self._write_temporary(f"{part.shard:07d}.record", data)
            records[part.shard] = (record, temporary)
            for role, file in part.files.items():
                file.rename(os.path.join(self._folder, record.data_name(role)))

        def publish(part: OpenPart) -> None:
            record, temporary = records[part.shard]
            # What is committed is known to be, also when an interrupt comes meanwhile.
            with interrupts_later():
                linked = disk.link_new(temporary, os.path.join(self._folder, record.name))
                if linked:
                    committed.append(record)
            if not linked:
                raise ConcurrentCommitError(
                    f"another writer committed part {part.part} of shard {part.shard} after this one began it: nothing "
                    "of this writer's data for the shard was kept; to add it behind the other's, write it again with "
                    'mode="append"',
                    path=os.path.join(self._folder, record.name),
                    shard=part.shard,
                )

        ready = each(sync_and_name, each(complete, parts), _SYNC_THREADS)
        if ready:
            try:
                # The names, and the manifest's absence, must be durable before any record is.
                withdraw_manifest(self._folder)
                disk.sync_folder(self._folder)
            except OSError as error:
                # Their files have their names, and are leftovers.
                failures.extend((part.shard, error) for part in ready)
                ready = []
        each(publish, ready)
        if committed:
            disk.sync_folder(self._folder)

    def _record(self, part: OpenPart) -> CommitRecord:
        return CommitRecord(
            kind=self._kind,
            shard=part.shard,
            part=part.part,
            replaces=part.replaces,
            dtype=self._dtype,
            format_name=self._format_name,
            count=part.count,
            spans=part.spans,
            stride=part.stride,
            files={role: file.entry() for role, file in part.files.items()},
            metadata=self._metadata,
        )

    def _write_temporary(self, suffix: str, data: bytes) -> str:
        path = os.path.join(self._folder, f"{TEMPORARY_PREFIX}{self._token}-{suffix}")
        self._temporaries.append(path)
        disk.create_empty(path)
        disk.fill(path, data)
        return path

    def _remove_temporaries(self) -> None:
        # A handler's error must not be taken for one of the disk.
        with interrupts_later():
            for path in self._temporaries:
                # What stays is a leftover; it must not hide that the shards are committed.
                with contextlib.suppress(OSError):
                    disk.unlink(path)
            self._temporaries.clear()

    def discard(self, parts: Iterable[OpenPart]) -> None:
        """Remove the files of parts, but those of committed ones, and what else is temporary."""
        for part in parts:
            self._discard(part)
        self._remove_temporaries()

    def _discard(self, part: OpenPart) -> None:
        """Remove a part's files, except those that a record of another writer names, or may come to name.

        Two parts of the same content have files of the same names.
        """
        try:
            named = self._named_by_winner(part)
            for file in part.files.values():
                name = os.path.basename(file.path)
                if name.startswith(TEMPORARY_PREFIX) or (named is not None and name not in named):
                    file.remove()
        except OSError:
            # The disk is failing. What stays is a leftover; the error to report is the one that led here.
            return

    def _named_by_winner(self, part: OpenPart) -> set[str] | None:
        """Names of the files of the part that another writer committed; None while that cannot be known."""
        name = record_name(part.shard, part.part)
        data = LocalFolder(Path(self._folder)).read_file(name, RECORD_LIMIT_BYTES)
        if data is None:
            return None
        try:
            record = decode_record(data, name, self._folder)
        except GuideLoomError:
            return None
        return {record.data_name(role) for role in record.files}


def _attempts(step: Callable[[OpenPart], None], parts: Sequence[OpenPart], threads: int) -> Iterable[Exception | None]:
    """Run a step on each part; give the error that ended each, or None. When it raises, no step runs any more."""

    def attempt(part: OpenPart) -> Exception | None:
        try:
            step(part)
        except GuideLoomError as error:
            return error
        except OSError as error:
            if error.errno is None:
                raise  # Of no system call: a signal's handler raised it, and means all of us.
            return error
        return None

    if threads == 1 or len(parts) < 4:
        return list(map(attempt, parts))
    return map_in_threads(attempt, parts, threads, "guideloom-sync")


def say_what_is_committed(error: BaseException, committed: Iterable[int], others: Iterable[int]) -> None:
    """Note on an error which shards are committed: appended again, their data would be there twice."""
    for words, shards in (("committed", sorted(committed)), ("not committed", sorted(others))):
        if shards:
            listed = ", ".join(map(str, shards[:20])) + (f", ... ({len(shards)} in all)" if len(shards) > 20 else "")
            error.add_note(f"Shards that are {words}: {listed}")


def gather_manifest(folder: str, token: str, known: Parts | None) -> None:
    """Write a manifest of all committed parts, exact also when other writers commit meanwhile.

    Parameters
    ----------
    folder, token : str
    known : Parts or None
        Parts that need not be read again.

    Notes
    -----
    Whoever commits withdraws manifests between the two steps "data files appear" and "the record appears", also those
    in progress. Ours is in progress, under a temporary name, before we list the folder. So a part whose data files we
    do not see is one whose writer withdraws our manifest, and renaming it fails. A part whose data files are listed
    and whose record is not is named as *pending*, and readers ask for it. Therefore a manifest that has its name
    holds, whoever is killed and whenever.
    """
    local = LocalFolder(Path(folder))
    target = os.path.join(folder, MANIFEST)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{token}{MANIFEST_IN_PROGRESS}")
    for _ in range(_GATHER_ROUNDS):
        disk.create_empty(temporary)
        try:
            names = _names(folder)
            before = _listed(names)
            known = _committed(local, folder, before[0], known)
            data = None if known is None else encode_manifest(known, before[1])
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
        if data is None:
            disk.unlink(temporary)
            return
        try:
            disk.fill(temporary, data)
            disk.rename(temporary, target)
        except FileNotFoundError:
            continue  # withdrawn: others commit
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
        again = _names(folder)
        if again == names or _listed(again) == before:
            disk.sync_folder(folder)
            return
    # Others go on committing; the last of them gathers. Without a manifest readers read the records, which is only
    # slower.


def _committed(local: LocalFolder, folder: str, records: frozenset[str], known: Parts | None) -> Parts | None:
    """Parts of exactly the records given, of which only those not ``known`` are read."""
    parts = drive(read_unnamed(dict.fromkeys(records, 0), known, folder), local.answer)
    if parts is None:
        return None
    listed = [row for row, name in enumerate(parts.record_names) if name in records]
    return parts if len(listed) == parts.shard.size else parts.take(np.array(listed, np.int64))


def withdraw_manifest(folder: str) -> None:
    """Remove the manifest, and those that are being gathered, which could not know of what is committed next."""
    # In this order: a manifest that gets its final name in between is removed under that name.
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY_PREFIX) and name.endswith(MANIFEST_IN_PROGRESS):
            disk.unlink(os.path.join(folder, name))
    disk.unlink(os.path.join(folder, MANIFEST))


def _names(folder: str) -> frozenset[str]:
    """Names in a folder, but for the manifest and what is temporary."""
    return frozenset(name for name in os.listdir(folder) if name != MANIFEST and not name.startswith(TEMPORARY_PREFIX))


def _listed(names: Iterable[str]) -> tuple[frozenset[str], tuple[tuple[int, int], ...]]:
    """Those of the commit records, and the parts that have data files and no record."""
    records, with_record, with_data = set(), set(), set()
    for name in names:
        numbers = parse_record_name(name)
        if numbers is not None:
            records.add(name)
            with_record.add(numbers)
        else:
            numbers = parse_data_name(name)
            if numbers is not None:
                with_data.add(numbers)
    return frozenset(records), tuple(sorted(with_data - with_record))
