"""Sources of the kernels by which threads that wait help with a gather; imported only to be compiled.

A gather is laid out on a desk (``_kernels/desk.py``) and opened; every thread that is there takes some runs at a time,
by adding to ``NEXT``, until none is left. A helper counts itself in ``ACTIVE`` before it looks whether the desk is
open, and who opened it closes it before it waits for ``ACTIVE`` to be 0: so none still works when that wait ends, and
none begins after it. Every access to these words is sequentially consistent.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, attr-defined, call-overload, call-arg, var-annotated"

from __future__ import annotations

import time

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.extending import intrinsic

from guideloom._kernels.native import are_runs, done, mapped_runs, pointer_to, pread_runs, usage
from guideloom._kernels.status import (
    ACTIVE,
    BAD_RANGE,
    BLOCKS,
    BUSY,
    DESK_SIZE,
    DONE,
    DST,
    END,
    FAULTS,
    FILE,
    HANDLES,
    HELP_BLOCKS,
    HELP_WAITS,
    IS_MAPPED,
    NBYTES,
    NEXT,
    NUM_FILES,
    NUM_RUNS,
    OPEN,
    OUT,
    REST,
    ROOM,
    SHIFT,
    SIZES,
    SRC,
    STATUS_SIZE,
    STEP,
    WAITED,
    WAITS,
    WATCHERS,
)

sched_yield = types.ExternalFunction("sched_yield", types.int32())
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
MONOTONIC = time.CLOCK_MONOTONIC

LEAST_MAPPED_BYTES, LEAST_READ_BYTES = 1 << 17, 1 << 15
"""A gather of fewer bytes is done before another thread has begun."""
PORTIONS = 4
"""Portions that runs are taken in: few, for the processor foresees what follows within one."""
SLOW_TURNS, SLOW_SLEEP_US, REST_GATHERS = 1000, 50, 256
"""A helper that is waited for so long lost its processor to other work: so many gathers are then done alone."""

word = types.int64
words = pointer_to(word)


def _atomic(operation):
    @intrinsic
    def change(typing_context, address, value):
        """Change a word; what was in it."""

        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
            return builder.atomic_rmw(operation, pointer, arguments[1], "seq_cst")

        return word(word, word), generate

    return change


add, swap = _atomic("add"), _atomic("xchg")


@intrinsic
def load(typing_context, address):
    """Return a word."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return word(word), generate


@njit(nogil=True)
def _now_ns(clock):
    clock_gettime(np.int32(MONOTONIC), clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@njit(nogil=True)
def _gather(is_mapped, handles, sizes, file, src, dst, nbytes, lo, hi, address, room, shift, status):
    if is_mapped:
        return mapped_runs(handles, sizes, file, src, dst, nbytes, lo, hi, address, room, shift, status)
    return pread_runs(handles, file, src, dst, nbytes, lo, hi, address, room, shift, status)


@njit(nogil=True)
def _take_portion(desk, status):
    """Do some runs of the gather that lies on the desk; False when none is left, or one cannot be done."""
    address = desk.ctypes.data
    # Where one cannot be done all are done once more: the rest would be in vain.
    if load(address + 8 * FAULTS) != 0:
        return False
    end, step, room, shift = desk[END], desk[STEP], desk[ROOM], desk[SHIFT]
    lo = add(address + 8 * NEXT, step)
    if lo >= end:
        return False
    hi = min(lo + step, end)
    handles, sizes = carray(words(desk[HANDLES]), (desk[NUM_FILES],)), carray(words(desk[SIZES]), (desk[NUM_FILES],))
    file, src = carray(words(desk[FILE]), (desk[NUM_RUNS],)), carray(words(desk[SRC]), (desk[NUM_RUNS],))
    dst, nbytes = carray(words(desk[DST]), (desk[NUM_RUNS],)), carray(words(desk[NBYTES]), (desk[NUM_RUNS],))
    stopped = _gather(desk[IS_MAPPED], handles, sizes, file, src, dst, nbytes, lo, hi, desk[OUT], room, shift, status)
    if stopped >= 0:
        add(address + 8 * FAULTS, 1)
        return False
    return True


@njit(nogil=True)
def _help(desk, mine, status):
    """Take part in the gather that lies on the desk, if there still is one, until ``mine`` is set.

    Returns whether there was one, and how many portions were done.
    """
    address = desk.ctypes.data
    add(address + 8 * ACTIVE, 1)
    is_open = load(address + 8 * OPEN) != 0
    portions = 0
    if is_open:
        blocks, waits = usage(status)
        while _take_portion(desk, status):
            portions += 1
            if mine[0] != 0:
                break
        if done(blocks, waits, status) == WAITED:
            add(address + 8 * HELP_BLOCKS, status[BLOCKS])
            add(address + 8 * HELP_WAITS, status[WAITS])
    add(address + 8 * ACTIVE, -1)
    return is_open, portions


@njit(nogil=True)
def _take_desk(desk, nbytes, lo, hi, least):
    """Whether the desk is ours now: it is free, and these runs are worth sharing."""
    total = 0
    for r in range(lo, hi):
        total += nbytes[r]
    address = desk.ctypes.data
    if desk.size < DESK_SIZE or total < least or swap(address + 8 * BUSY, 1) != 0:
        return False
    if desk[REST] > 0:
        desk[REST] -= 1
        swap(address + 8 * BUSY, 0)
        return False
    return True


@njit(nogil=True)
def _lay_out(desk, handles, sizes, file, src, dst, nbytes, lo, hi, room, shift):
    desk[HANDLES] = handles.ctypes.data
    desk[SIZES] = sizes.ctypes.data
    desk[NUM_FILES] = min(handles.size, sizes.size)
    desk[FILE] = file.ctypes.data
    desk[SRC] = src.ctypes.data
    desk[DST] = dst.ctypes.data
    desk[NBYTES] = nbytes.ctypes.data
    desk[NUM_RUNS] = min(min(file.size, src.size), min(dst.size, nbytes.size))
    desk[END] = hi
    desk[STEP] = max(1, (hi - lo + PORTIONS - 1) // PORTIONS)
    desk[ROOM] = room
    desk[SHIFT] = shift
    desk[FAULTS] = 0
    desk[HELP_BLOCKS] = 0
    desk[HELP_WAITS] = 0
    swap(desk.ctypes.data + 8 * NEXT, lo)


@njit(nogil=True)
def _share(desk, blocks, waits, status):
    """Do what was laid out, together with whoever comes; as a gather, or 0 when a run cannot be done."""
    address = desk.ctypes.data
    swap(address + 8 * OPEN, 1)
    while _take_portion(desk, status):
        pass
    swap(address + 8 * OPEN, 0)
    turns = 0
    while load(address + 8 * ACTIVE) != 0:
        # Who yields stays ahead of a helper of lower priority on the same processor, and would do so for ever.
        if turns < SLOW_TURNS:
            sched_yield()
        else:
            usleep(np.uint32(SLOW_SLEEP_US))
        turns += 1
    if turns > SLOW_TURNS:
        desk[REST] = REST_GATHERS
    faults, help_blocks, help_waits = desk[FAULTS], desk[HELP_BLOCKS], desk[HELP_WAITS]
    swap(address + 8 * BUSY, 0)
    if faults > 0:
        return 0
    done(blocks, waits, status)
    status[BLOCKS] += help_blocks
    status[WAITS] += help_waits
    return WAITED if status[BLOCKS] != 0 or status[WAITS] != 0 else DONE


def gather_helped(desk, is_mapped, handles, sizes, file, src, dst, nbytes, lo, hi, out, shift, status):
    blocks, waits = usage(status)
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    if _take_desk(desk, nbytes, lo, hi, LEAST_MAPPED_BYTES if is_mapped else LEAST_READ_BYTES):
        _lay_out(desk, handles, sizes, file, src, dst, nbytes, lo, hi, out.size, shift)
        desk[IS_MAPPED] = is_mapped
        desk[OUT] = out.ctypes.data
        result = _share(desk, blocks, waits, status)
        if result < 0:
            return result
        # Once more, in order: which run cannot be done, and why, must not depend on who came to it first.
    stopped = _gather(
        is_mapped, handles, sizes, file, src, dst, nbytes, lo, hi, out.ctypes.data, out.size, shift, status
    )
    return stopped if stopped >= 0 else done(blocks, waits, status)


def hand_over(theirs, mine, most, longest_ns, desk):
    clock = np.zeros(2, np.int64)
    status = np.zeros(STATUS_SIZE, np.int64)
    address = desk.ctypes.data
    helps = desk.size >= DESK_SIZE
    helped = 0
    if helps:
        add(address + 8 * WATCHERS, 1)
    theirs[0] = 1
    began_ns = _now_ns(clock)
    for _ in range(most):
        portions = 0
        if helps and load(address + 8 * OPEN) != 0:
            is_open, portions = _help(desk, mine, status)
            helped += is_open
        if portions == 0:
            # The call keeps the compiler from reading once for all turns.
            sched_yield()
        if mine[0] != 0 or _now_ns(clock) - began_ns >= longest_ns:
            break
    if helps:
        add(address + 8 * WATCHERS, -1)
    return helped
