"""The tables of docs/performance.md out of what ``benchmarks.rates`` found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rates_reading import COPY, PYTHON, SETTINGS, TORCH
from benchmarks.rates_writing import ALONE, PLAIN
from benchmarks.workloads import BACKENDS

WORDS = {
    "numeric": "`collate_fn=None`, M tokens/s",
    "stack": "a collate that stacks, M tokens/s",
    "documents": "documents of 0.9 to 4 KB, unpacked by a struct and `np.frombuffer`, a second",
    "document-arrays": "documents as values and offsets, a second",
    "spans": "windows with spans, an array a span, a second",
    "span-arrays": "windows with spans, as values and offsets, a second",
    "write-streams": "streams, M tokens/s",
    "write-documents": "documents of 0.9 to 4 KB, a second",
    "write-spans": "spans, M tokens/s",
    "append": "a million tokens an `append`",
    "bytes": "given as bytes",
    "pack": "by `pack`",
    "pack_spans": "by `pack_spans`",
    ALONE: "that `pack` alone, nothing written",
    PYTHON: "that Python in memory",
    TORCH: "torch's DataLoader over `np.memmap`",
}
WITH_SPANS = ("spans", "span-arrays")
SETTING_WORDS = {
    (workers, prefetch): f"{workers} worker{'s' * (workers > 1)}, prefetch {prefetch}"
    if prefetch
    else "without threads"
    for workers, prefetch in SETTINGS
}

Rows = Sequence[Mapping[str, Any]]


def tables(found: Mapping[str, Any]) -> str:
    """Return all tables as text: Markdown, each with what its cells say."""
    machine, sizes = found["machine"], found["sizes"]
    load = " and ".join(f"{value:.1f}" for value in found["load_average"])
    head = (
        f"{machine['processors']} processors, {machine['system']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}, torch {machine['torch']}, load {load} at begin and end; "
        f"{sizes['windows']:,} windows, {sizes['documents']:,} documents, {sizes['spans']:,} spans; "
        f"{found['rounds']} rounds."
    )
    parts = [head]
    if found["reading"]:
        legend = "as part of the ceiling, one core that copies the same bytes; with threads, as part of without:"
        parts += [f"Reading. Median (best) of the rounds; {legend}", _reading(found["reading"])]
    if any(row["what"] in WITH_SPANS for row in found["reading"]):
        parts += [
            "Full passes of Python's collector in each round, and their part of the time:",
            _collections(found["reading"]),
        ]
    if found["queue"]:
        legend = "median, 9 of 10; and to drop it: median, 9 of 10. Without threads it is the loading itself:"
        beside = f"between matrix products on {machine['torch_threads']} threads"
        parts += [f"Microseconds to take a batch out of a full queue, {beside}: {legend}", _queue(found["queue"])]
    if found["writing"]:
        legend = "as part of a plain write of the same bytes with one `fsync` a file:"
        parts += [f"Writing. Median (best) of the rounds; {legend}", _writing(found["writing"])]
    return "\n\n".join(parts)


def _reading(rows: Rows) -> str:
    at = {(row["what"], row["by"], row["workers"], row["prefetch"]): row for row in rows}
    lines = []
    for what in dict.fromkeys(row["what"] for row in rows):
        ceiling = at[what, COPY, 0, 0]
        lines.append([WORDS[what], "ceiling", _rates(ceiling), *[""] * (len(SETTINGS) - 1)])
        if (python := at.get((what, PYTHON, 0, 0))) is not None:
            lines.append(
                ["", WORDS[PYTHON], f"{_rates(python)}; {python['of_ceiling']:.2f}", *[""] * (len(SETTINGS) - 1)]
            )
        for by in (*BACKENDS, TORCH):
            cells = [_reading_cell(at.get((what, by, *setting))) for setting in SETTINGS]
            if any(cells):
                lines.append(["", WORDS.get(by, by), *cells])
    return _table(["what", "by", *SETTING_WORDS.values()], lines)


def _reading_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    cell = f"{_rates(row)}; {row['of_ceiling']:.2f}"
    return f"{cell}; {row['of_no_threads']:.2f}" if row["prefetch"] else cell


def _collections(rows: Rows) -> str:
    rows = [row for row in rows if row["what"] in WITH_SPANS and row["by"] in BACKENDS]
    at = {(row["what"], row["by"], row["workers"], row["prefetch"]): row for row in rows}
    lines = []
    for what, by in dict.fromkeys((row["what"], row["by"]) for row in rows):
        cells = []
        for setting in SETTINGS:
            row = at[what, by, *setting]
            passes = " ".join(map(str, row["full_collections"]))
            cells.append(f"{passes}; {statistics.mean(row['full_collections_share']):.2f}")
        lines.append([WORDS[what].rpartition(",")[0], by, *cells])
    return _table(["what", "by", *SETTING_WORDS.values()], lines)


def _queue(rows: Rows) -> str:
    at = {(row["what"], row["by"], row["workers"], row["prefetch"]): row for row in rows}
    lines = []
    for what, by in dict.fromkeys((row["what"], row["by"]) for row in rows):
        cells = [at[what, by, *setting] for setting in SETTINGS]
        names = ("take_median_s", "take_p90_s", "drop_median_s", "drop_p90_s")
        times = ["{:.0f}, {:.0f}; {:.0f}, {:.0f}".format(*(row[name] * 1e6 for name in names)) for row in cells]
        lines.append([WORDS[what].rpartition(",")[0], by, *times])
    return _table(["what", "by", *SETTING_WORDS.values()], lines)


def _writing(rows: Rows) -> str:
    lines = []
    for row in rows:
        plain = row["by"] == PLAIN
        lines.append(
            [
                WORDS[row["what"]] if plain else "",
                "plain write" if plain else WORDS[row["by"]],
                _rates(row),
                "" if row["by"] in (PLAIN, ALONE) else f"{row['of_plain']:.2f}",
            ]
        )
    return _table(["what", "how", "rate", "part of the plain write"], lines)


def _rates(row: Mapping[str, Any]) -> str:
    return f"{_rate(row['median'], row['unit'])} ({_rate(row['best'], row['unit'])})"


def _rate(value: float, unit: str) -> str:
    """Three digits, which is more than a measurement is worth; tokens are counted in millions."""
    value = float(f"{value / 1e6 if unit == 'tokens' else value:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *lines))
    return "\n".join([first, "|" + "---|" * len(head), *others])
