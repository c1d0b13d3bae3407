"""Runs the loader with each setting in turn, within a given time.

Every setting reads the same batches: those of epoch 0, from its start. *Warm* means that they were read before, *cold*
that the page cache was emptied of the data's files just before. Settings take turns in several rounds and the best
round counts, since other work on the machine only ever slows a round down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from guideloom._base.protocols import IOReaderAbstract
from guideloom._bench.subject import Setting, Subject, evict

ROUNDS = 3
MAX_WARM_BYTES = 1 << 30
"""Bytes that a warm round reads at most; what fits into memory, and far more than a processor's cache."""

_WARM, _COLD, _STEP, _FILL = 3.0, 3.0, 1.5, 0.5
_USABLE = 0.9  # of the time; the rest is for the last batch of each measurement
_LEAST = 4  # batches after the first one, however little time there is
_SETTLED = 4  # steps after which the trainer no longer waits for what the start of an epoch costs
_ALL = 1 << 62  # no limit to the batches of a pass

Clock = Callable[[], float]


@dataclass(slots=True)
class Row:
    """What was measured of one setting, in seconds; None where time ran out, or it was not asked for.

    Parameters
    ----------
    first_s, cold_first_s
        From ``iter`` to the first batch on its device.
    batch_s, cold_batch_s
        A batch after the first, with a consumer that does nothing else.
    wait_s
        How long a consumer that takes the given time for each step waits for a batch; cold, if that was asked for.
    """

    setting: Setting
    first_s: float | None = None
    batch_s: float | None = None
    cold_first_s: float | None = None
    cold_batch_s: float | None = None
    wait_s: float | None = None


@dataclass(slots=True)
class Measured:
    """All rows, and what holds for all of them."""

    rows: list[Row]
    first_of_process_s: float = 0.0
    batches: int = 0
    elapsed_s: float = 0.0
    complete: bool = True
    left_cached: float | None = None


@dataclass(frozen=True, slots=True)
class _Pass:
    first_s: float
    batches: int
    elapsed_s: float
    waits_s: tuple[float, ...] = ()
    was_cut: bool = False  # time ran out before the first wait

    @property
    def batch_s(self) -> float:
        return self.elapsed_s / self.batches if self.batches else self.first_s

    @property
    def wait_s(self) -> float | None:
        if self.was_cut:
            return None
        settled = self.waits_s[_SETTLED:] or self.waits_s
        return sum(settled) / len(settled) if settled else self.first_s


def measure(
    subject: Subject,
    backends: Mapping[str, IOReaderAbstract],
    settings: Sequence[Setting],
    *,
    seconds: float,
    cold: bool = False,
    step_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    clock: Clock = perf_counter,
) -> Measured:
    """Measure each setting.

    Parameters
    ----------
    subject : Subject
    backends : mapping
        Those that ``settings`` name.
    settings : sequence of Setting
    seconds : float
        After this time no further setting is begun; the batch under way is waited for. A step that would take longer
        is not begun.
    cold : bool
        Also measure with the data's files dropped from the page cache.
    step_s : float, optional
        Length of a training step. The consumer sleeps through it, as the process of a trainer does while its device
        works.
    progress : callable
        Called with a word before each measurement; see :func:`num_measurements`.
    clock : callable
        Seconds.
    """
    begun = clock()
    deadline = begun + seconds
    measured = Measured([Row(setting) for setting in settings])
    shares = _FILL + _WARM + (_COLD if cold else 0.0) + (_STEP if step_s else 0.0)

    def loop(setting: Setting, end: float, limit: int, pause_s: float = 0.0) -> _Pass:
        make = lambda: subject.loader(backends[setting.backend], setting.workers, setting.prefetch)  # noqa: E731
        return _passes(make, end, deadline, limit, pause_s, clock)

    # Kernels are compiled, or loaded, by whoever needs them first: that is told apart.
    for number, name in enumerate(dict.fromkeys(setting.backend for setting in settings)):
        first_s = loop(Setting(name, 0, 0), begun, 1).first_s
        if number == 0:
            measured.first_of_process_s = first_s

    ready = clock()
    unit_s = max(0.0, deadline - ready) * _USABLE / shares
    phase_end = ready

    def turns(what: str, share: float, rounds: int = 1) -> Iterator[tuple[Row, float]]:
        """Give each row an end for its measurement: what is left of the phase, in equal parts."""
        nonlocal phase_end
        phase_end += unit_s * share
        left = rounds * len(measured.rows)
        for row in measured.rows * rounds:
            progress(f"{what} {row.setting}")
            now = clock()
            if now >= deadline:
                measured.complete = False
                return
            yield row, now + max(0.0, phase_end - now) / left
            left -= 1

    if cold:
        for row, end in turns("cold", _COLD):
            measured.left_cached = evict(subject.files)
            one = loop(row.setting, end, _ALL)
            row.cold_first_s, row.cold_batch_s = one.first_s, one.batch_s

    progress("fill the page cache")
    phase_end += unit_s * _FILL
    if clock() < deadline:
        limit = max(2, int(_warm_bytes() / max(1.0, subject.sample_bytes * subject.batch_size)))
        loader = subject.loader(backends[settings[-1].backend], 0, 0)
        measured.batches = 1 + _once(loader, phase_end, deadline, limit, 0.0, clock).batches
    for row, end in turns("warm", _WARM, ROUNDS):
        one = loop(row.setting, end, measured.batches)
        row.first_s = one.first_s if row.first_s is None else min(row.first_s, one.first_s)
        row.batch_s = one.batch_s if row.batch_s is None else min(row.batch_s, one.batch_s)
    if step_s:
        for row, end in turns("step", _STEP):
            if cold:
                evict(subject.files)
            row.wait_s = loop(row.setting, end, _ALL, step_s).wait_s
            measured.complete &= row.wait_s is not None
    measured.elapsed_s = clock() - begun
    return measured


def num_measurements(num_settings: int, cold: bool, step: bool) -> int:
    """How often ``measure`` reports progress."""
    return 1 + num_settings * (ROUNDS + int(cold) + int(step))


def _warm_bytes() -> float:
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return MAX_WARM_BYTES
    return min(MAX_WARM_BYTES, memory / 8)


def _passes(make: Callable[[], Any], end: float, deadline: float, limit: int, pause_s: float, clock: Clock) -> _Pass:
    """Read the first ``limit`` batches again and again until ``end``."""
    total = _once(make(), end, deadline, limit, pause_s, clock)
    while total.batches and clock() < end:
        more = _once(make(), end, deadline, limit, pause_s, clock)
        total = _Pass(
            min(total.first_s, more.first_s),
            total.batches + more.batches,
            total.elapsed_s + more.elapsed_s,
            total.waits_s + more.waits_s,
            total.was_cut,
        )
    return total


def _once(loader: Any, end: float, deadline: float, limit: int, pause_s: float, clock: Clock) -> _Pass:
    """Read until ``end``, but at least a handful of batches, unless the deadline comes first."""
    least = _LEAST + (_SETTLED if pause_s else 0)
    with loader:
        begun = clock()
        with closing(iter(loader)) as iterator:
            batch = next(iterator)
            _wait_for_device(batch)
            started = now = clock()
            first_s = started - begun
            batches = 0
            waits_s: list[float] = []
            was_cut = pause_s > 0
            while batches + 1 < limit and (now < end or (batches < least and now < deadline)):
                if pause_s:
                    if now + pause_s > deadline:
                        break
                    sleep(pause_s)
                    was_cut = False
                asked = clock()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                batches += 1
                if pause_s:
                    _wait_for_device(batch)
                now = clock()
                if pause_s:
                    waits_s.append(now - asked)
            _wait_for_device(batch)
            return _Pass(first_s, batches, clock() - started, tuple(waits_s), was_cut)


def _wait_for_device(batch: Any) -> None:
    """Wait for the copies that are queued on the device: reading a byte of the last one back does."""
    tensor = _any_tensor(batch)
    if tensor is not None and tensor.device.type != "cpu":
        tensor.reshape(-1)[:1].cpu()


def _any_tensor(value: Any) -> Any:
    if hasattr(value, "device") and hasattr(value, "cpu"):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for item in value[::-1] if (found := _any_tensor(item)) is not None), None)
    return None
