"""Every call that changes the disk, so that a test can stop a writer before each of them.

Paths are strings. An ``OSError`` always carries its path, also where the system call only knows a descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn

from guideloom._base.interrupts import open_descriptor

before: Callable[[str, str], None] | None = None
"""Called with the name of the step and the path before each step; for tests only."""

_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_HAS_FOLDER_SYNC = os.name == "posix"
_SYNC_FILE_RANGE_WRITE = 2
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV)


def _step(name: str, path: str) -> None:
    if before is not None:
        before(name, path)


def _with_path(error: OSError, path: str) -> NoReturn:
    if error.errno is None:
        # Of no system call: a signal's handler raised it.
        raise error
    raise OSError(error.errno, error.strerror, path) from error


def make_folder(path: str) -> None:
    """Make a folder and its parents; durable, and no error when it is there."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    if parent != os.path.abspath(path):
        make_folder(parent)
    _step("mkdir", path)
    os.makedirs(path, exist_ok=True)
    sync_folder(parent)


def create(path: str) -> int:
    """Create a file that must not exist, and return a descriptor to write it."""
    _step("create", path)
    made: list[int] = []
    try:
        # As in ``open_descriptor``: an interrupt finds the descriptor in the list, or no file.
        made.extend(map(os.open, (path,), (_WRITE | os.O_CREAT | os.O_EXCL,), (0o666,)))
    except BaseException:
        for descriptor in made:
            with contextlib.suppress(OSError):
                os.close(descriptor)
                os.unlink(path)
        raise
    return made[0]


def reopen(path: str) -> int:
    """Return a descriptor to write on in a file made by :func:`create`."""
    return open_descriptor(path, _WRITE)


def write_at(descriptor: int, data: memoryview, offset: int, path: str) -> None:
    """Write all bytes at an offset; when that fails, what lies beyond ``offset`` is undefined."""
    _step("write", path)
    done = 0
    try:
        while done < data.nbytes:
            # Released even when the write fails: the caller could not add to a buffer that a traceback still refers to.
            with data[done : done + (1 << 30)] as piece:
                if hasattr(os, "pwrite"):
                    done += os.pwrite(descriptor, piece, offset + done)
                else:
                    os.lseek(descriptor, offset + done, os.SEEK_SET)
                    done += os.write(descriptor, piece)
    except OSError as error:
        _with_path(error, path)


def _find_sync_file_range() -> Any:
    """The C library's ``sync_file_range``, which Linux has; or None."""
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find_sync_file_range()


def start_writing(descriptor: int, offset: int, size: int) -> None:
    """Have the device begin with bytes that were written, where the platform can.

    Promises nothing: it only leaves less to wait for in :func:`finish_file`, which also reports the errors.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


def finish_file(path: str, size: int) -> None:
    """Cut a file to its size (a failed write may have left more), and make it durable."""
    _step("sync", path)
    try:
        descriptor = reopen(path)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            # Not through a function of ours, which an interrupt could end at its begin.
            os.close(descriptor)
    except OSError as error:
        _with_path(error, path)


def create_empty(path: str) -> None:
    """Create an empty file that must not exist."""
    descriptor = create(path)
    try:
        os.close(descriptor)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unlink(path)
        if isinstance(error, OSError):
            _with_path(error, path)
        raise


def fill(path: str, data: bytes) -> None:
    """Write all of an empty file and make it durable; when that fails there is no file."""
    try:
        try:
            descriptor = reopen(path)
            try:
                write_at(descriptor, memoryview(data), 0, path)
            finally:
                os.close(descriptor)
        except OSError as error:
            _with_path(error, path)
        finish_file(path, len(data))
    except BaseException:
        with contextlib.suppress(OSError):
            unlink(path)
        raise


def close(descriptors: MutableMapping[str, int], path: str) -> None:
    """Close and forget the descriptor of a path; some network file systems report only then that a write failed."""
    try:
        # In one go within C: an interrupt finds it closed and forgotten, or neither.
        deque(map(os.close, map(descriptors.pop, (path,))), maxlen=0)
    except OSError as error:
        _with_path(error, path)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable, where the platform can."""
    if not _HAS_FOLDER_SYNC:
        return
    _step("sync_folder", path)
    descriptor = open_descriptor(path, os.O_RDONLY)
    try:
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; their renames are durable without it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            _with_path(error, path)


def rename(source: str, target: str) -> None:
    """Rename a file over whatever has the target's name."""
    _step("rename", target)
    os.replace(source, target)


def link_new(source: str, target: str) -> bool:
    """Give a file a second name, or return False when that name is taken.

    Where the file system has no hard links, the file is renamed after a check that the name is free.
    """
    _step("link", target)
    try:
        os.link(source, target)
    except FileExistsError:
        # A network file system may repeat a request that went through, and then report its own link.
        return os.path.samefile(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            return False
        os.rename(source, target)
    return True


def unlink(path: str) -> None:
    """Remove a file, if it is there."""
    _step("unlink", path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
