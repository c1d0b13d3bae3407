"""Gather: many byte ranges of files into one buffer, in one call without the GIL.

Letters: R runs, F files. Run ``r`` is the byte range ``[src[r], src[r] + nbytes[r])`` of ``file[r]``; it goes to
``out[dst[r] - shift:]``; a run of no bytes needs no file. A kernel works on runs ``[lo, hi)``, says in ``status`` what
it read from devices, and stops at the first that it cannot do. What lies outside (of the files, the buffer, or the
plan's own arrays) is BAD_RANGE, and nothing is touched for it.

The compiled sources are in ``_kernels/native.py``; here are their contracts and their twins.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.jit import kernel
from guideloom._kernels.status import BAD_RANGE, DONE, FAILED, NOT_OPEN, SHORT, STATUS_SIZE, UNMEASURED

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


_MEASURED: I64 = np.zeros(STATUS_SIZE, np.int64)
_UNMEASURED = _MEASURED.copy()
_UNMEASURED[UNMEASURED] = 1


def new_status(measured: bool = True) -> I64:
    """Return a status for one call of a kernel, int64[STATUS_SIZE]; for one thread at a time.

    ``measured``: whether the kernel finds out what it reads from devices.
    """
    return (_MEASURED if measured else _UNMEASURED).copy()


def are_runs(lo: int, hi: int, *columns: I64) -> bool:
    """Whether the runs [lo, hi) are in every column of a plan."""
    return 0 <= lo <= hi <= min(column.size for column in columns)


def fault(handles: I64, sizes: I64 | None, file: int, src: int, nbytes: int, at: int, room: int) -> int:
    """Return what keeps a run from being done, as ``status[0]``; 0 when nothing does.

    ``sizes`` is None where reading finds the end of the file; ``at`` and ``room`` are the run's place and the buffer's
    end, both in bytes.
    """
    if not 0 <= file < handles.size:
        return BAD_RANGE
    if handles[file] < 0:
        return NOT_OPEN
    inside = nbytes >= 0 and src >= 0 and 0 <= at <= room - nbytes
    return 0 if inside and (sizes is None or src + nbytes <= sizes[file]) else BAD_RANGE


def gather_mapped_numpy(
    bases: I64,
    sizes: I64,
    file: I64,
    src: I64,
    dst: I64,
    nbytes: I64,
    lo: int,
    hi: int,
    out: U8,
    shift: int,
    status: I64,
) -> int:
    """Twin of :func:`gather_mapped`, over ctypes."""
    import ctypes

    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    for r in range(lo, hi):
        f, s, n, d = int(file[r]), int(src[r]), int(nbytes[r]), int(dst[r]) - shift
        if n == 0:
            continue
        status[0] = fault(bases, sizes, f, s, n, d, out.size)
        if status[0]:
            return r
        ctypes.memmove(out.ctypes.data + d, int(bases[f]) + s, n)
    return DONE


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, uint8[::1], int64, int64[::1])",  # noqa: E501
    twin=gather_mapped_numpy,
    build=True,
)
def gather_mapped() -> Any:
    """Copy runs out of mapped files.

    ``(bases int64[F], sizes int64[F], file, src, dst, nbytes int64[R], lo, hi, out uint8[M], shift,
    status int64[STATUS_SIZE])``; ``bases[f]`` is the address of file ``f``'s map, -1 when it is not mapped.
    Every range is checked before it is touched.
    """
    from guideloom._kernels import native

    return native.gather_mapped


def gather_pread_numpy(
    fds: I64, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int, status: I64
) -> int:
    """Twin of :func:`gather_pread`, over ``os.preadv``."""
    view = out.data
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    for r in range(lo, hi):
        f, s, n, d = int(file[r]), int(src[r]), int(nbytes[r]), int(dst[r]) - shift
        if n == 0:
            continue
        status[0] = fault(fds, None, f, s, n, d, out.size)
        if status[0]:
            return r
        done = 0
        while done < n:
            try:
                got = os.preadv(int(fds[f]), [view[d + done : d + n]], s + done)
            except OSError as error:
                status[0], status[1], status[2] = FAILED, error.errno or 0, done
                return r
            if got == 0:
                status[0], status[2] = SHORT, done
                return r
            done += got
    return DONE


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, uint8[::1], int64, int64[::1])",
    twin=gather_pread_numpy,
    build=True,
)
def gather_pread() -> Any:
    """Read runs with ``pread``.

    ``(fds int64[F], file, src, dst, nbytes int64[R], lo, hi, out uint8[M], shift, status int64[STATUS_SIZE])``;
    ``fds[f]`` is -1 when file ``f`` is not open. Short reads go on where they stopped, EINTR is tried again. On failure
    ``status[1]`` is errno and ``status[2]`` the bytes of the run that were read.
    """
    from guideloom._kernels import native

    return native.gather_pread


def _advise_files_numpy(fds: I64, file: I64, src: I64, nbytes: I64, lo: int, hi: int, status: I64) -> int:
    """Twin of :func:`advise_files`."""
    if not are_runs(lo, hi, file, src, nbytes):
        return 0
    for r in range(lo, hi):
        f = int(file[r])
        if nbytes[r] > 0 and 0 <= f < fds.size and fds[f] >= 0:
            with contextlib.suppress(OSError):  # the kernel's advice is no error either
                os.posix_fadvise(int(fds[f]), int(src[r]), int(nbytes[r]), os.POSIX_FADV_WILLNEED)
    return 0


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])",
    twin=_advise_files_numpy,
    build=True,
)
def advise_files() -> Any:
    """Ask for the bytes of runs ahead.

    ``(fds int64[F], file, src, nbytes int64[R], lo, hi, status int64[STATUS_SIZE])``.
    Returns the blocks that are now being read from devices: 0 when all was in the page cache.
    """
    from guideloom._kernels import native

    return native.advise_files


def _advise_maps_numpy(bases: I64, sizes: I64, file: I64, src: I64, nbytes: I64, lo: int, hi: int, status: I64) -> int:
    """Twin of :func:`advise_maps`: advice may always be left out."""
    return 0


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])",
    twin=_advise_maps_numpy,
    build=True,
)
def advise_maps() -> Any:
    """Ask for the pages of runs ahead.

    ``(bases, sizes int64[F], file, src, nbytes int64[R], lo, hi, status int64[STATUS_SIZE])``; the result as above.
    """
    from guideloom._kernels import native

    return native.advise_maps


def _populate_cached_numpy(address: int, nbytes: int, room: U8) -> int:
    """Twin of :func:`_populate_cached`: it may always be left out."""
    return 0


@kernel("int64(int64, int64, uint8[::1])", twin=_populate_cached_numpy, build=True)
def _populate_cached() -> Any:
    """Fill a page table: see :func:`populate_cached`. ``(address, nbytes, room)``: a byte for each of some pages."""
    from guideloom._kernels import native

    return native.populate_cached


_PAGES_AT_ONCE = 1 << 16


def populate_cached(address: int, nbytes: int) -> int:
    """Fill the page table of a map for what is in the page cache; reads nothing from a device.

    Returns the bytes now mapped. Saves a page fault for every 64 KiB that is touched first.
    """
    return int(_populate_cached(address, nbytes, np.empty(_PAGES_AT_ONCE, np.uint8)))
