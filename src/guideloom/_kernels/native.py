"""Sources of the kernels that work on raw addresses; imported only to be compiled.

libc's ``pread`` and ``memcpy`` are bound by symbol (``numba.types.ExternalFunction``): no pointer is baked into the
code, so a compiled kernel can be cached on disk, and the calls run without the GIL. They must be globals of this
module: a closure over them would miss the cache each time.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, attr-defined, call-overload, call-arg, var-annotated"

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
    UNMEASURED,
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


@intrinsic
def address_of(typing_context, array):
    """Return where an array's values lie."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


def pointer_to(element):
    @intrinsic
    def pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


words_at = pointer_to(types.int64)
"""Make an address one of 64-bit words, to be indexed without checks."""

# Functions that only kernels call have no ways in from Python and C, and take whole numbers alone, arrays as addresses
# (but for one that asks arrays how long they are): they compile in a fraction of the time, which the first batch on a
# machine waits for.
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Runs between the one that is copied and the one that is fetched; of that one so many lines of so many pages.
PREFETCH_RUNS, PREFETCH_PAGES, PREFETCH_LINES, LINE_BYTES = 4, 16, 8, 64


@inner
def _fetch_ahead(begin, nbytes):
    """Have the processor fetch how each page of a later run begins, while it copies this one: a hint, never a fault.

    The rest of a page it foresees by itself, but neither where a page lies nor that it is wanted. It goes into the
    second-level cache, since what is copied meanwhile sweeps the first. Behind the last run of a batch lie those of
    the next one.
    """
    address = begin
    end = begin + nbytes
    for _ in range(PREFETCH_PAGES):
        for line in range(min(PREFETCH_LINES, (end - address + LINE_BYTES - 1) // LINE_BYTES)):
            _prefetch(address + line * LINE_BYTES)
        address = (address // PAGE_BYTES + 1) * PAGE_BYTES
        if address >= end:
            break


@inner
def usage(status):
    """Have the system write into ``status`` what this thread used; nothing if it is not to be measured."""
    if PER_THREAD_USAGE and words_at(status)[UNMEASURED] == 0:
        getrusage(np.int32(RUSAGE_THREAD), status + 8 * USAGE)


@inner
def blocks_of(status):
    """Return the blocks that this thread had read from devices, by the last ``usage``."""
    return words_at(status)[USAGE + RU_INBLOCK]


@inner
def waits_of(status):
    """Return how often this thread had waited, by the last ``usage``."""
    return words_at(status)[USAGE + RU_NVCSW]


@inner
def done(blocks, waits, status):
    """Note what was used since, and return DONE or WAITED."""
    usage(status)
    found = words_at(status)
    found[BLOCKS] = blocks_of(status) - blocks
    found[WAITS] = waits_of(status) - waits
    return DONE if found[BLOCKS] == 0 and found[WAITS] == 0 else WAITED


@inner
def mapped_runs(bases, sizes, num_files, file, src, dst, nbytes, num_runs, lo, hi, address, room, shift, status):
    """Copy runs that are in their columns; DONE, or the run it stopped at."""
    base_of, size_of, why = words_at(bases), words_at(sizes), words_at(status)
    file_of, src_of, dst_of, nbytes_of = words_at(file), words_at(src), words_at(dst), words_at(nbytes)
    for r in range(lo, hi):
        f = file_of[r]
        n = nbytes_of[r]
        if n == 0:
            continue
        s = src_of[r]
        d = dst_of[r] - shift
        if f < 0 or f >= num_files:
            why[0] = BAD_RANGE
            return r
        base = base_of[f]
        if base < 0:
            why[0] = NOT_OPEN
            return r
        if n < 0 or s < 0 or s > size_of[f] - n or d < 0 or d > room - n:
            why[0] = BAD_RANGE
            return r
        soon = r + PREFETCH_RUNS
        if soon < num_runs and file_of[soon] >= 0 and file_of[soon] < num_files:
            _fetch_ahead(base_of[file_of[soon]] + src_of[soon], nbytes_of[soon])
        memcpy(address + d, base + s, n)
    return DONE


@inner
def pread_runs(fds, num_files, file, src, dst, nbytes, lo, hi, address, room, shift, status):
    """Read runs that are in their columns; DONE, or the run it stopped at."""
    fd_of, why = words_at(fds), words_at(status)
    file_of, src_of, dst_of, nbytes_of = words_at(file), words_at(src), words_at(dst), words_at(nbytes)
    for r in range(lo, hi):
        n = nbytes_of[r]
        if n == 0:
            continue
        f = file_of[r]
        s = src_of[r]
        d = dst_of[r] - shift
        if f < 0 or f >= num_files:
            why[0] = BAD_RANGE
            return r
        fd = fd_of[f]
        if fd < 0:
            why[0] = NOT_OPEN
            return r
        if n < 0 or s < 0 or d < 0 or d > room - n:
            why[0] = BAD_RANGE
            return r
        read = 0
        while read < n:
            got = pread(np.int32(fd), address + d + read, n - read, s + read)
            if got > 0:
                read += got
            elif got == 0:
                why[0] = SHORT
                why[2] = read
                return r
            else:
                # Nothing here may raise, as an allocation can: others may wait for this thread (native_desk.py).
                code = load_int32(errno_address())
                if code != EINTR:
                    why[0] = FAILED
                    why[1] = code
                    why[2] = read
                    return r
    return DONE


@inner
def num_runs_in(file, src, dst, nbytes, status):
    """Return how many runs every column holds: what follows is as unchecked as C."""
    if status.size < STATUS_SIZE:
        raise ValueError("a kernel's status is too short")
    num_runs = file.size
    for size in (src.size, dst.size, nbytes.size):
        if size < num_runs:
            num_runs = size
    return num_runs


@inner
def outside(lo, hi, num_runs, status):
    """Whether some of the runs [lo, hi) are in no column."""
    if lo >= 0 and lo <= hi and hi <= num_runs:
        return False
    words_at(status)[0] = BAD_RANGE
    return True


def gather_mapped(bases, sizes, file, src, dst, nbytes, lo, hi, out, shift, status):
    used, num_runs = address_of(status), num_runs_in(file, src, dst, nbytes, status)
    usage(used)
    blocks, waits = blocks_of(used), waits_of(used)
    if outside(lo, hi, num_runs, used):
        return max(lo, 0)
    stopped = mapped_runs(
        address_of(bases), address_of(sizes), min(bases.size, sizes.size), address_of(file), address_of(src),
        address_of(dst), address_of(nbytes), num_runs, lo, hi, address_of(out), out.size, shift, used,
    )  # fmt: skip
    return stopped if stopped >= 0 else done(blocks, waits, used)


def gather_pread(fds, file, src, dst, nbytes, lo, hi, out, shift, status):
    used, num_runs = address_of(status), num_runs_in(file, src, dst, nbytes, status)
    usage(used)
    blocks, waits = blocks_of(used), waits_of(used)
    if outside(lo, hi, num_runs, used):
        return max(lo, 0)
    stopped = pread_runs(
        address_of(fds), fds.size, address_of(file), address_of(src), address_of(dst), address_of(nbytes), lo, hi,
        address_of(out), out.size, shift, used,
    )  # fmt: skip
    return stopped if stopped >= 0 else done(blocks, waits, used)


# Pages looked at before all of a map are: to find that nothing of it is cached takes 10 ms a GiB.
LEAST_PROBES, MOST_PROBES, PAGES_A_PROBE = 8, 64, 256


load_uint8 = _load_of(types.uint8)


@inner
def _seems_cached(address, pages, resident):
    """Whether at least one of some pages, evenly spread, is in the page cache."""
    probes = min(MOST_PROBES, max(LEAST_PROBES, pages // PAGES_A_PROBE))
    for page in range(0, pages, max(1, pages // probes)):
        if mincore(address + page * PAGE_BYTES, 1, resident) == 0 and load_uint8(resident) & 1 == 1:
            return True
    return False


def populate_cached(address, nbytes, room):
    pages = (nbytes + PAGE_BYTES - 1) // PAGE_BYTES
    resident = address_of(room)
    if room.size == 0 or not _seems_cached(address, pages, resident):
        return 0
    populated = 0
    for begin in range(0, pages, room.size):
        part = min(room.size, pages - begin)
        if mincore(address + begin * PAGE_BYTES, part * PAGE_BYTES, resident) != 0:
            return populated
        first = 0
        while first < part:
            end = first
            while end < part and load_uint8(resident + end) & 1 == 1:
                end += 1
            nbytes = (end - first) * PAGE_BYTES
            if nbytes > 0:
                if madvise(address + (begin + first) * PAGE_BYTES, nbytes, np.int32(POPULATE_READ)) != 0:
                    return populated
                populated += nbytes
            first = end + 1
    return populated


def advise_files(fds, file, src, nbytes, lo, hi, status):
    used = address_of(status)
    if outside(lo, hi, num_runs_in(file, src, src, nbytes, status), used):
        return 0
    usage(used)
    blocks = blocks_of(used)
    for r in range(lo, hi):
        f = file[r]
        if nbytes[r] > 0 and f >= 0 and f < fds.size and fds[f] >= 0:
            posix_fadvise(np.int32(fds[f]), src[r], nbytes[r], np.int32(WILLNEED))
    usage(used)
    return blocks_of(used) - blocks


def advise_maps(bases, sizes, file, src, nbytes, lo, hi, status):
    used = address_of(status)
    if outside(lo, hi, num_runs_in(file, src, src, nbytes, status), used):
        return 0
    usage(used)
    blocks = blocks_of(used)
    for r in range(lo, hi):
        f = file[r]
        n = nbytes[r]
        if n > 0 and f >= 0 and f < bases.size and bases[f] >= 0 and src[r] >= 0 and src[r] <= sizes[f] - n:
            first = (bases[f] + src[r]) // PAGE_BYTES * PAGE_BYTES
            madvise(first, bases[f] + src[r] + n - first, np.int32(WILLNEED))
    usage(used)
    return blocks_of(used) - blocks


# --- columns: de-interleave and widen while gathering ------------------------------------------------


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
    return inner(copy)


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


@inner
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


@inner
def spread_runs(
    bases, sizes, num_files, file, src, dst, nbytes, num_runs, lo, hi, itemsize, fields, num_fields, room, shift, status
):  # fmt: skip
    """Take runs of records, which are in their columns, apart; DONE, or the run it stopped at."""
    base_of, size_of, why = words_at(bases), words_at(sizes), words_at(status)
    file_of, src_of, dst_of, nbytes_of = words_at(file), words_at(src), words_at(dst), words_at(nbytes)
    code, offset = words_at(fields), words_at(fields + 8 * num_fields)
    size, column = words_at(fields + 16 * num_fields), words_at(fields + 24 * num_fields)
    for r in range(lo, hi):
        f = file_of[r]
        n = nbytes_of[r]
        if n == 0:
            continue
        if f < 0 or f >= num_files:
            why[0] = BAD_RANGE
            return r
        base = base_of[f]
        if base < 0:
            why[0] = NOT_OPEN
            return r
        s = src_of[r]
        first = (dst_of[r] - shift) // itemsize
        count = n // itemsize
        if n < 0 or s < 0 or s > size_of[f] - n or first < 0 or first > room - count:
            why[0] = BAD_RANGE
            return r
        soon = r + PREFETCH_RUNS
        if soon < num_runs and file_of[soon] >= 0 and file_of[soon] < num_files:
            _fetch_ahead(base_of[file_of[soon]] + src_of[soon], nbytes_of[soon])
        for k in range(num_fields):
            _spread(code[k], base + s + offset[k], itemsize, count, column[k] + first * size[k], size[k])
    return DONE


def spread_mapped(bases, sizes, file, src, dst, nbytes, lo, hi, itemsize, fields, room, shift, status):
    used, num_runs = address_of(status), num_runs_in(file, src, dst, nbytes, status)
    usage(used)
    blocks, waits = blocks_of(used), waits_of(used)
    if outside(lo, hi, num_runs, used):
        return max(lo, 0)
    stopped = spread_runs(
        address_of(bases), address_of(sizes), min(bases.size, sizes.size), address_of(file), address_of(src),
        address_of(dst), address_of(nbytes), num_runs, lo, hi,
        itemsize, address_of(fields), fields.shape[1], room, shift, used,
    )  # fmt: skip
    return stopped if stopped >= 0 else done(blocks, waits, used)
