"""The portable backend: opens, seeks and reads for each request."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import FileIO
from pathlib import PurePath

from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract
from guideloom._io.checks import check_range, not_open, short_read
from guideloom._io.into import IntoReader
from guideloom._io.threaded import ThreadedAsyncReader


class SeekReader(IntoReader):
    """One file, opened anew for each read; holds no descriptor in between."""

    def __init__(self, path: PurePath) -> None:
        super().__init__(path)
        self._open = False

    def open(self) -> None:
        with open(self._path, "rb"):
            self._open = True

    def close(self) -> None:
        self._open = False

    def filesize(self) -> int:
        if not self._open:
            raise not_open(self._path)
        return os.stat(self._path).st_size

    def read_into(self, offset: int, out: memoryview) -> None:
        check_range(self._path, offset, len(out))
        if not self._open:
            raise not_open(self._path)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(offset)
            done = fill(file, out)
        if done < len(out):
            raise short_read(self._path, offset, len(out), done)


def fill(file: FileIO, out: memoryview) -> int:
    """Read on until ``out`` is full, or the file ends; return how many bytes that were."""
    done = 0
    while done < len(out):
        got = file.readinto(out[done:])
        if not got:
            break
        done += got
    return done


class SeekIO(IOReaderAbstract):
    """Opens, seeks and reads for each request.

    Works on every platform and holds no descriptors between requests; a batch opens each of its files once.
    Slower than :class:`PosixPreadIO`, which is the one to prefer where it is supported.
    """

    @staticmethod
    def is_supported() -> bool:
        """Whether this backend works here: always."""
        return True

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return SeekReader

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return lambda path: ThreadedAsyncReader(SeekReader(path))

    def __repr__(self) -> str:
        return "SeekIO()"
