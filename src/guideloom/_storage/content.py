"""Checks the bytes of data files: checksums of blocks, offsets, span tables. Streaming, parallel, in bounded memory.

Hashing and reading release the GIL, so threads suffice. Memory: one block of 1 MiB a thread, and what is to be done.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from guideloom._base.checks import as_int
from guideloom._base.errors import ArgumentError
from guideloom._storage.findings import Finding
from guideloom._storage.local import read_up_to
from guideloom._storage.names import BLOCK_BYTES
from guideloom._storage.published import SPAN_NUMBER

PIECE_BLOCKS = 8
"""Blocks that one task reads: enough to make the open and the queue cheap."""

RESTORE = "restore the file from a copy, or drop the part with: guideloom repair"

ReadAt: TypeAlias = Callable[[int, int], bytes]
Fault: TypeAlias = tuple[int, int, str, str]
"""Begin and end in the file, expected, found."""
Structure: TypeAlias = Callable[[memoryview, int, ReadAt], list[Fault]]
"""Checks one block: its bytes, its offset in the file, and a way to read elsewhere in the file."""


OPENABLE = "a file that can be opened"
"""What a finding expected where even opening failed, which says nothing about the bytes."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What to check of one file.

    Parameters
    ----------
    path : str
    shard, part : int or None
    size : int
        Bytes that are there and to be checked.
    sums : uint64[ceil(size / 1 MiB)] or None
        Expected XXH3-64 of each block of 1 MiB; None where there are none.
    structure : callable or None
    step : int
        Bytes of a block; 1 MiB where there are sums.
    what : str
        Of a finding of ``structure``.
    """

    path: str
    shard: int | None
    part: int | None
    size: int
    sums: npt.NDArray[np.uint64] | None = None
    structure: Structure | None = None
    step: int = BLOCK_BYTES
    what: str = "offsets"


def num_jobs(jobs: int | None) -> int:
    """Threads to use: those asked for, or as many as there are cores for this process, at most 16.

    Raises
    ------
    ArgumentError
        When ``jobs`` is no integer of at least 1.
    """
    if jobs is not None:
        number = as_int(jobs, "jobs")
        if number < 1:
            raise ArgumentError(f"jobs must be at least 1, got {number}")
        return number
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, cores)


def run_checks(
    checks: Iterable[FileCheck], jobs: int, checked: Callable[[int], None] | None = None
) -> Iterator[Finding]:
    """Carry checks out, and give what they find in their order.

    Parameters
    ----------
    checks : iterable of FileCheck
        Taken as needed: not all are ever in memory.
    jobs : int
        Threads.
    checked : callable, optional
        Called in this thread with the bytes that were read, now and then.
    """
    return _joined(_found(checks, jobs, checked))


def _found(checks: Iterable[FileCheck], jobs: int, checked: Callable[[int], None] | None) -> Iterator[Finding]:
    pending: deque[tuple[int, Future[list[Finding]]]] = deque()

    def take() -> list[Finding]:
        size, future = pending.popleft()
        found = future.result()
        if checked is not None:
            checked(size)
        return found

    with ThreadPoolExecutor(jobs, thread_name_prefix="guideloom-check") as pool:
        try:
            for check in checks:
                for begin in range(0, check.size, check.step * PIECE_BLOCKS):
                    end = min(check.size, begin + check.step * PIECE_BLOCKS)
                    pending.append((end - begin, pool.submit(_check_piece, check, begin, end)))
                    if len(pending) >= 4 * jobs:
                        yield from take()
            while pending:
                yield from take()
        finally:
            for _, future in pending:
                future.cancel()


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Join findings of adjacent blocks: a torn end is one finding, not thousands."""
    last: Finding | None = None
    for finding in findings:
        if (
            last is not None
            and (last.path, last.what, last.end) == (finding.path, finding.what, finding.begin)
            and finding.what in ("checksum", "unreadable")
        ):
            last = replace(last, end=finding.end)
        else:
            if last is not None:
                yield last
            last = finding
    if last is not None:
        yield last


def _check_piece(check: FileCheck, begin: int, end: int) -> list[Finding]:
    findings: list[Finding] = []

    def found(what: str, low: int, high: int, expected: str, seen: str) -> None:
        findings.append(Finding("error", what, check.path, check.shard, check.part, low, high, expected, seen, RESTORE))

    try:
        descriptor = os.open(check.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        found("unreadable", begin, end, OPENABLE, str(error.strerror))
        return [replace(finding, remedy="see to it that it can be opened, and check again") for finding in findings]
    try:

        def read_at(offset: int, size: int) -> bytes:
            return read_up_to(descriptor, offset, size)

        for low in range(begin, end, check.step):
            high = min(end, low + check.step)
            try:
                data = read_at(low, high - low)
            except OSError as error:
                found("unreadable", low, high, "bytes that can be read", str(error.strerror))
                continue
            if len(data) != high - low:
                found("size", low + len(data), high, f"{check.size} bytes", "the end of the file: it shrank meanwhile")
                break
            if check.sums is not None:
                expected, seen = int(check.sums[low // check.step]), xxhash.xxh3_64_intdigest(data)
                if expected != seen:
                    found("checksum", low, high, f"XXH3-64 {expected:016x}", f"{seen:016x}")
                    continue
            if check.structure is not None:
                try:
                    faults = check.structure(memoryview(data), low, read_at)
                except OSError as error:
                    found("unreadable", low, high, "bytes that can be read", str(error.strerror))
                    continue
                for fault in faults:
                    found(check.what, *fault)
    finally:
        os.close(descriptor)
    return findings


def offsets_structure(size: int, payload_bytes: int) -> Structure:
    """Check of an offsets file: 0 first, never falling, the payload file's size last.

    Parameters
    ----------
    size : int
        Bytes of the offsets file.
    payload_bytes : int
        Bytes of the payload file.
    """

    def check(data: memoryview, begin: int, read_at: ReadAt) -> list[Fault]:
        values = np.frombuffer(data, "<i8")
        faults: list[Fault] = []
        if begin == 0:
            if values[0] != 0:
                faults.append((0, 8, "first offset 0", str(values[0])))
        else:
            values = np.concatenate((np.frombuffer(read_at(begin - 8, 8), "<i8"), values))
            begin -= 8
        falls = np.flatnonzero(values[1:] < values[:-1])
        if falls.size:
            at = int(falls[0])
            faults.append(
                (
                    begin + 8 * at,
                    begin + 8 * at + 16,
                    "offsets that never fall",
                    f"{values[at]} before {values[at + 1]}{_more(falls.size)}",
                )
            )
        if begin + values.nbytes == size and values[-1] != payload_bytes:
            faults.append((size - 8, size, f"last offset {payload_bytes}, the payload file's size", str(values[-1])))
        return faults

    return check


def spans_structure(num_spans: int, stride: int, count: int, payload_bytes: int) -> Structure:
    """Check of a span table: rows rise from (0, 0) to the sentinel, and the sample repeats every stride-th row.

    Parameters
    ----------
    num_spans, stride, count : int
        As in the commit record.
    payload_bytes : int
        Bytes of the payload file.
    """
    table_bytes = (num_spans + 1) * 16

    def check(data: memoryview, begin: int, read_at: ReadAt) -> list[Fault]:
        stop = min(table_bytes, begin + data.nbytes)
        if begin >= stop:
            return []
        rows = np.frombuffer(data[: stop - begin], "<i8").reshape(-1, 2)
        faults: list[Fault] = []
        first = begin // 16
        if begin == 0:
            if rows[0, 0] != 0 or rows[0, 1] != 0:
                faults.append((0, 16, "first row (0, 0)", f"({rows[0, 0]}, {rows[0, 1]})"))
        else:
            rows = np.concatenate((np.frombuffer(read_at(begin - 16, 16), "<i8").reshape(1, 2), rows))
            first -= 1
        wrong = np.flatnonzero((rows[1:, 0] <= rows[:-1, 0]) | (rows[1:, 1] < rows[:-1, 1]))
        if wrong.size:
            at = int(wrong[0])
            faults.append(
                (
                    16 * (first + at),
                    16 * (first + at + 2),
                    "first elements that rise and payload offsets that never fall",
                    f"{tuple(rows[at].tolist())} before {tuple(rows[at + 1].tolist())}{_more(wrong.size)}",
                )
            )
        if stop == table_bytes and (rows[-1, 0] != count or rows[-1, 1] != payload_bytes):
            faults.append(
                (
                    table_bytes - 16,
                    table_bytes,
                    f"last row ({count}, {payload_bytes}): elements, and the payload file's size",
                    str(tuple(rows[-1].tolist())),
                )
            )
        low, high = -(-first // stride), -(-min(first + len(rows), num_spans) // stride)
        if low < high:
            place = table_bytes + 8 * low
            sample = np.frombuffer(read_at(place, 8 * (high - low)), "<i8")
            differs = np.flatnonzero(sample != rows[low * stride - first : num_spans - first : stride, 0][: high - low])
            if differs.size:
                at = int(differs[0])
                row = (low + at) * stride
                faults.append(
                    (
                        place + 8 * at,
                        place + 8 * at + 8,
                        f"sample entry {low + at} equal to row {row}, {rows[row - first, 0]}",
                        f"{sample[at]}{_more(differs.size)}",
                    )
                )
        return faults

    return check


def numbers_structure(itemsize: int, num_spans: int) -> Structure:
    """Check of the elements of a published-1.x stream with metadata: span numbers from 0, never falling, in the index.

    Parameters
    ----------
    itemsize : int
        Bytes of an element with its span number.
    num_spans : int
        Entries of the index.
    """

    def numbers_of(data: memoryview | bytes) -> npt.NDArray[np.int32]:
        raw = np.frombuffer(data, np.uint8).reshape(-1, itemsize)[:, : SPAN_NUMBER.itemsize]
        return np.ascontiguousarray(raw).view(SPAN_NUMBER).reshape(-1)

    def check(data: memoryview, begin: int, read_at: ReadAt) -> list[Fault]:
        numbers = numbers_of(data)
        faults: list[Fault] = []
        outside = np.flatnonzero((numbers < 0) | (numbers >= num_spans))
        if outside.size:
            at = begin + itemsize * int(outside[0])
            faults.append(
                (
                    at,
                    at + itemsize,
                    f"span numbers in [0, {num_spans})",
                    f"{numbers[outside[0]]}{_more(outside.size)}",
                )
            )
        if begin == 0:
            if numbers[0] != 0:
                faults.append((0, itemsize, "first span number 0", str(numbers[0])))
        else:
            begin -= itemsize
            numbers = np.concatenate((numbers_of(read_at(begin, itemsize)), numbers))
        falls = np.flatnonzero(numbers[1:] < numbers[:-1])
        if falls.size:
            at = int(falls[0])
            faults.append(
                (
                    begin + itemsize * at,
                    begin + itemsize * (at + 2),
                    "span numbers that never fall",
                    f"{numbers[at]} before {numbers[at + 1]}{_more(falls.size)}",
                )
            )
        return faults

    return check


def _more(count: int) -> str:
    return "" if count == 1 else f" (and {count - 1} more in this block)"
