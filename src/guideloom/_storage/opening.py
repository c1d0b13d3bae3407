"""Opening a data set: from its files' names, sizes and records to a checked :class:`Catalog`.

Written as generators that yield requests and receive answers: no I/O here, and the same code for synchronous backends,
asyncio backends and local folders.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NoReturn, TypeAlias

import numpy as np

from guideloom._base.checks import packed_little_endian
from guideloom._base.errors import CorruptDataError, DataSetNotFoundError, ForeignDataError, MissingShardError
from guideloom._storage.agree import check_agrees
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.local import name_data_sets
from guideloom._storage.manifest import Manifest, decode_manifest
from guideloom._storage.names import (
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    RECORD_LIMIT_BYTES,
    RECORD_SUFFIX,
    TEMPORARY_PREFIX,
    parse_data_name,
    parse_record_name,
    record_name,
)
from guideloom._storage.parts import Parts, catalog_of_parts, join_parts, parts_from_records
from guideloom._storage.published import is_published_name, published_by_listing, published_by_probing
from guideloom._storage.record import CommitRecord, decode_record, join_path
from guideloom._storage.requests import FileSizes, ListDataSets, ListFolder, ReadFile, Request

Asked: TypeAlias = tuple[Kind, np.dtype[Any] | None, str]

# Without a limit, writers that never stop committing would keep a reader from opening. Each shard is whole in any case.
_MOST_LOOKS = 16


def open_catalog(
    kind: Kind, stream_dtype: np.dtype[Any] | None, format_name: str, *, folder: str = ""
) -> Generator[Request, Any, Catalog]:
    """Open a data set.

    Parameters
    ----------
    kind : Kind
        What the caller's storage class holds.
    stream_dtype : dtype or None
        The caller's element dtype, in any byte order, padded or not; None for documents.
    format_name : str
        Class name of the caller's format.
    folder : str, optional
        The data set's path, for messages only.

    Returns
    -------
    Catalog
        Through ``StopIteration``: kind, dtype, format, shard numbers, and the size of every file agree.

    Raises
    ------
    DataSetNotFoundError, ForeignDataError, WrongKindError, NewerVersionError, MissingShardError, CorruptDataError

    Notes
    -----
    With a listing: the manifest, the listing, and one read for each record the manifest does not name. Without: the
    manifest, the records it calls pending, the one behind its last shard, and one size for each file; without a
    manifest one read for each record, and one more a shard.

    What is found is what was committed at one moment, also while writers commit. The manifest is read before the
    folder is listed, so that the listing has all that it names. Who finds records that the manifest does not name looks
    again until two looks in a row find the same: as records are never removed, nothing was committed between the two.
    """
    asked: Asked = (kind, None if stream_dtype is None else packed_little_endian(stream_dtype), format_name)
    manifest = yield from read_manifest(folder)
    listing = yield ListFolder()
    if listing is None:
        return (yield from _open_by_probing(manifest, asked, folder))
    manifest, listing = yield from _look_again(manifest, listing, folder)
    try:
        return (yield from _open_by_listing(listing, manifest, asked, folder))
    except MissingShardError:
        # A network file system may give a listing out of its cache that is older than the manifest. Or what was missing
        # is being committed now: the new listing is as good, and as bad, as the first one was.
        again = yield ListFolder()
        if again == listing:
            raise
        manifest, again = yield from _look_again(manifest, again, folder)
        return (yield from _open_by_listing(again, manifest, asked, folder))


def _look_again(
    manifest: Manifest | None, listing: Mapping[str, int], folder: str
) -> Generator[Request, Any, tuple[Manifest | None, Mapping[str, int]]]:
    """Return the manifest and a listing that show one moment, looking again where these two may not."""
    previous: set[str] | None = None
    for _ in range(_MOST_LOOKS):
        if manifest is not None and not _unnamed_in(listing, manifest.parts):
            break
        listed = {name for name in listing if name.endswith(RECORD_SUFFIX)}
        if listed == previous:
            break
        previous = listed
        manifest = yield from read_manifest(folder)
        listing = yield ListFolder()
    return manifest, listing


def read_manifest(folder: str) -> Generator[Request, Any, Manifest | None]:
    """Read the manifest, None when there is none."""
    data = yield ReadFile(MANIFEST, MANIFEST_LIMIT_BYTES)
    return None if data is None else decode_manifest(bytes(data), folder)


def read_unnamed(listing: Mapping[str, int], known: Parts | None, folder: str) -> Generator[Request, Any, Parts | None]:
    """Read each listed record that ``known`` does not have, and return the parts of both.

    Raises
    ------
    MissingShardError
        A record that was listed is gone.
    """
    records = []
    for name in sorted(_unnamed_in(listing, known)):
        record = yield from _read_record(name, folder)
        if record is None:
            raise MissingShardError(
                "the commit record was listed and is gone: open again, and if it stays away, restore it from a copy",
                path=join_path(folder, name),
            )
        records.append(record)
    return join_parts(known, parts_from_records(records, folder) if records else None, folder)


def _unnamed_in(listing: Iterable[str], known: Parts | None) -> list[str]:
    """Names of the records that are listed and that ``known`` does not have."""
    names = {name for name in listing if name.endswith(RECORD_SUFFIX)}
    if known is not None:
        # Before names are parsed, since the manifest of a whole data set knows them all and none is left to parse.
        names.difference_update(known.record_names)
    return [name for name in names if parse_record_name(name) is not None]


def _read_record(name: str, folder: str) -> Generator[Request, Any, CommitRecord | None]:
    data = yield ReadFile(name, RECORD_LIMIT_BYTES)
    return None if data is None else decode_record(bytes(data), name, folder)


def _open_by_listing(
    listing: Mapping[str, int], manifest: Manifest | None, asked: Asked, folder: str
) -> Generator[Request, Any, Catalog]:
    parts = yield from read_unnamed(listing, None if manifest is None else manifest.parts, folder)
    published = [name for name in listing if is_published_name(name)]
    if parts is None:
        if published:
            return (yield from published_by_listing(listing, asked[0], asked[1], folder))
        _raise_nothing_found(listing, (yield ListDataSets()), folder)
    if published:
        raise ForeignDataError(
            f"files of the published 1.x layout ({published[0]}) lie among those of a current data set: "
            "move one of the two to another folder",
            path=folder or None,
        )
    for name in parts.record_names:
        if name not in listing:
            raise MissingShardError(
                "the manifest names this commit record, but it is gone: restore it from a copy",
                path=join_path(folder, name),
            )
    catalog = _catalog(parts, asked, folder)
    found = np.fromiter(map(listing.get, catalog.files, repeat(-1)), np.int64, len(catalog.files))
    _check_sizes(catalog, found, folder)
    return catalog


def _open_by_probing(manifest: Manifest | None, asked: Asked, folder: str) -> Generator[Request, Any, Catalog]:
    records: dict[tuple[int, int], CommitRecord] = {}
    previous = -1
    for _ in range(_MOST_LOOKS):
        yield from _probe(manifest, records, folder)
        named = set() if manifest is None else set(manifest.parts.record_names)
        num_found = len(named.union(record_name(*numbers) for numbers in records))
        if num_found in (previous, len(named)):
            break
        previous = num_found
        manifest = yield from read_manifest(folder)
    parts = join_parts(
        None if manifest is None else manifest.parts,
        parts_from_records(list(records.values()), folder) if records else None,
        folder,
    )
    if parts is None:
        catalog = yield from published_by_probing(asked[0], asked[1], folder)
        if catalog is None:
            raise DataSetNotFoundError(
                f"no data set: found neither {MANIFEST}, nor {record_name(0, 0)}, nor files of the published 1.x "
                "layout. Is the path right, and was the writer closed?",
                path=folder or None,
            )
        return catalog
    catalog = _catalog(parts, asked, folder)
    sizes = yield FileSizes(catalog.files)
    _check_sizes(catalog, np.array([-1 if size is None else size for size in sizes], np.int64), folder)
    return catalog


def _probe(
    manifest: Manifest | None, records: dict[tuple[int, int], CommitRecord], folder: str
) -> Generator[Request, Any, None]:
    """Ask for each record that may be there and that neither the manifest nor ``records`` has, which gets them."""

    def has(shard: int, part: int) -> Generator[Request, Any, bool]:
        if (shard, part) not in records:
            record = yield from _read_record(record_name(shard, part), folder)
            if record is None:
                return False
            records[(shard, part)] = record
        return True

    shard = 0
    if manifest is not None:
        shard = int(manifest.parts.shard[-1]) + 1
        for numbers in manifest.pending:
            yield from has(*numbers)
    while (yield from has(shard, 0)):
        part = 1
        while (yield from has(shard, part)):
            part += 1
        shard += 1


def _catalog(parts: Parts, asked: Asked, folder: str) -> Catalog:
    check_agrees((parts.kind, parts.dtype, parts.formats), asked, folder)
    rows = parts.current_rows(folder)
    return catalog_of_parts(parts if rows.size == parts.shard.size else parts.take(rows))


def _check_sizes(catalog: Catalog, found: np.ndarray[Any, np.dtype[np.int64]], folder: str) -> None:
    wrong = np.flatnonzero(found != catalog.sizes)
    if not wrong.size:
        return
    place = int(wrong[0])
    name, expected, size = catalog.files[place], int(catalog.sizes[place]), int(found[place])
    numbers = parse_data_name(name)
    shard = None if numbers is None else numbers[0]
    others = f" ({wrong.size} files of {found.size} are wrong; this is the first)" if wrong.size > 1 else ""
    if size < 0:
        raise MissingShardError(
            f"a file of a committed shard is gone: expected {expected} bytes{others}; restore it from a copy",
            path=join_path(folder, name),
            shard=shard,
        )
    raise CorruptDataError(
        f"a file has not the size that was committed: expected {expected} bytes, found {size}{others}; "
        "restore it from a copy",
        path=join_path(folder, name),
        shard=shard,
        offset=min(expected, size),
    )


def _raise_nothing_found(listing: Mapping[str, int], data_sets: Sequence[str], folder: str) -> NoReturn:
    ours = [name for name in listing if name.startswith(TEMPORARY_PREFIX) or parse_data_name(name) is not None]
    foreign = sorted(set(listing).difference(ours))
    if data_sets and not ours:
        raise DataSetNotFoundError(name_data_sets(data_sets), path=folder or None)
    if foreign:
        shown = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise ForeignDataError(
            f"no data set here: expected commit records such as {record_name(0, 0)}, found {len(foreign)} other "
            f"{'file' if len(foreign) == 1 else 'files'} ({shown}); give the folder that a writer was given",
            path=folder or None,
        )
    if ours:
        raise DataSetNotFoundError(
            "no shard has been committed yet: only files of a writer that has not finished; close the writer, or "
            "run it again",
            path=folder or None,
        )
    raise DataSetNotFoundError(
        "no data set: the folder holds no files; write it first, or name the folder in it that does",
        path=folder or None,
    )
