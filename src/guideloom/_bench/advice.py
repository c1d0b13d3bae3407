"""Which setting to use, and why: a pure function of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guideloom._bench.measure import Row
from guideloom._bench.subject import Setting

CLOSE = 0.92
"""A setting that reaches this share of the best rate is as good as the best: rates vary that much from run to run."""

HIDDEN = 0.02
"""Share of a step that a batch may be waited for and still count as hidden behind the step."""

HANDOVER_S = 100e-6
"""What a process that slept through a step needs to take a finished batch, however little it took to load."""

_SIMPLER = ("pread", "mmap", "pread+advice", "seek")


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting, whether it hides loading behind the step (None: no step was given), and the reasons."""

    setting: Setting
    hidden: bool | None
    reasons: list[str]


def recommend(rows: Sequence[Row], step_s: float | None = None) -> Advice | None:
    """Choose the cheapest setting that is as good as any.

    Cheap means: few threads, then few batches held in memory, then the backend that is simplest to run. With a step:
    that hides loading, if any setting does. Without one: that loads fastest while batches are made ahead, since
    only a batch made ahead can hide behind a step. Cold times count where they were measured.

    Parameters
    ----------
    rows : sequence of Row
    step_s : float, optional

    Returns
    -------
    Advice or None
        None when nothing was measured.
    """
    phase = "cold" if any(row.cold_batch_s is not None for row in rows) else "warm"
    times = {
        row.setting: time for row in rows if (time := row.cold_batch_s if phase == "cold" else row.batch_s) is not None
    }
    if not times:
        return None
    waits = {row.setting: row.wait_s for row in rows if row.wait_s is not None and row.setting in times}
    if step_s and waits:
        return _with_step(times, waits, step_s, phase)
    ahead = {setting: time for setting, time in times.items() if setting.prefetch} or times
    chosen = _cheapest(ahead)
    which = f"{phase}, prefetch above 0" if 0 < len(ahead) < len(times) else phase
    reasons = [_speed(chosen, ahead, which)]
    if chosen.prefetch:
        reasons.append(
            f"a batch takes {_ms(ahead[chosen])}: hidden behind any longer step that leaves a core free, "
            "while without prefetch every step is longer by it"
        )
    reasons += _about_workers(chosen, times)
    return Advice(chosen, None, reasons)


def _with_step(times: dict[Setting, float], waits: dict[Setting, float], step_s: float, phase: str) -> Advice:
    hiding = [
        setting
        for setting, wait_s in waits.items()
        if wait_s <= HIDDEN * step_s + (HANDOVER_S if setting.prefetch else 0.0)
    ]
    if hiding:
        chosen = min(hiding, key=_cost)
        reasons = [
            f"loading is hidden: after a step of {_ms(step_s)} the trainer waits {_ms(waits[chosen])}",
            f"{len(hiding)} of {len(waits)} settings hide it; this one has the fewest threads and the least memory",
        ]
        return Advice(chosen, True, reasons + _about_workers(chosen, times))
    chosen = _cheapest(waits)
    reasons = [
        f"loading is not hidden: the trainer waits {_ms(waits[chosen])} for a batch after each step of {_ms(step_s)}",
        _speed(chosen, times, phase),
        "to load faster: a faster disk, less work in collate_fn (None does nothing per sample), a cheaper encoding",
    ]
    return Advice(chosen, False, reasons)


def _cheapest(times: dict[Setting, float]) -> Setting:
    best = min(times.values())
    return min((setting for setting, time in times.items() if best >= CLOSE * time), key=_cost)


def _cost(setting: Setting) -> tuple[int, int, int]:
    name = setting.backend
    return setting.workers, setting.prefetch, _SIMPLER.index(name) if name in _SIMPLER else len(_SIMPLER)


def _speed(chosen: Setting, times: dict[Setting, float], phase: str) -> str:
    fastest = min(times, key=times.__getitem__)
    if len(times) == 1:
        return f"no other was measured ({phase}): leave --backends, --workers and --prefetch out to compare"
    if chosen == fastest:
        return f"it is the fastest of {len(times)} settings ({phase})"
    words = f"it loads at {times[fastest] / times[chosen]:.0%} of the rate of the fastest ({fastest}, {phase})"
    return words + (", with fewer threads or less memory" if _cost(chosen) < _cost(fastest) else "")


def _about_workers(chosen: Setting, times: dict[Setting, float]) -> list[str]:
    same = {
        setting.workers: time
        for setting, time in times.items()
        if (setting.backend, setting.prefetch) == (chosen.backend, chosen.prefetch)
    }
    if len(same) < 2:
        return []
    if chosen.workers:
        fewest = min(same)
        gain = same[fewest] / same[chosen.workers]
        return [f"with workers={chosen.workers} it loads {gain:.1f} times as fast as with {fewest}"]
    gain = same[0] / min(same.values())
    return [] if gain > 1 / CLOSE else ["more workers do not help here: reads do not wait for the disk"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
