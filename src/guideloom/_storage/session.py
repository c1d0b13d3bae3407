"""What the writers of all kinds share: opening, choosing parts, bounding memory, committing, giving up."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, get_args

import numpy as np

from guideloom._base.checks import as_int
from guideloom._base.errors import (
    ArgumentError,
    CommitError,
    DamagedRecordError,
    ForeignDataError,
    InUseError,
    MissingShardError,
    NotOpenError,
    OutOfRangeError,
    ReadOnlyLayoutError,
    ShardExistsError,
)
from guideloom._base.fingerprint import canonical_json
from guideloom._base.locks import new_rlock
from guideloom._base.protocols import WriteMode
from guideloom._format.naming import format_name
from guideloom._storage import disk
from guideloom._storage.agree import check_agrees
from guideloom._storage.commit import Committer, gather_manifest, say_what_is_committed
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.names import (
    MANIFEST,
    MAX_NUMBER,
    ROLES,
    TEMPORARY_PREFIX,
    in_full,
    parse_record_name,
    record_name,
)
from guideloom._storage.opening import read_manifest, read_unnamed
from guideloom._storage.part import OpenPart
from guideloom._storage.partfile import Descriptors
from guideloom._storage.parts import Parts, join_parts, parts_from_records
from guideloom._storage.published import is_published_name

METADATA_LIMIT_BYTES = 1 << 20
_BUFFER_BUDGET_BYTES = 64 << 20
_MAX_BUFFER_BYTES = 1 << 20
_MIN_BUFFER_BYTES = 512

PartT = TypeVar("PartT", bound=OpenPart)
SessionT = TypeVar("SessionT", bound="WriterSession[Any]")
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

_OPEN: weakref.WeakSet[WriterSession[Any]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A child that added to a part which its parent began would write into the parent's file. Without parts, each append
    # of the child has to begin one, and is refused there; the appends that begin none need no check of their own.
    for writer in list(_OPEN):
        writer._forget_parts()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _in_turn(
    method: Callable[Concatenate[SessionT, ParamsT], ResultT],
) -> Callable[Concatenate[SessionT, ParamsT], ResultT]:
    """Have threads that share a writer wait for each other."""

    @wraps(method)
    def waits(self: SessionT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        with self._lock:
            return method(self, *args, **kwargs)

    return waits


class WriterSession(Generic[PartT]):
    """A writer without its ``append``.

    Parameters
    ----------
    directory : pathlib.Path
        Made on ``open``, parents included.
    storage_format
        The user's format.
    mode : {"create", "append", "overwrite"}
        What becomes of a shard that is committed already: refused, extended, or replaced when this writer commits.
    metadata : mapping, optional
        The user's own notes, JSON; in every record of this writer. Where records differ in a key, ``guideloom info``
        shows the last shard's value.

    Notes
    -----
    Everything is committed by ``close``, and nothing when a ``with`` block is left by an exception. A writer that is
    dropped without either commits nothing, and warns (``UserWarning``). Threads may share a writer: ``pack`` runs in
    all of them at once, the rest in one after the other.
    Memory: about 64 MiB of buffers whatever the number of shards, and the largest single record.
    """

    _part_class: type[PartT]

    def __init__(
        self,
        directory: Path,
        storage_format: Any,
        mode: WriteMode = "create",
        metadata: Mapping[str, Any] | None = None,
        *,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        if not isinstance(directory, Path):
            raise ArgumentError(
                f"writing needs a local folder as a pathlib.Path, got {directory!r} of type {type(directory).__name__}"
            )
        if mode not in get_args(WriteMode):
            raise ArgumentError(f"mode must be one of {', '.join(get_args(WriteMode))}, got {mode!r}")
        self._folder = os.fspath(directory)
        self._mode = mode
        self._metadata = _checked_metadata(metadata)
        self._format_name = format_name(storage_format)
        self._dtype = dtype
        self._is_open = False
        self._given_up = False
        self._pid = 0
        self._token = ""
        # Re-entrant, so that a signal handler that appends does not wait for the append that it interrupted.
        self._lock = new_rlock()
        self._parts: dict[Any, PartT] = {}
        self._lengths: dict[int, int] = {}
        self._cut_short: dict[int, str] = {}
        self._descriptors = Descriptors()
        self._buffer_limit = _MAX_BUFFER_BYTES
        self._known: Parts | None = None
        self._lost: dict[int, str] = {}
        self._last_part: dict[int, int] = {}

    def open(self) -> None:
        """Make the folder and look at what is committed in it.

        Raises
        ------
        InUseError
            Already open.
        ReadOnlyLayoutError, WrongKindError, NewerVersionError, DamagedRecordError, ForeignDataError, MissingShardError
            What is in the folder cannot be written to by this writer.
        """
        if self._is_open:
            raise InUseError("this writer is open already: close it first", path=self._folder)
        # Absolute, since the program may change its working directory before the files are made and committed.
        self._folder = os.fspath(Path(self._folder).absolute())
        local = LocalFolder(Path(self._folder))
        try:
            disk.make_folder(self._folder)
        except (FileExistsError, NotADirectoryError):
            raise ForeignDataError(
                "expected a folder to write in, found a file, or a link to nothing: give another path",
                path=self._folder,
            ) from None
        names = os.listdir(self._folder)
        for name in names:
            if is_published_name(name):
                raise ReadOnlyLayoutError(
                    "this folder holds a data set in the published 1.x layout, which is read-only: write to another "
                    "folder",
                    path=self._folder,
                )
        numbers = {name: found for name in names if (found := parse_record_name(name)) is not None}
        self._known = self._look(local, sorted(numbers), MANIFEST in names)
        self._lost = self._find_lost(numbers)
        self._last_part = {}
        for shard, part in numbers.values():
            self._last_part[shard] = max(part, self._last_part.get(shard, -1))
        self._parts = {}
        self._lengths = {}
        self._cut_short = {}
        self._buffer_limit = _MAX_BUFFER_BYTES
        self._descriptors = Descriptors()
        self._token = secrets.token_hex(8)
        self._pid = os.getpid()
        self._given_up = False
        self._is_open = True
        _OPEN.add(self)

    def _find_lost(self, listed: Collection[str]) -> dict[int, str]:
        """Return, by shard, the records that the manifest names and that are gone; ``_known`` is then without them.

        Raises
        ------
        MissingShardError
            There are some, and this writer does not overwrite: what it commits would be a data set that has forgotten
            them.
        """
        if self._known is None:
            return {}
        names = self._known.record_names
        if not set(names).issubset(listed):
            # Others may have committed between the listing and the manifest. Records are never removed: all that the
            # manifest names are in a listing made after it was read.
            listed = set(os.listdir(self._folder))
        lost = {int(self._known.shard[row]): name for row, name in enumerate(names) if name not in listed}
        if not lost:
            return {}
        if self._mode != "overwrite":
            self._refuse_lost(lost)
        self._known = self._known.take(np.array([row for row, name in enumerate(names) if name in listed], np.int64))
        return lost

    def _refuse_lost(self, lost: Mapping[int, str]) -> NoReturn:
        shard, name = min(lost.items())
        more = f" ({len(lost)} shards lack records; this is the first)" if len(lost) > 1 else ""
        raise MissingShardError(
            f"the manifest names this commit record, but it is gone{more}: restore it from a copy, or write the shard "
            f'anew with mode="overwrite", or see what can be kept with: {in_full("repair", self._folder)}',
            path=os.path.join(self._folder, name),
            shard=shard,
        )

    def _look(self, local: LocalFolder, records: list[str], has_manifest: bool) -> Parts | None:
        """Return what the manifest knows, after a check that it, or else one record, fits this writer."""
        known = None
        if has_manifest:
            try:
                manifest = drive(read_manifest(self._folder), local.answer)
                known = None if manifest is None else manifest.parts
            except DamagedRecordError:
                # The records say the same; the manifest is removed and made anew when this writer commits.
                known = None
        checked = known
        if checked is None and records:
            checked = drive(read_unnamed({records[0]: 0}, None, self._folder), local.answer)
        if checked is not None:
            check_agrees(
                (checked.kind, checked.dtype, checked.formats),
                (self._part_class.kind, self._dtype, self._format_name),
                self._folder,
            )
        return known

    @_in_turn
    def close(self) -> None:
        """Commit every shard, each for itself, then gather the manifest; safe to call again.

        Raises
        ------
        MissingShardError
            A record that the manifest names is gone, and its shard was not written anew; nothing is committed.
        ConcurrentCommitError, OSError
            What kept the first shard from being committed. Each shard is committed or not for itself: the error's notes
            say which are, and which are not.
        """
        if not self._is_open:
            return
        self._check_process()
        self._lengths = {shard: part.count for shard, part in self._parts.items()}
        kind = self._part_class.kind
        committer = Committer(self._folder, self._token, kind, self._dtype, self._format_name, self._metadata)
        parts = self._parts
        try:
            self._is_open = False
            self._parts = {}
            if lost := {shard: name for shard, name in self._lost.items() if shard not in parts}:
                for part in parts.values():
                    part.discard()
                self._refuse_lost(lost)
            # Nothing was added to a shard that exists: a further part would only change the data set's identity.
            idle = [part for part in parts.values() if part.count == 0 and part.part > 0 and not part.replaces]
            for part in idle:
                with contextlib.suppress(OSError):  # what stays is a leftover
                    part.discard()
            records, failures = committer.commit([part for _, part in sorted(parts.items()) if part not in idle])
            committed = {record.shard for record in records}
            failed = [shard for shard, _ in failures if shard not in committed]
            if records:
                try:
                    known = join_parts(self._known, parts_from_records(records, self._folder), self._folder)
                    gather_manifest(self._folder, self._token, known)
                except Exception as error:
                    command = in_full("manifest", self._folder)
                    error.add_note(f"Only the manifest, which repeats the records, is not written: {command}")
                    say_what_is_committed(error, committed, failed)
                    raise
        except BaseException:
            committer.discard(parts.values())
            raise
        finally:
            self._descriptors.close()
            self._known = None
        failures += [(shard, self._cut_short_error(shard)) for shard in sorted(self._cut_short)]
        if failures:
            first = failures[0][1]
            say_what_is_committed(first, committed, failed)
            raise first

    @_in_turn
    def abandon(self) -> None:
        """Give up: remove this writer's temporary files, and commit nothing."""
        if not self._is_open or os.getpid() != self._pid:
            return
        self._given_up = True
        # Not before its end: should an interrupt end this, a further call goes on with it.
        while self._parts:
            next(iter(self._parts.values())).discard()
            del self._parts[next(iter(self._parts))]
        self._is_open = False
        self._lengths = {}
        self._descriptors.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_value is None:
            try:
                self.close()
            except BaseException:
                self.abandon()  # where it was interrupted before it had begun
                raise
            return
        try:
            self.abandon()
        except OSError as error:
            # The caller's own exception is the one to see; what could not be removed is never read.
            exc_value.add_note(f"Temporary files of the writer could not be removed: {error}")

    @_in_turn
    def create(self, shard: int) -> None:
        """Have the shard committed even if nothing is appended to it.

        Raises
        ------
        As ``append`` for the shard.
        """
        self._part_of(shard)

    @_in_turn
    def length(self, shard: int) -> int:
        """What this writer appended to ``shard`` since ``open``: elements, or documents.

        Raises
        ------
        KeyError
            For a shard it never touched.
        """
        part = self._parts.get(shard)
        return self._lengths[shard] if part is None else part.count

    def _part_of(self, shard: Any) -> tuple[PartT, bool]:
        """Return the open part of a shard, and whether it was begun now, because this is its first use.

        Raises
        ------
        NotOpenError, ArgumentError, OutOfRangeError, ShardExistsError, CommitError
        """
        number = as_int(shard, "a shard number")
        part = self._parts.get(number)
        return (self._begin(number), True) if part is None else (part, False)

    def _append_failed(self, part: PartT, is_new: bool, error: BaseException) -> None:
        """Settle a part after an append that failed while it changed the part.

        Failed writes changed nothing, so only a part that this append began is taken back. Anything else, such as
        ``KeyboardInterrupt``, or the ``TimeoutError`` of a signal's handler, which is an OSError too, may have struck
        between two changes that belong together: then the part is given up.
        """
        if not self._is_failed_write(error):
            self._cut_short[part.shard] = type(error).__name__
        elif not is_new:
            return
        del self._parts[part.shard]
        part.discard()

    def _is_failed_write(self, error: BaseException) -> bool:
        path = error.filename if isinstance(error, OSError) else None
        return isinstance(path, str) and path.startswith(self._temporary_prefix())

    def _temporary_prefix(self) -> str:
        return os.path.join(self._folder, f"{TEMPORARY_PREFIX}{self._token}-")

    def _cut_short_error(self, shard: int) -> CommitError:
        return CommitError(
            f"an append to shard {shard} was cut short by {self._cut_short[shard]}: nothing that this writer added to "
            "the shard is committed; write it again with another writer",
            path=self._folder,
            shard=shard,
        )

    def _begin(self, shard: int) -> PartT:
        if not self._is_open:
            raise NotOpenError("the writer is not open: use it in a with block, or call open()", path=self._folder)
        self._check_process()
        if shard < 0:
            raise OutOfRangeError(f"shards are numbered from 0, got {shard}", path=self._folder)
        if shard > MAX_NUMBER:
            raise ArgumentError(f"a shard number is at most {MAX_NUMBER}, got {shard}", path=self._folder)
        if shard in self._cut_short:
            raise self._cut_short_error(shard)
        number = self._last_part.get(shard, -1) + 1
        while os.path.lexists(os.path.join(self._folder, record_name(shard, number))):
            number += 1
        if number and self._mode == "create":
            raise ShardExistsError(
                f'shard {shard} is committed already: to extend it, write with mode="append"; to replace it, with '
                'mode="overwrite"',
                path=self._folder,
                shard=shard,
            )
        num_buffers = len(ROLES[self._part_class.kind]) * (len(self._parts) + 1)
        limit = max(_MIN_BUFFER_BYTES, min(_MAX_BUFFER_BYTES, _BUFFER_BUDGET_BYTES // num_buffers))
        if limit <= self._buffer_limit // 2:
            for part in list(self._parts.values()):
                try:
                    part.flush()
                    part.drop_buffers()
                except BaseException as error:
                    self._append_failed(part, False, error)
                    raise
            self._buffer_limit = limit
        replaces = number > 0 and self._mode == "overwrite"
        begun = self._part_class(shard, number, replaces, self._temporary_prefix(), self._descriptors)
        self._parts[shard] = begun
        return begun

    def __del__(self, getpid: Callable[[], int] = os.getpid, warn: Callable[..., None] = warnings.warn) -> None:
        # Of a writer that was never made, nothing is there; of one that a fork copied, the parent still has the parts.
        # What it calls are defaults, since modules may have lost their names when the interpreter ends.
        parts = getattr(self, "_parts", None)
        if parts and not self._given_up and self._pid == getpid():
            warn(
                f"a writer of {self._folder} was dropped without close, and what it appended is lost "
                f"(shards begun: {len(parts)}): use it in a with block, or call close()",
                UserWarning,
                stacklevel=2,
            )

    def _forget_parts(self) -> None:
        # A thread that the fork left behind may hold it.
        self._lock = new_rlock()
        if not self._is_open:
            return
        self._lengths = {shard: part.count for shard, part in self._parts.items()}
        self._parts = {}

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InUseError("this writer was opened in another process: open one in each process", path=self._folder)


def _checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or any(not isinstance(key, str) for key in metadata):
        raise ArgumentError(f"metadata must be a mapping with string keys, got {metadata!r:.200}")
    try:
        text = canonical_json(dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"metadata must be JSON (no NaN, no objects): {error}") from error
    if len(text) > METADATA_LIMIT_BYTES:
        raise ArgumentError(f"metadata of {len(text)} bytes as JSON: at most {METADATA_LIMIT_BYTES} are allowed")
    copy: dict[str, Any] = json.loads(text)
    return copy
