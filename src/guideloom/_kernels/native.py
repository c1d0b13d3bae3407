"""Sources of the kernels that work on raw addresses; imported only to be compiled.

libc's ``pread`` and ``memcpy`` are bound by symbol (``numba.types.ExternalFunction``): no pointer is baked into the
code, so a compiled
kernel can be cached on disk, and the calls run without the GIL. They must be globals of this module: a closure over
them
would miss the cache each time.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, attr-defined, call-overload, call-arg"

from __future__ import annotations

import mmap
import sys

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.extending import intrinsic

from guideloom._kernels.status import (
    BAD_RANGE,
    BLOCKS,
    COPY_1,
    COPY_2,
    COPY_4,
    COPY_8,
    COPY_ANY,
    DONE,
    FAILED,
    I4_TO_I8,
    NOT_OPEN,
    SHORT,
    STATUS_SIZE,
    U1_TO_I4,
    U1_TO_I8,
    U2_TO_I4,
    U2_TO_I8,
    U4_TO_I8,
    USAGE,
    WAITED,
    WAITS,
)

memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
pread = types.ExternalFunction("pread", types.intp(types.int32, types.intp, types.uintp, types.int64))
# errno is a macro over a function that gives its address; the function's name is the platform's.
errno_address = types.ExternalFunction("__error" if sys.platform == "darwin" else "__errno_location", types.intp())
EINTR = 4

# What a thread read from devices: Linux counts it; elsewhere nothing is known, and nothing is asked ahead.
PER_THREAD_USAGE = sys.platform == "linux"
getrusage = types.ExternalFunction("getrusage", types.int32(types.int32, types.intp))
RUSAGE_THREAD, RU_INBLOCK, RU_NVCSW = 1, 11, 16

posix_fadvise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))
WILLNEED = 3  # the same number for posix_fadvise and madvise, on Linux and macOS
POPULATE_READ = 22  # Linux 5.14; an older one refuses it, which is as good as not asking
mincore = types.ExternalFunction("mincore", types.int32(types.intp, types.uintp, types.intp))
PAGE_BYTES = mmap.PAGESIZE


def _load_of(element):
    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            at = builder.inttoptr(arguments[0], context.get_value_type(element).as_pointer())
            return builder.load(at, align=1)  # a field of a packed record lies at any byte

        return element(types.int64), generate

    return load


load_int32 = _load_of(types.int32)


@intrinsic
def _prefetch(typing_context, address):
    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], fnty=signature)
        builder.call(function, [pointer, flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# Runs between the one that is copied and the one that is fetched; of that one so many lines of so many pages.
PREFETCH_RUNS, PREFETCH_PAGES, PREFETCH_LINES, LINE_BYTES = 4, 16, 8, 64


@njit(nogil=True)
def _fetch_ahead(bases, file, src, nbytes, run):
    """Have the processor fetch how each page of a later run begins, while it copies this one: a hint, never a fault.

    The rest of a page it foresees by itself, but neither where a page lies nor that it is wanted. It goes into the
    second-level cache, since what is copied meanwhile sweeps the first. Behind the last run of a batch lie those of
    the next one.
    """
    soon = run + PREFETCH_RUNS
    if soon >= min(min(file.size, src.size), nbytes.size) or file[soon] < 0 or file[soon] >= bases.size:
        return
    address = bases[file[soon]] + src[soon]
    end = address + nbytes[soon]
    for _ in range(PREFETCH_PAGES):
        for line in range(min(PREFETCH_LINES, (end - address + LINE_BYTES - 1) // LINE_BYTES)):
            _prefetch(address + line * LINE_BYTES)
        address = (address // PAGE_BYTES + 1) * PAGE_BYTES
        if address >= end:
            break


@njit(nogil=True)
def usage(status):
    """Return the blocks that this thread had read from devices, and how often it waited."""
    if status.size < STATUS_SIZE:
        raise ValueError("a kernel's status is too short")
    if PER_THREAD_USAGE:
        getrusage(np.int32(RUSAGE_THREAD), status.ctypes.data + 8 * USAGE)
    return status[USAGE + RU_INBLOCK], status[USAGE + RU_NVCSW]


@njit(nogil=True)
def done(blocks, waits, status):
    """Note what was used since, and return DONE or WAITED."""
    blocks_now, waits_now = usage(status)
    status[BLOCKS] = blocks_now - blocks
    status[WAITS] = waits_now - waits
    return DONE if blocks_now == blocks and waits_now == waits else WAITED


@njit(nogil=True)
def are_runs(lo, hi, file, src, dst, nbytes):
    """Whether the runs [lo, hi) are in every column: what follows is as unchecked as C."""
    return lo >= 0 and lo <= hi and hi <= min(min(file.size, src.size), min(dst.size, nbytes.size))


@njit(nogil=True)
def mapped_runs(bases, sizes, file, src, dst, nbytes, lo, hi, address, room, shift, status):
    """Copy runs that are in their columns; DONE, or the run it stopped at."""
    for r in range(lo, hi):
        f = file[r]
        n = nbytes[r]
        if n == 0:
            continue
        d = dst[r] - shift
        if f < 0 or f >= bases.size:
            status[0] = BAD_RANGE
            return r
        base = bases[f]
        if base < 0:
            status[0] = NOT_OPEN
            return r
        if n < 0 or src[r] < 0 or src[r] > sizes[f] - n or d < 0 or d > room - n:
            status[0] = BAD_RANGE
            return r
        _fetch_ahead(bases, file, src, nbytes, r)
        memcpy(address + d, base + src[r], n)
    return DONE


def gather_mapped(bases, sizes, file, src, dst, nbytes, lo, hi, out, shift, status):
    blocks, waits = usage(status)
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    stopped = mapped_runs(bases, sizes, file, src, dst, nbytes, lo, hi, out.ctypes.data, out.size, shift, status)
    return stopped if stopped >= 0 else done(blocks, waits, status)


# Pages looked at before all of a map are: to find that nothing of it is cached takes 10 ms a GiB.
LEAST_PROBES, MOST_PROBES, PAGES_A_PROBE = 8, 64, 256


@njit(nogil=True)
def _seems_cached(address, pages):
    """Whether at least one of some pages, evenly spread, is in the page cache."""
    resident = np.zeros(1, np.uint8)
    probes = min(MOST_PROBES, max(LEAST_PROBES, pages // PAGES_A_PROBE))
    for page in range(0, pages, max(1, pages // probes)):
        if mincore(address + page * PAGE_BYTES, 1, resident.ctypes.data) == 0 and resident[0] & 1 == 1:
            return True
    return False


def populate_cached(address, nbytes):
    pages = (nbytes + PAGE_BYTES - 1) // PAGE_BYTES
    if not _seems_cached(address, pages):
        return 0
    resident = np.zeros(pages, np.uint8)
    if mincore(address, nbytes, resident.ctypes.data) != 0:
        return 0
    populated = 0
    first = 0
    while first < pages:
        if resident[first] & 1 == 0:
            first += 1
            continue
        end = first + 1
        while end < pages and resident[end] & 1 == 1:
            end += 1
        if madvise(address + first * PAGE_BYTES, (end - first) * PAGE_BYTES, np.int32(POPULATE_READ)) != 0:
            return populated
        populated += (end - first) * PAGE_BYTES
        first = end
    return populated


@njit(nogil=True)
def pread_runs(fds, file, src, dst, nbytes, lo, hi, address, room, shift, status):
    """Read runs that are in their columns; DONE, or the run it stopped at."""
    for r in range(lo, hi):
        n = nbytes[r]
        if n == 0:
            continue
        f = file[r]
        d = dst[r] - shift
        if f < 0 or f >= fds.size:
            status[0] = BAD_RANGE
            return r
        fd = fds[f]
        if fd < 0:
            status[0] = NOT_OPEN
            return r
        if n < 0 or src[r] < 0 or d < 0 or d > room - n:
            status[0] = BAD_RANGE
            return r
        read = 0
        while read < n:
            got = pread(np.int32(fd), address + d + read, n - read, src[r] + read)
            if got > 0:
                read += got
            elif got == 0:
                status[0] = SHORT
                status[2] = read
                return r
            else:
                # Nothing here may raise, as an allocation can: others may wait for this thread (native_desk.py).
                code = load_int32(errno_address())
                if code != EINTR:
                    status[0] = FAILED
                    status[1] = code
                    status[2] = read
                    return r
    return DONE


def gather_pread(fds, file, src, dst, nbytes, lo, hi, out, shift, status):
    blocks, waits = usage(status)
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    stopped = pread_runs(fds, file, src, dst, nbytes, lo, hi, out.ctypes.data, out.size, shift, status)
    return stopped if stopped >= 0 else done(blocks, waits, status)


def advise_files(fds, file, src, nbytes, lo, hi):
    spent = np.zeros(STATUS_SIZE, np.int64)
    blocks, _ = usage(spent)
    if not are_runs(lo, hi, file, src, src, nbytes):
        return 0
    for r in range(lo, hi):
        f = file[r]
        if nbytes[r] > 0 and f >= 0 and f < fds.size and fds[f] >= 0:
            posix_fadvise(np.int32(fds[f]), src[r], nbytes[r], np.int32(WILLNEED))
    return usage(spent)[0] - blocks


def advise_maps(bases, sizes, file, src, nbytes, lo, hi):
    spent = np.zeros(STATUS_SIZE, np.int64)
    blocks, _ = usage(spent)
    if not are_runs(lo, hi, file, src, src, nbytes):
        return 0
    for r in range(lo, hi):
        f = file[r]
        n = nbytes[r]
        if n > 0 and f >= 0 and f < bases.size and bases[f] >= 0 and src[r] >= 0 and src[r] <= sizes[f] - n:
            first = (bases[f] + src[r]) // PAGE_BYTES * PAGE_BYTES
            madvise(first, bases[f] + src[r] + n - first, np.int32(WILLNEED))
    return usage(spent)[0] - blocks


# --- columns: de-interleave and widen while gathering ------------------------------------------------


def pointer_to(element):
    @intrinsic
    def pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


def _field_copier(source, target):
    """Return a compiled loop: ``n`` values of one type, ``stride`` bytes apart, are stored densely as another."""
    source_pointer, target_pointer, load = pointer_to(source), pointer_to(target), _load_of(source)
    size = source.bitwidth // 8

    def copy(at, stride, n, to):
        dense = carray(target_pointer(to), (n,))
        if stride == size:
            packed = carray(source_pointer(at), (n,))
            for i in range(n):
                dense[i] = packed[i]
        else:
            for i in range(n):
                dense[i] = load(at + i * stride)

    # Kernels are compiled, and cached, in different processes, and linked by name in this one: under one name they
    # would use each other's loops.
    copy.__name__ = copy.__qualname__ = f"copy_{source}_to_{target}"
    return njit(nogil=True)(copy)


copy_1 = _field_copier(types.uint8, types.uint8)
copy_2 = _field_copier(types.uint16, types.uint16)
copy_4 = _field_copier(types.uint32, types.uint32)
copy_8 = _field_copier(types.uint64, types.uint64)
u1_to_i4 = _field_copier(types.uint8, types.int32)
u2_to_i4 = _field_copier(types.uint16, types.int32)
u1_to_i8 = _field_copier(types.uint8, types.int64)
u2_to_i8 = _field_copier(types.uint16, types.int64)
u4_to_i8 = _field_copier(types.uint32, types.int64)
i4_to_i8 = _field_copier(types.int32, types.int64)


@njit(nogil=True)
def _spread(code, at, stride, n, to, size):
    if code == COPY_1:
        copy_1(at, stride, n, to)
    elif code == COPY_2:
        copy_2(at, stride, n, to)
    elif code == COPY_4:
        copy_4(at, stride, n, to)
    elif code == COPY_8:
        copy_8(at, stride, n, to)
    elif code == COPY_ANY:
        for i in range(n):
            memcpy(to + i * size, at + i * stride, size)
    elif code == U1_TO_I4:
        u1_to_i4(at, stride, n, to)
    elif code == U2_TO_I4:
        u2_to_i4(at, stride, n, to)
    elif code == U1_TO_I8:
        u1_to_i8(at, stride, n, to)
    elif code == U2_TO_I8:
        u2_to_i8(at, stride, n, to)
    elif code == U4_TO_I8:
        u4_to_i8(at, stride, n, to)
    elif code == I4_TO_I8:
        i4_to_i8(at, stride, n, to)


@njit(nogil=True)
def spread_runs(bases, sizes, file, src, dst, nbytes, lo, hi, itemsize, code, offset, size, out, room, shift, status):
    """Take runs of records, which are in their columns, apart; DONE, or the run it stopped at."""
    for r in range(lo, hi):
        f = file[r]
        n = nbytes[r]
        if n == 0:
            continue
        if f < 0 or f >= bases.size:
            status[0] = BAD_RANGE
            return r
        base = bases[f]
        if base < 0:
            status[0] = NOT_OPEN
            return r
        first = (dst[r] - shift) // itemsize
        count = n // itemsize
        if n < 0 or src[r] < 0 or src[r] > sizes[f] - n or first < 0 or first > room - count:
            status[0] = BAD_RANGE
            return r
        _fetch_ahead(bases, file, src, nbytes, r)
        for k in range(code.size):
            _spread(code[k], base + src[r] + offset[k], itemsize, count, out[k] + first * size[k], size[k])
    return DONE


def spread_mapped(bases, sizes, file, src, dst, nbytes, lo, hi, itemsize, fields, room, shift, status):
    blocks, waits = usage(status)
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    stopped = spread_runs(
        bases, sizes, file, src, dst, nbytes, lo, hi,
        itemsize, fields[0], fields[1], fields[2], fields[3], room, shift, status,
    )  # fmt: skip
    return stopped if stopped >= 0 else done(blocks, waits, status)
