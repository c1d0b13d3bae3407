"""The result as text, with a table and bars, and as plain values for JSON."""

from __future__ import annotations

import os
import platform
from typing import Any

from guideloom._bench.advice import Advice
from guideloom._bench.measure import Measured
from guideloom._bench.subject import Subject
from guideloom._version import __version__

BAR = 40
"""Letters of the longest bar."""


def facts(
    subject: Subject, measured: Measured, advice: Advice | None, collate: str, step_s: float | None
) -> dict[str, Any]:
    """Return everything as dicts, lists, numbers and strings; times in seconds."""
    per_batch = subject.batch_size * (subject.sequence_length or 1)
    return {
        "path": str(subject.directory),
        "kind": subject.catalog.kind,
        "unit": "documents" if subject.sequence_length is None else "elements",
        "sequence_length": subject.sequence_length,
        "batch_size": subject.batch_size,
        "batch_bytes": round(subject.sample_bytes * subject.batch_size),
        "collate": collate,
        "device": str(subject.device),
        "step_s": step_s,
        "machine": {
            "guideloom": __version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "elapsed_s": measured.elapsed_s,
        "complete": measured.complete,
        "first_of_process_s": measured.first_of_process_s,
        "batches_of_a_warm_round": measured.batches,
        "left_cached": measured.left_cached,
        "rows": [
            {
                "backend": row.setting.backend,
                "workers": row.setting.workers,
                "prefetch": row.setting.prefetch,
                "first_s": row.first_s,
                "batch_s": row.batch_s,
                "rate": None if row.batch_s is None else per_batch / row.batch_s,
                "cold_first_s": row.cold_first_s,
                "cold_batch_s": row.cold_batch_s,
                "cold_rate": None if row.cold_batch_s is None else per_batch / row.cold_batch_s,
                "wait_s": row.wait_s,
            }
            for row in measured.rows
        ],
        "notes": _notes(measured, subject),
        "recommendation": None
        if advice is None
        else {
            "backend": advice.setting.backend,
            "workers": advice.setting.workers,
            "prefetch": advice.setting.prefetch,
            "hidden": advice.hidden,
            "reasons": advice.reasons,
        },
    }


def text(found: dict[str, Any]) -> str:
    """Return the result for a reader."""
    length = "" if found["sequence_length"] is None else f"windows of {found['sequence_length']:,}, "
    machine = found["machine"]
    batches = f"{length}batches of {found['batch_size']:,} ({found['batch_bytes'] / 2**10:,.0f} KiB)"
    lines = [
        f"{found['path']}: {found['kind']}, {batches}, collate {found['collate']}, to {found['device']}",
        ", ".join(f"{name} {value}" for name, value in machine.items()) + f"; took {found['elapsed_s']:.1f} s",
        f"first batch of the process, kernels included: {found['first_of_process_s'] * 1e3:,.0f} ms",
        "",
        _table(found),
        "",
        *_chart(found),
        "",
        *(f"note: {note}" for note in found["notes"]),
    ]
    advice = found["recommendation"]
    if advice is None:
        lines.append("no recommendation: time ran out before anything was measured; give more --seconds")
    else:
        name = {"seek": "SeekIO()", "pread": "PosixPreadIO()", "mmap": "MmapIO()"}.get(
            advice["backend"], "PosixPreadIO(advice=True)"
        )
        lines.append(
            f"recommended: read_interface={name}, num_workers={advice['workers']}, prefetch={advice['prefetch']}"
        )
        lines += [f"  - {reason}" for reason in advice["reasons"]]
    return "\n".join(lines)


def _notes(measured: Measured, subject: Subject) -> list[str]:
    notes = []
    if not measured.complete:
        notes.append("time ran out: some settings were measured less often, or not at all; give more --seconds")
    if measured.left_cached is not None and measured.left_cached > 0.02:
        notes.append(
            f"{measured.left_cached:.0%} of the pages stayed in the page cache, so cold times are too good: "
            "another process has the files mapped or reads them"
        )
    size = measured.batches * subject.batch_size * subject.sample_bytes
    if 0 < size < 64 << 20:
        notes.append(
            f"a warm round reads {size / 2**20:,.1f} MiB only, which may stay in the processor's cache: "
            "with more data the rates can be lower"
        )
    return notes


def _table(found: dict[str, Any]) -> str:
    rows = found["rows"]
    scale, unit = _scale(rows, found["unit"])
    columns: list[tuple[str, list[str]]] = [
        (name, [str(row[name]) for row in rows]) for name in ("backend", "workers", "prefetch")
    ]
    columns += [
        ("first ms", _cells(rows, "first_s", 1e3)),
        ("batch ms", _cells(rows, "batch_s", 1e3)),
        (unit, _cells(rows, "rate", 1 / scale)),
    ]
    if any(row["cold_batch_s"] is not None for row in rows):
        columns += [
            ("cold first ms", _cells(rows, "cold_first_s", 1e3)),
            ("cold batch ms", _cells(rows, "cold_batch_s", 1e3)),
            (f"cold {unit}", _cells(rows, "cold_rate", 1 / scale)),
        ]
    if any(row["wait_s"] is not None for row in rows):
        columns.append(("wait ms a step", _cells(rows, "wait_s", 1e3)))
    widths = [max(map(len, (name, *cells))) for name, cells in columns]
    lines = [[name for name, _ in columns], *map(list, zip(*(cells for _, cells in columns), strict=True))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cells(rows: list[dict[str, Any]], key: str, factor: float) -> list[str]:
    return ["-" if row[key] is None else f"{row[key] * factor:,.4g}" for row in rows]


def _scale(rows: list[dict[str, Any]], unit: str) -> tuple[float, str]:
    largest = max((row[key] or 0.0 for row in rows for key in ("rate", "cold_rate")), default=0.0)
    return (1e6, f"M {unit}/s") if largest >= 1e6 else (1e3, f"k {unit}/s")


def _chart(found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    largest = max((row[key] or 0.0 for row in rows for key in ("rate", "cold_rate")), default=0.0)
    if not largest:
        return []
    names = [f"{row['backend']} {row['workers']}/{row['prefetch']}" for row in rows]
    width = max(map(len, names))
    lines = ["rate, by backend workers/prefetch (█ warm, ░ cold)"]
    for name, row in zip(names, rows, strict=True):
        for key, letter in (("rate", "█"), ("cold_rate", "░")):
            if row[key] is not None:
                lines.append(f"{name:>{width}} {letter * max(1, round(BAR * row[key] / largest))}")
                name = ""
    return lines
