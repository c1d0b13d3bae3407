"""Answers requests from a local folder, and drives the generators that make them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import stat
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from guideloom._base.errors import (
    CorruptDataError,
    DamagedRecordError,
    DataSetNotFoundError,
    ForeignDataError,
    MissingShardError,
)
from guideloom._base.interrupts import open_descriptor
from guideloom._storage.names import MANIFEST, RECORD_SUFFIX, parse_data_name, parse_record_name
from guideloom._storage.published import is_published_name
from guideloom._storage.requests import FileSize, FileSizes, ListDataSets, ListFolder, ReadFile, ReadRange, Request

ResultT = TypeVar("ResultT")

_GONE = (errno.ENOENT, errno.ENOTDIR)
_RESTORE = "restore the file from a copy"
_OPEN_FLAGS = getattr(os, "O_NONBLOCK", 0)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

FOLLOW_LINKS = "copy the data set with its links followed: cp -rL, or cp -rlL, which takes no space on the same disk"


def outside_link(folder: str, name: str) -> str | None:
    """Return where a name in a folder leads, when that is not in the folder; None when it is."""
    target = os.path.realpath(os.path.join(folder, name))
    return None if Path(target).is_relative_to(os.path.realpath(folder)) else target


def _is_read(name: str) -> bool:
    """Whether readers look at a file of this name."""
    return (
        name == MANIFEST
        or parse_data_name(name) is not None
        or parse_record_name(name) is not None
        or is_published_name(name)
    )


# Entries of a folder that is none, for a message.
_MOST_LOOKED_AT = 1000


@contextlib.contextmanager
def _scanned(folder: str | int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """As ``os.scandir`` with ``with``; an interrupt between the two leaves nothing open."""
    scans: list[Any] = []
    try:
        # Within C from the call to the list.
        scans.extend(map(os.scandir, (folder,)))
        yield scans[0]
    finally:
        for scan in scans:
            scan.close()


class LocalFolder:
    """Answers requests from a folder of the local file system.

    Parameters
    ----------
    directory : pathlib.Path

    Attributes
    ----------
    links : dict of name -> path
        Of the files that the last listing found and a reader would look at: symbolic links, and where they lead, when
        that is outside of the folder. The folder itself may be a link.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._prefix = os.fspath(directory)
        self.links: dict[str, str] = {}

    def answer(self, request: Request) -> Any:
        """Answer one request; see :mod:`guideloom._storage.requests`."""
        match request:
            case ListFolder():
                found = self.listing()
                for name in self.links:
                    raise self._refuse(name)
                return found
            case ListDataSets():
                return data_sets_in(self._prefix)
            case ReadFile(name, limit_bytes):
                return self.read_file(name, limit_bytes)
            case FileSize(name):
                return self.file_size(name)
            case FileSizes(names):
                return list(map(self.file_size, names))
            case ReadRange(name, offset_bytes, size_bytes):
                return self.read_range(name, offset_bytes, size_bytes)

    def listing(self) -> dict[str, int]:
        """Name and size in bytes of each regular file; -1 for commit records and links out, whose size says nothing.

        Raises
        ------
        DataSetNotFoundError
            No such folder.
        ForeignDataError
            A file in place of the folder.
        PermissionError
        """
        found = {}
        self.links = {}
        try:
            with self._scan() as entries:
                for entry in entries:
                    name = entry.name
                    # The listing itself says what is a link: files that are none cost nothing.
                    if entry.is_symlink() and _is_read(name):
                        target = outside_link(self._prefix, name)
                        if target is not None:
                            self.links[name] = target
                            found[name] = -1
                            continue
                    if name.endswith(RECORD_SUFFIX):
                        found[name] = -1
                        continue
                    try:
                        if entry.is_file():
                            found[name] = entry.stat().st_size
                    except OSError as error:
                        if error.errno not in (*_GONE, errno.ELOOP):
                            # As it comes, it has the path from the folder only.
                            path = os.path.join(self._prefix, name)
                            raise OSError(error.errno, error.strerror, path) from error
        except FileNotFoundError:
            raise DataSetNotFoundError(
                "no data set: the folder does not exist; correct the path, or write it first", path=self._directory
            ) from None
        except NotADirectoryError:
            remedy = "give the folder that holds it"
            if not os.path.lexists(self._directory):
                remedy = "a part of this path is no folder, correct it"
            raise ForeignDataError(
                "expected a data set's folder, found a file", remedy=remedy, path=self._directory
            ) from None
        return found

    @contextlib.contextmanager
    def _scan(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Entries of the folder, whose sizes are asked for relative to it where the platform can: by shorter paths."""
        if os.scandir not in os.supports_fd:
            with _scanned(self._prefix) as entries:
                yield entries
            return
        descriptor = open_descriptor(self._prefix, _FOLDER_FLAGS)
        try:
            with _scanned(descriptor) as entries:
                yield entries
        finally:
            os.close(descriptor)

    def read_file(self, name: str, limit_bytes: int) -> bytes | None:
        """The whole file, None when it does not exist."""
        path = os.path.join(self._prefix, name)
        try:
            # A pipe of that name must not block, nor a folder give another error than a damaged record.
            with open(path, "rb", buffering=0, opener=self._open_inside) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedRecordError(
                        "expected a regular file, found something else", remedy=_RESTORE, path=path
                    )
                size = status.st_size
                if size > limit_bytes:
                    raise DamagedRecordError(
                        f"expected at most {limit_bytes} bytes, found {size}", remedy=_RESTORE, path=path
                    )
                return _read_exactly(file.fileno(), 0, size, path)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno == errno.EISDIR:
                raise DamagedRecordError(
                    "expected a regular file, found a folder", remedy=_RESTORE, path=path
                ) from error
            raise

    def _open_inside(self, path: str, flags: int) -> int:
        try:
            return open_descriptor(path, flags | _OPEN_FLAGS | _NO_LINK)
        except OSError:
            # Systems have several numbers for a link that must not be followed.
            if not os.path.islink(path):
                raise
        name = os.path.basename(path)
        if outside_link(self._prefix, name) is not None:
            raise self._refuse(name)
        return open_descriptor(path, flags | _OPEN_FLAGS)

    def _refuse(self, name: str) -> ForeignDataError:
        return ForeignDataError(
            "expected the files of a data set in its folder, found a symbolic link that leads out of it, to "
            f"{outside_link(self._prefix, name)!r}: {FOLLOW_LINKS}",
            path=os.path.join(self._prefix, name),
        )

    def file_size(self, name: str) -> int | None:
        """Size in bytes, None when there is no such file."""
        try:
            return os.stat(os.path.join(self._prefix, name)).st_size
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def read_range(self, name: str, offset_bytes: int, size_bytes: int) -> bytes:
        """Exactly ``size_bytes`` bytes from ``offset_bytes``."""
        path = os.path.join(self._prefix, name)
        try:
            with open(path, "rb", buffering=0) as file:
                return _read_exactly(file.fileno(), offset_bytes, size_bytes, path)
        except FileNotFoundError:
            raise MissingShardError("a file of a committed shard is gone: restore it from a copy", path=path) from None


def data_sets_in(folder: str | os.PathLike[str]) -> list[str]:
    """Sorted paths of the folders in a folder that hold data sets; of a large folder only the first are looked at."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_LOOKED_AT):
            # A file, or a folder that may not be looked into, is none that could be named.
            with contextlib.suppress(OSError):
                if _is_data_set(entry.path):
                    found.append(entry.path)
    return sorted(found)


def _is_data_set(folder: str) -> bool:
    with os.scandir(folder) as entries:
        names = (entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT))
        return any(parse_record_name(name) is not None or is_published_name(name) for name in names)


def name_data_sets(paths: Sequence[str]) -> str:
    """Say which folders hold data sets, in place of one that does not, and what to do."""
    shown = ", ".join(repr(os.path.basename(path)) for path in paths[:3])
    more = f", ... ({len(paths)} in all)" if len(paths) > 3 else ""
    return (
        f"no data set, but a folder with data sets in it, {shown}{more}: give one of them, as in: "
        f"guideloom info {shlex.quote(paths[0])}"
    )


def read_up_to(descriptor: int, offset: int, size: int) -> bytes:
    """Return ``size`` bytes from ``offset``, fewer only where the file ends; moves the descriptor's position."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    chunks = []
    while size:
        chunk = os.read(descriptor, min(size, 1 << 30))
        if not chunk:
            break
        chunks.append(chunk)
        size -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _read_exactly(descriptor: int, offset: int, size: int, path: str) -> bytes:
    data = read_up_to(descriptor, offset, size)
    if len(data) != size:
        raise CorruptDataError(
            f"expected {size} bytes from byte {offset}, found {len(data)}",
            remedy=_RESTORE,
            path=path,
            offset=offset + len(data),
        )
    return data


def drive(generator: Generator[Request, Any, ResultT], answer: Callable[[Request], Any]) -> ResultT:
    """Run a generator of requests to its end, and return its result; an error of ``answer`` ends both."""
    try:
        request = next(generator)
        while True:
            request = generator.send(answer(request))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        generator.close()


async def drive_async(
    generator: Generator[Request, Any, ResultT], answer: Callable[[Request], Awaitable[Any]]
) -> ResultT:
    """Run a generator of requests to its end, each answered by a coroutine."""
    try:
        request = next(generator)
        while True:
            request = generator.send(await answer(request))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        generator.close()
