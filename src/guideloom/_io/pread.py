"""The backend to prefer on POSIX: one descriptor a file, reads at an explicit offset."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import PurePath

from guideloom._base.interrupts import open_descriptor
from guideloom._base.protocols import IOAsyncReaderAbstract, IOReaderAbstract, IOSyncReaderAbstract
from guideloom._io.checks import READ_AHEAD_BYTES, check_range, check_read_ahead, not_open, short_read
from guideloom._io.into import IntoReader
from guideloom._io.threaded import ThreadedAsyncReader


def advise_random(fd: int) -> None:
    """Tell the kernel that reads of ``fd`` are at random places."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


class PreadReader(IntoReader):
    """One file, one descriptor; any number of threads may read at once."""

    def __init__(self, path: PurePath, *, advice: bool = False) -> None:
        super().__init__(path)
        self._advice = advice
        self._fd = -1

    def open(self) -> None:
        self.close()
        self._fd = open_descriptor(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if self._advice:
            advise_random(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def filesize(self) -> int:
        if self._fd < 0:
            raise not_open(self._path)
        return os.fstat(self._fd).st_size

    def read_into(self, offset: int, out: memoryview) -> None:
        check_range(self._path, offset, len(out))
        if self._fd < 0:
            raise not_open(self._path)
        done = 0
        while done < len(out):
            got = os.preadv(self._fd, [out[done:]], offset + done)
            if got == 0:
                raise short_read(self._path, offset, len(out), done)
            done += got


class PosixPreadIO(IOReaderAbstract):
    """Keeps one descriptor a file and reads at an explicit offset.

    Parameters
    ----------
    advice : bool, default False
        Ask for random-access advice with ``posix_fadvise`` on each file.
    read_ahead_bytes : int, default 64 MiB
        Most bytes of the batches to come that the system is asked to fetch ahead, in at most 256 reads, while reads
        wait for storage; nothing is asked for while they find all in the page cache. 0: never ask.

    Raises
    ------
    ArgumentError
        When ``read_ahead_bytes`` is no integer of at least 0.
    OSError
        When this platform has no ``os.preadv``, or no ``os.posix_fadvise`` and ``advice`` is asked for.
    """

    def __init__(self, *, advice: bool = False, read_ahead_bytes: int = READ_AHEAD_BYTES) -> None:
        if not self.is_supported(advice=advice):
            missing = "os.preadv" if not hasattr(os, "preadv") else "os.posix_fadvise"
            raise OSError(f"this platform has no {missing}: use SeekIO(){', or advice=False' if advice else ''}")
        self.advice = advice
        self.read_ahead_bytes = check_read_ahead(read_ahead_bytes)

    @staticmethod
    def is_supported(advice: bool = False) -> bool:
        """Whether this backend (with ``advice``) works here; being POSIX is not enough."""
        return hasattr(os, "preadv") and (not advice or hasattr(os, "posix_fadvise"))

    def sync_reader(self) -> Callable[[PurePath], IOSyncReaderAbstract]:
        return functools.partial(PreadReader, advice=self.advice)

    def async_reader(self) -> Callable[[PurePath], IOAsyncReaderAbstract]:
        return lambda path: ThreadedAsyncReader(PreadReader(path, advice=self.advice))

    def __repr__(self) -> str:
        return f"PosixPreadIO(advice={self.advice}, read_ahead_bytes={self.read_ahead_bytes})"
