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
from numba import types
from numba.extending import intrinsic

from guideloom._kernels.native import (
    address_of,
    blocks_of,
    done,
    inner,
    mapped_runs,
    num_runs_in,
    outside,
    pread_runs,
    usage,
    waits_of,
    words_at,
)
from guideloom._kernels.status import (
    ACTIVE,
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
    USAGE,
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


@inner
def _now_ns(status):
    # Where the system writes what a thread used, it may write the time: no one looks at both.
    clock = words_at(status + 8 * USAGE)
    clock_gettime(np.int32(MONOTONIC), status + 8 * USAGE)
    return clock[0] * 1_000_000_000 + clock[1]


@inner
def _take_portion(desk, status):
    """Do some runs of the gather that lies on the desk; False when none is left, or one cannot be done."""
    # Where one cannot be done all are done once more: the rest would be in vain.
    if load(desk + 8 * FAULTS) != 0:
        return False
    given = words_at(desk)
    end = given[END]
    lo = add(desk + 8 * NEXT, given[STEP])
    if lo >= end:
        return False
    hi = min(lo + given[STEP], end)
    if given[IS_MAPPED] != 0:
        stopped = mapped_runs(
            given[HANDLES], given[SIZES], given[NUM_FILES], given[FILE], given[SRC], given[DST], given[NBYTES],
            given[NUM_RUNS], lo, hi, given[OUT], given[ROOM], given[SHIFT], status,
        )  # fmt: skip
    else:
        stopped = pread_runs(
            given[HANDLES], given[NUM_FILES], given[FILE], given[SRC], given[DST], given[NBYTES],
            lo, hi, given[OUT], given[ROOM], given[SHIFT], status,
        )  # fmt: skip
    if stopped >= 0:
        add(desk + 8 * FAULTS, 1)
        return False
    return True


@inner
def _help(desk, mine, status):
    """Take part in the gather that lies on the desk, if there still is one, until ``mine`` is set.

    Returns how many portions were done; -1 when there was no gather.
    """
    add(desk + 8 * ACTIVE, 1)
    portions = -1
    if load(desk + 8 * OPEN) != 0:
        portions = 0
        usage(status)
        blocks, waits = blocks_of(status), waits_of(status)
        while _take_portion(desk, status):
            portions += 1
            if load(mine) != 0:
                break
        if done(blocks, waits, status) == WAITED:
            add(desk + 8 * HELP_BLOCKS, words_at(status)[BLOCKS])
            add(desk + 8 * HELP_WAITS, words_at(status)[WAITS])
    add(desk + 8 * ACTIVE, -1)
    return portions


@inner
def _take_desk(desk, nbytes, lo, hi, least):
    """Whether the desk is ours now: it is free, and these runs are worth sharing."""
    total = 0
    nbytes_of, given = words_at(nbytes), words_at(desk)
    for r in range(lo, hi):
        total += nbytes_of[r]
    if total < least or swap(desk + 8 * BUSY, 1) != 0:
        return False
    if given[REST] > 0:
        given[REST] -= 1
        swap(desk + 8 * BUSY, 0)
        return False
    return True


@inner
def _share(desk, blocks, waits, status):
    """Do what was laid out, together with whoever comes; as a gather, or 0 when a run cannot be done."""
    swap(desk + 8 * OPEN, 1)
    while _take_portion(desk, status):
        pass
    swap(desk + 8 * OPEN, 0)
    turns = 0
    while load(desk + 8 * ACTIVE) != 0:
        # Who yields stays ahead of a helper of lower priority on the same processor, and would do so for ever.
        if turns < SLOW_TURNS:
            sched_yield()
        else:
            usleep(np.uint32(SLOW_SLEEP_US))
        turns += 1
    given, found = words_at(desk), words_at(status)
    if turns > SLOW_TURNS:
        given[REST] = REST_GATHERS
    faults, help_blocks, help_waits = given[FAULTS], given[HELP_BLOCKS], given[HELP_WAITS]
    swap(desk + 8 * BUSY, 0)
    if faults > 0:
        return 0
    done(blocks, waits, status)
    found[BLOCKS] += help_blocks
    found[WAITS] += help_waits
    return WAITED if found[BLOCKS] != 0 or found[WAITS] != 0 else DONE


def gather_helped(desk, is_mapped, handles, sizes, file, src, dst, nbytes, lo, hi, out, shift, status):
    used, num_runs = address_of(status), num_runs_in(file, src, dst, nbytes, status)
    usage(used)
    blocks, waits = blocks_of(used), waits_of(used)
    if outside(lo, hi, num_runs, used):
        return max(lo, 0)
    num_files = min(handles.size, sizes.size)
    least = LEAST_MAPPED_BYTES if is_mapped else LEAST_READ_BYTES
    if desk.size >= DESK_SIZE and _take_desk(address_of(desk), address_of(nbytes), lo, hi, least):
        desk[HANDLES], desk[SIZES], desk[NUM_FILES] = address_of(handles), address_of(sizes), num_files
        desk[FILE], desk[SRC] = address_of(file), address_of(src)
        desk[DST], desk[NBYTES] = address_of(dst), address_of(nbytes)
        desk[NUM_RUNS], desk[END], desk[STEP] = num_runs, hi, max(1, (hi - lo + PORTIONS - 1) // PORTIONS)
        desk[IS_MAPPED], desk[OUT], desk[ROOM], desk[SHIFT] = is_mapped, address_of(out), out.size, shift
        desk[FAULTS] = desk[HELP_BLOCKS] = desk[HELP_WAITS] = 0
        swap(address_of(desk) + 8 * NEXT, lo)
        result = _share(address_of(desk), blocks, waits, used)
        if result < 0:
            return result
        # Once more, in order: which run cannot be done, and why, must not depend on who came to it first.
    if is_mapped:
        stopped = mapped_runs(
            address_of(handles), address_of(sizes), num_files, address_of(file), address_of(src), address_of(dst),
            address_of(nbytes), num_runs, lo, hi, address_of(out), out.size, shift, used,
        )  # fmt: skip
    else:
        stopped = pread_runs(
            address_of(handles), num_files, address_of(file), address_of(src), address_of(dst), address_of(nbytes),
            lo, hi, address_of(out), out.size, shift, used,
        )  # fmt: skip
    return stopped if stopped >= 0 else done(blocks, waits, used)


def hand_over(theirs, mine, most, longest_ns, desk, status):
    if status.size < STATUS_SIZE:
        raise ValueError("a kernel's status is too short")
    used, signal, place = address_of(status), address_of(mine), address_of(desk)
    helps = desk.size >= DESK_SIZE
    helped = 0
    if helps:
        add(place + 8 * WATCHERS, 1)
    theirs[0] = 1
    began_ns = _now_ns(used)
    for _ in range(most):
        portions = -1
        if helps and load(place + 8 * OPEN) != 0:
            portions = _help(place, signal, used)
            helped += portions >= 0
        if portions <= 0:
            sched_yield()
        if load(signal) != 0 or _now_ns(used) - began_ns >= longest_ns:
            break
    if helps:
        add(place + 8 * WATCHERS, -1)
    return helped
