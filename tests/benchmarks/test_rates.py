"""``python -m benchmarks.rates`` on little data: every row is there, and counts what it says. No time is judged."""

from __future__ import annotations

import gc
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import rates, rates_reading, rates_tables, rates_writing
from benchmarks.rates_reading import READINGS, SETTINGS, TORCH_SETTINGS, Sizes
from benchmarks.rates_writing import WRITINGS
from benchmarks.workloads import BACKENDS, LENGTH, copy_runs, loader, take_turns
from guideloom.io import MmapIO

# Of torch's loader, on a machine with one processor.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TINY = Sizes(**rates.LEAST)
ROUNDS = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Little data of each kind."""
    made = tmp_path_factory.mktemp("rates")
    rates_reading.make_data(made, TINY, ["stream", "documents", "spans"])
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What all measurements give, as it comes out of JSON."""
    measured = rates.measure(folder, TINY, rounds=ROUNDS, seconds=0.0, steps=2, width=8)
    again: dict[str, Any] = json.loads(json.dumps(measured))
    return again


def test_every_row_of_reading_is_there(found: dict[str, Any]) -> None:
    expected = []
    for name, reading in READINGS.items():
        expected += [(name, "memcpy", 0, 0)] + [(name, "memory", 0, 0)] * (reading.collate is not None)
        expected += [(name, by, *setting) for by in BACKENDS for setting in SETTINGS]
        expected += [(name, "torch", *setting) for setting in TORCH_SETTINGS if name == "numeric"]
    rows = found["reading"]
    assert [(row["what"], row["by"], row["workers"], row["prefetch"]) for row in rows] == expected
    for row in rows:
        assert len(row["rates"]) == len(row["full_collections"]) == ROUNDS
        assert 0 < min(row["rates"]) <= row["median"] <= row["best"] == max(row["rates"])
        assert row["of_ceiling"] > 0
        assert ("of_no_threads" in row) == (row["by"] not in ("memcpy", "memory"))
        if (row["workers"], row["prefetch"]) == (0, 0) and row["by"] in BACKENDS:
            assert row["of_no_threads"] == 1


def test_every_row_of_a_full_queue_and_of_writing_is_there(found: dict[str, Any]) -> None:
    rows = [(row["what"], row["by"], row["workers"], row["prefetch"]) for row in found["queue"]]
    assert rows == [(what, by, *setting) for what in ("numeric", "stack") for by in BACKENDS for setting in SETTINGS]
    assert {row["num"] for row in found["queue"]} == {2 * ROUNDS}
    assert [(row["what"], row["by"]) for row in found["writing"]] == [
        ("write-streams", "plain"),
        ("write-streams", "append"),
        ("write-documents", "plain"),
        ("write-documents", "bytes"),
        ("write-documents", "pack"),
        ("write-documents", "pack alone"),
        ("write-spans", "plain"),
        ("write-spans", "pack_spans"),
        ("write-spans", "pack"),
        ("write-spans", "pack alone"),
    ]


def test_the_tables_have_a_line_for_every_row(found: dict[str, Any]) -> None:
    lines = [line for line in rates_tables.tables(found).splitlines() if line.startswith("|")]
    one_each = 1 + sum(1 + (reading.collate is not None) + len(BACKENDS) for reading in READINGS.values())
    num_lines = one_each + 2 * len(BACKENDS) + 2 * len(BACKENDS) + len(found["writing"])
    assert len(lines) == num_lines + 4 * 2  # a head of two lines for each table
    assert {line.count("|") for line in lines} == {len(SETTINGS) + 3, 5}


def test_only_chooses_and_the_data_are_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [f"--{name}={count}" for name, count in rates.LEAST.items()]
    command = [str(tmp_path / "new"), "--json", "--only", "document-arrays", "--rounds=1", "--seconds=0", *sizes]
    rates.main(command)
    first = json.loads(capsys.readouterr().out)
    assert {row["what"] for row in first["reading"]} == {"document-arrays"}
    assert (first["queue"], first["writing"]) == ([], [])
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"documents-{TINY.documents}"]

    monkeypatch.delattr(rates_reading, "_write")
    rates.main(command)
    second = json.loads(capsys.readouterr().out)
    assert [row.keys() for row in second["reading"]] == [row.keys() for row in first["reading"]]


@pytest.mark.parametrize("wrong", [["--rounds=0"], ["--spans=1"], ["--seconds=nan"], ["--only", "nothing"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rates.main(wrong)
    assert wrong[0].partition("=")[0] in capsys.readouterr().err


# --- what is compared is the same -----------------------------------------------------------------------------------


def batches_of(name: str, folder: Path) -> list[list[bytes]]:
    """The bytes of an epoch's batches, as the loader gives them: of each sample, or of each batch."""
    reading = READINGS[name]
    dataset = reading.dataset(rates_reading.folder_of(folder, reading.kind, TINY), MmapIO())
    found = []
    with loader(dataset) as source:
        for batch in source:
            if name == "span-arrays":
                bounds, offsets = batch["span_bounds"].tolist(), batch["span_offsets"].tolist()
                payload = batch["span_payload"].numpy().tobytes()
                windows = zip(batch["elements"].numpy(), pairwise(bounds), strict=True)
                found.append([tokens.tobytes() + payload[offsets[lo] : offsets[hi]] for tokens, (lo, hi) in windows])
            else:
                found.append([batch["tokens" if name == "numeric" else "values"].numpy().tobytes()])
    return found


@pytest.mark.parametrize("name", ["numeric", "document-arrays", "span-arrays"])
def test_the_ceiling_copies_what_the_loader_reads(folder: Path, name: str) -> None:
    kind = READINGS[name].kind
    files = rates_reading.folder_of(folder, kind, TINY)
    paths = [path for part in ("elements", "payload") for path in sorted(files.glob(f"*.{part}.bin"))]
    memory = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    runs = rates_reading.runs_of(kind, TINY)
    expected = batches_of(name, folder)
    assert len(expected) == runs.src.size // runs.batch > 2
    for number, batch in enumerate(expected):
        part = slice(number * runs.batch, (number + 1) * runs.batch)
        out = np.zeros(int(runs.nbytes[part].sum()), np.uint8)
        copy_runs()(memory.ctypes.data, runs.src[part], runs.nbytes[part], out.ctypes.data, runs.batch)
        assert out.tobytes() == b"".join(batch)


def test_torch_reads_the_same_windows(folder: Path) -> None:
    windows = rates_reading.MemmapWindows(rates_reading.folder_of(folder, "stream", TINY))
    found = sorted(windows[index].numpy().tobytes() for index in range(len(windows)))
    ours = np.frombuffer(b"".join(piece for batch in batches_of("numeric", folder) for piece in batch), np.int32)
    assert found == sorted(window.tobytes() for window in ours.reshape(len(windows), LENGTH))


@pytest.mark.parametrize("name", WRITINGS)
def test_the_plain_write_writes_as_many_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, int] = {}
    cleanup = rates_writing.tempfile.TemporaryDirectory.cleanup

    def note(self: Any) -> None:
        written[call] = sum(path.stat().st_size for path in Path(self.name).iterdir() if path.suffix != ".json")
        cleanup(self)

    monkeypatch.setattr(rates_writing.tempfile.TemporaryDirectory, "cleanup", note)
    units, calls = WRITINGS[name][1](tmp_path, TINY)
    for call in calls:
        calls[call]()
    assert units > 0
    assert len(written) == len([call for call in calls if call != "pack alone"])
    assert len(set(written.values())) == 1
    assert not list(tmp_path.iterdir())


def test_turns_begin_with_another_each_round() -> None:
    seen: list[str] = []
    calls = {name: lambda name=name: seen.append(name) or len(seen) for name in "abc"}  # type: ignore[misc]
    assert take_turns(calls, 2, "test") == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}
    assert take_turns({}, 2, "test") == {}


def test_full_passes_of_the_collector_are_counted_and_timed() -> None:
    found = rates_reading.think(lambda number: gc.collect(), 1, 0.0)
    assert found.full_collections == 1
    assert 0 < found.full_collections_share <= 1


def test_a_ratio_is_that_of_one_round() -> None:
    """In the last round the machine did something else: it slows both, and the ratio stays."""
    assert rates_reading.ratio([8.0, 9.0, 2.0], [10.0, 10.0, 2.5]) == 0.8
