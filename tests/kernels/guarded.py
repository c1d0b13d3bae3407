"""Random plans for the kernels that use raw addresses; every array has a page without access at one end.

Run as a process of its own by ``test_guards.py``: a byte too far is a SIGSEGV, which ends it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np

from guideloom._kernels.columns import copy_code, spread_mapped
from guideloom._kernels.gather import advise_files, advise_maps, gather_mapped, gather_pread, populate_cached
from guideloom._kernels.spans import fill_spans, find_blocks, find_spans
from guideloom._kernels.status import BAD_RANGE, DONE, FAILED, NOT_OPEN, SHORT, STATUS_SIZE
from guideloom._kernels.windows import place_payloads

PAGE = mmap.PAGESIZE
FILL = 0xEE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
EDGES = [-(2**63), -(2**63) + 1, -(2**62), -(2**32), -2, -1, 0, 1, 2**31, 2**32, 2**62, 2**63 - 2, 2**63 - 1]
NO_ACCESS, ONLY_READ = 0, 1

guards: list[mmap.mmap] = []


def guarded(values: Any, at_end: bool, readable_only: bool = False) -> np.ndarray:
    """Return a copy that begins right behind a page without access, or (to its alignment) ends right before one."""
    values = np.ascontiguousarray(values)
    pages = max(1, -(-values.nbytes // PAGE))
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    guards.append(area)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in (0, pages + 1):
        assert LIBC.mprotect(address + page * PAGE, PAGE, NO_ACCESS) == 0
    offset = PAGE * (pages + 1) - values.nbytes if at_end else PAGE
    found = np.frombuffer(area, values.dtype, values.size, offset).reshape(values.shape)
    found[...] = values
    if readable_only:
        assert LIBC.mprotect(address + PAGE, pages * PAGE, ONLY_READ) == 0
    return found


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


class Plan:
    """Runs over files, most of them valid; or, now and then, anything."""

    def __init__(self, rng: np.random.Generator, sizes: list[int], room: int, step: int = 1) -> None:
        num_runs = int(rng.integers(0, 12))
        wild = rng.random() < 0.6
        rows = []
        for _ in range(num_runs):
            file = int(rng.integers(len(sizes)))
            nbytes = int(rng.integers(0, min(sizes[file], room) // step + 1)) * step
            rest = [(sizes[file] - nbytes) // step, (room - nbytes) // step]
            src, dst = (most * step if rng.random() < 0.5 else int(rng.integers(0, most + 1)) * step for most in rest)
            row = [file, src, dst, nbytes]
            if wild and rng.random() < 0.3:
                which = int(rng.integers(4))
                most = [len(sizes), sizes[file], room, sizes[file]][which]
                near = [row[which] - 1, row[which] + 1, row[which] + step, most, most + 1] * 2
                row[which] = int(rng.choice(np.array([*EDGES, *near], np.int64)))
            rows.append(row)
        at_end = bool(rng.random() < 0.7)
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        self.file, self.src, self.dst, self.nbytes = (guarded(column, at_end) for column in columns)
        self.lo = int(rng.integers(0, num_runs + 1))
        self.hi = int(rng.integers(self.lo, num_runs + 1))
        self.shift = int(rng.choice([0, 0, 0, step, -step]))
        self.status = guarded(np.zeros(STATUS_SIZE, np.int64), at_end)
        if rng.random() < 0.1:
            self.lo, self.hi = (
                int(number) for number in rng.choice(np.array([*EDGES, 0, num_runs, num_runs + 1], np.int64), 2)
            )

    @property
    def is_inside(self) -> bool:
        """Whether its runs are in its columns."""
        return 0 <= self.lo <= self.hi <= self.file.size

    def runs(self) -> list[tuple[int, int, int, int, int]]:
        columns = (column.tolist() for column in (self.file, self.src, self.dst, self.nbytes))
        return [
            (run, *row) for run, row in enumerate(zip(*columns, strict=True)) if self.lo <= run < self.hi and row[3]
        ]


def expected(
    plan: Plan, handles: np.ndarray, contents: list[bytes], out: np.ndarray, reads: bool
) -> tuple[int, int, np.ndarray]:
    """Status, run and buffer, in plain Python."""
    out = out.copy()
    if not plan.is_inside:
        return BAD_RANGE, -1, out
    for run, file, src, dst, nbytes in plan.runs():
        at = wrapped(dst - plan.shift)
        if not 0 <= file < len(contents):
            return BAD_RANGE, run, out
        if handles[file] < 0:
            return NOT_OPEN, run, out
        if nbytes < 0 or src < 0 or at < 0 or at + nbytes > out.size:
            return BAD_RANGE, run, out
        data = contents[file][src : src + nbytes]
        if len(data) < nbytes and not reads:
            return BAD_RANGE, run, out
        out[at : at + len(data)] = np.frombuffer(data, np.uint8)
        if len(data) < nbytes:
            return (FAILED if src + nbytes >= 2**63 else SHORT), run, out
    return 0, DONE, out


def check(plan: Plan, stopped: int, wanted: tuple[int, int, np.ndarray], out: np.ndarray) -> None:
    status, run, buffer = wanted
    assert int(plan.status[0]) == status, (plan.status[0], status)
    if status == 0:
        assert stopped < 0
    elif run >= 0:
        assert stopped == run, (stopped, run)
    else:
        assert stopped >= 0
    assert np.array_equal(out, buffer)


def maps(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    contents = [rng.bytes(int(size)) for size in rng.choice([1, 7, 8, 100, PAGE - 1, PAGE, 3 * PAGE + 5], 4)]
    areas = [guarded(np.frombuffer(data, np.uint8), bool(rng.random() < 0.7), readable_only=True) for data in contents]
    bases = np.array([address_of(area) for area in areas], np.int64)
    bases[rng.random(4) < 0.1] = -1
    return guarded(bases, True), guarded(np.array(list(map(len, contents)), np.int64), True), contents


def mapped(rng: np.random.Generator) -> None:
    bases, sizes, contents = maps(rng)
    room = int(rng.choice([0, 1, 64, PAGE, 4 * PAGE + 3]))
    plan = Plan(rng, sizes.tolist(), room)
    out = guarded(np.full(room, FILL, np.uint8), bool(rng.random() < 0.5))
    wanted = expected(plan, bases, contents, out, reads=False)
    stopped = gather_mapped(
        bases, sizes, plan.file, plan.src, plan.dst, plan.nbytes, plan.lo, plan.hi, out, plan.shift, plan.status
    )
    check(plan, stopped, wanted, out)
    assert advise_maps(bases, sizes, plan.file, plan.src, plan.nbytes, plan.lo, plan.hi, plan.status) >= 0


def read(rng: np.random.Generator) -> None:
    contents = [rng.bytes(int(size)) for size in rng.choice([1, 7, 100, 3 * PAGE + 5], 4)]
    files = []
    for data in contents:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        file.write(data)
        files.append(file)
    descriptors = np.array([file.fileno() for file in files], np.int64)
    descriptors[rng.random(4) < 0.1] = -1
    fds = guarded(descriptors, True)
    room = int(rng.choice([0, 1, 64, PAGE, 4 * PAGE + 3]))
    plan = Plan(rng, [len(data) for data in contents], room)
    out = guarded(np.full(room, FILL, np.uint8), bool(rng.random() < 0.5))
    wanted = expected(plan, fds, contents, out, reads=True)
    stopped = gather_pread(
        fds, plan.file, plan.src, plan.dst, plan.nbytes, plan.lo, plan.hi, out, plan.shift, plan.status
    )
    check(plan, stopped, wanted, out)
    assert advise_files(fds, plan.file, plan.src, plan.nbytes, plan.lo, plan.hi, plan.status) >= 0
    for file in files:
        file.close()


PAIRS = [("<u1", "<u1"), ("<u2", "<u2"), ("<f4", "<f4"), ("<i8", "<i8"), ("V3", "V3"), ("<u1", "<i4"), ("<u1", "<i8")]
PAIRS += [("<u2", "<i4"), ("<u2", "<i8"), ("<u4", "<i8"), ("<i4", "<i8")]


def spread(rng: np.random.Generator) -> None:
    bases, sizes, contents = maps(rng)
    pairs = [PAIRS[int(which)] for which in rng.integers(0, len(PAIRS), int(rng.integers(1, 4)))]
    record = np.dtype([(str(k), source) for k, (source, _) in enumerate(pairs)])
    room = int(rng.choice([0, 1, 64, 1000]))
    plan = Plan(rng, sizes.tolist(), room * record.itemsize, record.itemsize)
    if plan.runs() and any(nbytes % record.itemsize for *_, nbytes in plan.runs()):
        return  # plans are made of records; the kernel rounds down
    columns = [guarded(np.full(room, FILL, "u1").repeat(np.dtype(to).itemsize), True) for _, to in pairs]
    rows = np.full(room * record.itemsize, FILL, np.uint8)
    touched = np.zeros(room * record.itemsize, np.uint8)
    status, run, rows = expected(plan, bases, contents, rows, reads=False)
    _, _, touched = expected(plan, bases, [b"\1" * len(data) for data in contents], touched, reads=False)
    if any(wrapped(dst - plan.shift) % record.itemsize for _, _, _, dst, _ in plan.runs()):
        return
    rules = np.array(
        [
            [copy_code(np.dtype(source), np.dtype(to)) for source, to in pairs],
            [record.fields[str(k)][1] for k in range(len(pairs))],  # type: ignore[index]
            [np.dtype(to).itemsize for _, to in pairs],
            [address_of(column) for column in columns],
        ],
        np.int64,
    )
    fields = guarded(rules, True)
    stopped = spread_mapped(
        bases, sizes, plan.file, plan.src, plan.dst, plan.nbytes, plan.lo, plan.hi, record.itemsize,
        fields, room, plan.shift, plan.status,
    )  # fmt: skip
    check(plan, stopped, (status, run, rows), rows)
    there = touched.reshape(room, -1).all(axis=1) if room else np.zeros(0, bool)
    for k, (source, to) in enumerate(pairs):
        values = np.ascontiguousarray(rows.view(record)[str(k)] if room else np.zeros(0, source)).astype(to)
        found = columns[k].view(to)
        assert np.array_equal(found[there].view("u1"), values[there].view("u1"))
        assert (found[~there].view("u1") == FILL).all()


def populate(rng: np.random.Generator) -> None:
    size = int(rng.choice([1, PAGE - 1, PAGE, 5 * PAGE, 5 * PAGE + 9]))
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(rng.bytes(size))
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as area:
            view = np.frombuffer(area, np.uint8)
            found = populate_cached(address_of(view), size)
            assert 0 <= found <= -(-size // PAGE) * PAGE
            assert populate_cached(address_of(view) + 1, size) == 0
            del view
    assert populate_cached(0, PAGE) == 0
    assert populate_cached(int(rng.choice(np.array(EDGES, np.int64))) // PAGE * PAGE, 0) == 0
    inside = address_of(guarded(np.zeros(PAGE, np.uint8), False))
    assert 0 <= populate_cached(inside - PAGE, 3 * PAGE) <= 3 * PAGE


def tables(rng: np.random.Generator) -> None:
    """Samples, span tables and offsets as a stranger may have written them; the counts are those of a record."""
    num, stride = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    rises = rng.integers(1, 5, num)
    elements, payload = int(rises.sum()), int(rng.integers(0, 1000))
    table = np.stack(
        [np.concatenate([[0], np.cumsum(rises)]), np.sort(rng.integers(0, payload + 1, num + 1))], axis=1
    ).astype(np.int64)
    for _ in range(int(rng.integers(0, 3))):
        table[rng.integers(num + 1), rng.integers(2)] = rng.choice(np.array([*EDGES, elements, payload + 1], np.int64))
    first, stop = np.sort(rng.choice(elements + 1, 2, replace=False))

    def put(*values: int) -> np.ndarray:
        return guarded(np.array(values, np.int64), True)

    zero, begin, count = put(0), put(first), put(stop - first)
    sample = guarded(np.ascontiguousarray(table[:-1:stride, 0]), True)
    row, size = put(0), put(0)
    assert find_blocks(zero, begin, count, put(0, sample.size), sample, put(1), put(stride), put(num), row, size) == -1
    assert 0 <= row[0] < row[0] + size[0] <= num + 1
    block = guarded(table[row[0] : row[0] + size[0]], True)
    span_row, span_count, src, nbytes = put(0), put(0), put(0), put(0)
    found = find_spans(
        block, zero, put(size[0]), zero, begin, count, put(payload), span_row, span_count, src, nbytes, put(0, 0)
    )
    if found >= 0:
        assert 0 <= src[0] <= src[0] + nbytes[0] <= payload
        index = guarded(np.full((1, count[0]), -1, np.int32), True)
        spans = int(span_count[0])
        fill_spans(
            block, span_row, span_count, begin, count, zero, put(0, 1), index, put(0, 0),
            put(*[0] * (spans + 1)), put(*[0] * spans),
        )  # fmt: skip
        assert index.min() >= 0 and index.max() < spans
    for offsets in (table, np.sort(table.reshape(-1))):
        documents = guarded(np.ascontiguousarray(offsets).reshape(-1), True)
        row = put(*range(0, documents.size, 2))
        out = [put(*[0] * row.size) for _ in range(2)]
        bounds = guarded(np.zeros((2, row.size), np.int64), True)
        dst = put(*[0] * (row.size + 1))
        alignment = int(rng.choice([1, 8]))
        bad = place_payloads(documents, row, row * 0, put(payload), alignment, *out, dst, bounds)
        assert -1 <= bad < row.size
        if bad < 0:
            assert out[0].min() >= 0 and (out[0] + out[1]).max() <= payload and bounds.max() <= dst[-1]


if __name__ == "__main__":
    faulthandler.enable()
    os.environ["TMPDIR"] = sys.argv[3]
    for seed in range(int(sys.argv[2])):
        globals()[sys.argv[1]](np.random.default_rng(seed))
        guards.clear()
    print("unharmed")
