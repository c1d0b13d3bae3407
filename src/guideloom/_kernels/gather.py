"""Gather: many byte ranges of files into one buffer, in one call without the GIL.

Letters: R runs, F files. Run ``r`` is the byte range ``[src[r], src[r] + nbytes[r])`` of ``file[r]``; it goes to
``out[dst[r] - shift:]``; a run of no bytes needs no file. A kernel works on runs ``[lo, hi)`` and stops at the first that it cannot do.

libc's ``pread`` and ``memcpy`` are bound by symbol (``numba.types.ExternalFunction``): such a call needs no pointer baked into
the code, so the compiled kernel can be cached on disk, and it runs without the GIL.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.door import kernel

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

DONE = -1
"""What a gather kernel returns when every run was done; otherwise the index of the run it stopped at."""

NOT_OPEN, SHORT, FAILED, BAD_RANGE = 1, 2, 3, 4
"""``status[0]``: the run's file has no handle; the file ended early; errno is in ``status[1]``; outside file or buffer."""


def _gather_mapped_numpy(
    bases: I64, sizes: I64, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int, status: I64
) -> int:
    """Twin of :func:`gather_mapped`, over ctypes."""
    import ctypes

    for r in range(lo, hi):
        f, n, d = int(file[r]), int(nbytes[r]), int(dst[r]) - shift
        if n == 0:
            continue
        if bases[f] < 0:
            status[0] = NOT_OPEN
            return r
        if n < 0 or src[r] < 0 or src[r] + n > sizes[f] or d < 0 or d + n > out.size:
            status[0] = BAD_RANGE
            return r
        ctypes.memmove(out.ctypes.data + d, int(bases[f]) + int(src[r]), n)
    return DONE


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, uint8[::1], int64, int64[::1])",
    twin=_gather_mapped_numpy,
    build=True,
)
def gather_mapped() -> Any:
    """Copy runs out of mapped files.

    ``(bases int64[F], sizes int64[F], file, src, dst, nbytes int64[R], lo, hi, out uint8[M], shift, status int64[3])``;
    ``bases[f]`` is the address of file ``f``'s map, -1 when it is not mapped. Every range is checked before it is touched.
    """
    from numba import types

    memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))

    def gather_mapped_kernel(bases, sizes, file, src, dst, nbytes, lo, hi, out, shift, status):  # type: ignore[no-untyped-def]
        address = out.ctypes.data
        room = out.size
        for r in range(lo, hi):
            f = file[r]
            n = nbytes[r]
            if n == 0:
                continue
            d = dst[r] - shift
            base = bases[f]
            if base < 0:
                status[0] = NOT_OPEN
                return r
            if n < 0 or src[r] < 0 or src[r] > sizes[f] - n or d < 0 or d > room - n:
                status[0] = BAD_RANGE
                return r
            memcpy(address + d, base + src[r], n)
        return DONE

    return gather_mapped_kernel


def _gather_pread_numpy(
    fds: I64, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int, out: U8, shift: int, status: I64
) -> int:
    """Twin of :func:`gather_pread`, over ``os.preadv``."""
    view = memoryview(out)
    for r in range(lo, hi):
        f, n, d = int(file[r]), int(nbytes[r]), int(dst[r]) - shift
        if n == 0:
            continue
        if fds[f] < 0:
            status[0] = NOT_OPEN
            return r
        if n < 0 or src[r] < 0 or d < 0 or d + n > out.size:
            status[0] = BAD_RANGE
            return r
        done = 0
        while done < n:
            try:
                got = os.preadv(int(fds[f]), [view[d + done : d + n]], int(src[r]) + done)
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
    twin=_gather_pread_numpy,
    build=True,
)
def gather_pread() -> Any:
    """Read runs with ``pread``.

    ``(fds int64[F], file, src, dst, nbytes int64[R], lo, hi, out uint8[M], shift, status int64[3])``; ``fds[f]`` is -1 when
    file ``f`` is not open. Short reads go on where they stopped, EINTR is tried again. On failure ``status[1]`` is errno
    and ``status[2]`` the bytes of the run that were read.
    """
    from numba import types

    pread = types.ExternalFunction("pread", types.intp(types.int32, types.intp, types.uintp, types.int64))
    memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
    # errno is a macro over a function that gives its address; the function's name is the platform's.
    name = "__error" if sys.platform == "darwin" else "__errno_location"
    errno_address = types.ExternalFunction(name, types.intp())
    eintr = 4

    def gather_pread_kernel(fds, file, src, dst, nbytes, lo, hi, out, shift, status):  # type: ignore[no-untyped-def]
        address = out.ctypes.data
        room = out.size
        for r in range(lo, hi):
            n = nbytes[r]
            if n == 0:
                continue
            fd = fds[file[r]]
            d = dst[r] - shift
            if fd < 0:
                status[0] = NOT_OPEN
                return r
            if n < 0 or src[r] < 0 or d < 0 or d > room - n:
                status[0] = BAD_RANGE
                return r
            done = 0
            while done < n:
                got = pread(np.int32(fd), address + d + done, n - done, src[r] + done)
                if got > 0:
                    done += got
                elif got == 0:
                    status[0] = SHORT
                    status[2] = done
                    return r
                else:
                    code = np.zeros(1, np.int32)
                    memcpy(code.ctypes.data, errno_address(), 4)
                    if code[0] != eintr:
                        status[0] = FAILED
                        status[1] = code[0]
                        status[2] = done
                        return r
        return DONE

    return gather_pread_kernel
