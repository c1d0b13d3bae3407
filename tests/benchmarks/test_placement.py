"""``python -m benchmarks.placement`` on little data: every stretch is counted, and sorted by what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks import placement, rates
from benchmarks.placement import Stretch
from benchmarks.rates_reading import Sizes

TINY = Sizes(**rates.LEAST)

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")


def few(num: int) -> Callable[..., tuple[int, float]]:
    """Stands in for a clock: a stretch is so many batches."""

    def take(batches: Iterator[Any], _collector: object, seconds: float) -> tuple[int, float]:
        taken = sum(1 for _ in islice(batches, num))
        return taken, seconds if taken == num else 0.0

    return take


def test_every_stretch_is_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "WARM", 1)
    monkeypatch.setattr(placement, "take", few(4))
    trips = iter(range(10, 100))
    asked: list[tuple[int, int]] = []

    def trip_ns(processors: tuple[int, int]) -> float:
        asked.append(processors)
        return next(trips) * 10.0

    monkeypatch.setattr(placement, "round_trip_ns", trip_ns)
    rows = placement.compare(tmp_path, TINY, [("stack", "mmap")], 0.0, near_ns=125.0, far_ns=185.0)
    # 16 batches: three stretches of 1 + 4; one more round trip finds the end of the epoch.
    # Round trips: 100 and 110, 120 and 130, 140 and 150; with threads 170 and 180, 190 and 200, 210 and 220.
    assert {row["processors"]: tuple(row["stretches"].values()) for row in rows} == {
        "between": (1, 1), "far": (0, 2), "moved": (1, 0), "near": (1, 0)
    }  # fmt: skip
    assert [row["round_trip_ns"] for row in rows] == [160.0, 205.0, 125.0, 105.0]
    assert [row["of_no_threads"] is not None for row in rows] == [True, False, False, False]
    assert set(asked) == {tuple(sorted(os.sched_getaffinity(0))[:2])}
    assert len(placement.table(rows).splitlines()) == 2 + len(rows)


@pytest.mark.parametrize(
    ("before_ns", "after_ns", "place"),
    [
        (69.0, 1.0, "near"),
        (70.0, 170.0, "between"),
        (171.0, 900.0, "far"),
        (69.0, 70.0, "moved"),
        (170.0, 171.0, "moved"),
    ],
)
def test_a_stretch_has_the_distance_of_both_its_ends(before_ns: float, after_ns: float, place: str) -> None:
    assert placement.placed(Stretch(1.0, before_ns, after_ns), 70.0, 170.0) == place


def test_a_round_trip_leaves_the_thread_where_it_may_run() -> None:
    allowed = os.sched_getaffinity(0)
    first, second, *_ = sorted(allowed)
    assert placement.round_trip_ns((first, second), 20) > 0
    assert os.sched_getaffinity(0) == allowed


def test_the_command_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placement, "Sizes", lambda: TINY)
    monkeypatch.setattr(placement, "WARM", 0)
    monkeypatch.setattr(placement, "take", few(2))
    placement.main([str(tmp_path), "--only", "stack", "documents", "--by", "pread", "--seconds", "0", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {row["by"] for row in rows} == {"pread"}
    for what in ("stack", "documents"):
        assert sum(sum(row["stretches"].values()) for row in rows if row["what"] == what) == 2 * 8
