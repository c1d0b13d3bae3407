"""``guideloom bench``: the shape of what it says, its bounds, and what it recommends; no time is judged."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guideloom import (
    DocumentJsonFormat,
    DocumentNumpyFormat,
    DocumentPickleFormat,
    DocumentStorage,
    StreamNumpyFormat,
    StreamStorage,
    cli,
)
from guideloom._bench.advice import recommend
from guideloom._bench.measure import ROUNDS, Row, measure, num_measurements
from guideloom._bench.sizes import Sizes, choose_sizes
from guideloom._bench.subject import Setting, Subject, backends, default_format, evict, keep, stack
from guideloom._commands.data_set import open_any
from guideloom.errors import ArgumentError
from guideloom.testing import LatencyBackend, make_spans
from tests.storage.support import Raw

Bench = Callable[..., dict[str, Any]]
FEW = ("--workers", "0,1", "--prefetch", "0,2", "--seconds", "0.4", "--batch-size", "4", "--backends", "pread,mmap")


LIMIT = re.compile(r"--([\w-]+) of at most ([\d,]+)")


def lengths(samples: list[Any]) -> Any:
    return np.array([len(sample) for sample in samples])


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    with StreamStorage(tmp_path / "s", StreamNumpyFormat(np.dtype([("token", "<u2")]))).sync_writer() as writer:
        for shard in range(2):
            writer.append(shard, {"token": np.arange(2000)})
    return tmp_path / "s"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    with DocumentStorage(tmp_path / "d", Raw()).sync_writer() as writer:
        for number in range(40):
            writer.append(number % 2, b"x" * number)
    return tmp_path / "d"


@pytest.fixture(autouse=True, scope="module")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are compiled before times are short."""
    folder = tmp_path_factory.mktemp("compiled")
    with StreamStorage(folder, StreamNumpyFormat(np.dtype([("token", "<u2")]))).sync_writer() as writer:
        writer.append(0, {"token": np.arange(2000)})
    measure(subject_of(folder), backends(), [Setting("pread", 0, 0), Setting("mmap", 0, 0)], seconds=0.1)


class Ticks:
    """A clock that goes on by so much whenever it is asked: what can be measured does not depend on the machine."""

    def __init__(self, tick_s: float = 1.0) -> None:
        self.now = 0.0
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


@pytest.fixture
def _ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.__kwdefaults__, "clock", Ticks(0.0005))


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], _ticks: None) -> Bench:
    def bench(*arguments: object) -> dict[str, Any]:
        status = cli.main(["bench", "--json", *map(str, (*FEW, *arguments))])
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        found: dict[str, Any] = json.loads(captured.out)
        return found

    return bench


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def refused(*arguments: object) -> str:
        assert cli.main(["bench", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    return refused


# --- the command -----------------------------------------------------------------------------------


def test_every_setting_is_measured_warm_and_cold_and_beside_a_step(bench: Bench, stream: Path) -> None:
    before = {path.name: path.read_bytes() for path in stream.iterdir()}
    found = bench(stream, "--sequence-length", "64", "--cold", "--step-ms", "1", "--seconds", "5")
    expected = list(itertools.product(("pread", "mmap"), (0, 1), (0, 2)))
    assert [(row["backend"], row["workers"], row["prefetch"]) for row in found["rows"]] == expected
    times = ("first_s", "batch_s", "rate", "cold_first_s", "cold_batch_s", "cold_rate", "wait_s")
    assert all(row[key] > 0 for row in found["rows"] for key in times)
    for row in found["rows"]:
        assert row["rate"] == pytest.approx(4 * 64 / row["batch_s"])
    assert (found["kind"], found["unit"], found["collate"], found["batch_bytes"]) == ("stream", "elements", "none", 512)
    assert found["complete"] is True
    assert 2 <= found["batches_of_a_warm_round"] <= 4000 // 64 // 4
    assert found["recommendation"]["hidden"] in (True, False)
    assert {path.name: path.read_bytes() for path in stream.iterdir()} == before


def test_without_cold_and_step_nothing_is_said_of_them(bench: Bench, stream: Path) -> None:
    found = bench(stream, "--sequence-length", "64")
    assert all(row[key] is None for row in found["rows"] for key in ("cold_batch_s", "cold_rate", "wait_s"))
    assert found["recommendation"]["hidden"] is None
    assert any("MiB only" in note for note in found["notes"])


@pytest.mark.parametrize("collate", ["stack", "list", "none"])
def test_collate_of_streams(bench: Bench, stream: Path, collate: str) -> None:
    assert bench(stream, "--sequence-length", "64", "--collate", collate)["collate"] == collate


def test_documents_need_no_format(bench: Bench, documents: Path) -> None:
    found = bench(documents)
    assert (found["unit"], found["collate"], found["sequence_length"]) == ("documents", "list", None)


@pytest.mark.parametrize(
    ("fmt", "record", "collate", "unpacked"),
    [
        (DocumentNumpyFormat({"t": "<u2"}), {"t": [1, 2]}, "none", "{'t': array([1, 2], dtype=uint16)}"),
        (DocumentNumpyFormat({"t": "<u2", "w": "<f4"}), {"t": [1], "w": [0.5]}, "list", "'w': array([0.5]"),
        (DocumentJsonFormat(), {"t": "x"}, "list", "{'t': 'x'}"),
        (DocumentPickleFormat(), {"t": "x"}, "list", "<memory"),
    ],
)
def test_documents_that_say_what_they_are_are_decoded_and_pickles_never(
    bench: Bench, tmp_path: Path, fmt: Any, record: Any, collate: str, unpacked: str
) -> None:
    storage = DocumentStorage(tmp_path / "d", fmt)
    with storage.sync_writer() as writer:
        for _ in range(8):
            writer.append(0, record)
    found = default_format(open_any(tmp_path / "d"))
    encoded = memoryview(bytearray(storage.storage_format.pack(record)))
    assert unpacked in repr(found.unpack(encoded, 0))
    assert bench(tmp_path / "d")["collate"] == collate


def test_own_format_and_collate(bench: Bench, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_own.py").write_text(
        "class Fmt:\n    def pack(self, d): return d\n    def unpack(self, b, s): return bytes(b)\n"
        "def collate(xs):\n    assert all(type(x) is bytes for x in xs)\n    return len(xs)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert bench(documents, "--format", "bench_own:Fmt", "--collate", "bench_own:collate")["rows"][0]["batch_s"] > 0


def test_own_collate_that_lacks_its_format_is_told(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_lacks.py").write_text(
        "class Fmt:\n    def pack(self, d): return d\n    def unpack(self, b, s): return {'text': bytes(b)}\n"
        "def collate(xs): return [x['text'] for x in xs]\n"
        "def broken(xs): raise KeyError\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError) as caught:
        cli.main(["bench", *FEW, str(documents), "--collate", "bench_lacks:collate"])
    assert any("--format MODULE:OBJECT" in note for note in caught.value.__notes__)
    with pytest.raises(KeyError) as given:
        cli.main(["bench", *FEW, str(documents), "--collate", "bench_lacks:broken", "--format", "bench_lacks:Fmt"])
    assert not hasattr(given.value, "__notes__")


@pytest.mark.parametrize("collate", ["none", "stack"])
def test_spans(bench: Bench, tmp_path: Path, collate: str) -> None:
    make_spans(tmp_path / "m", [[5, 70, 1], [300, 20]])
    assert bench(tmp_path / "m", "--sequence-length", "16", "--collate", collate)["kind"] == "stream_with_meta"


@pytest.mark.usefixtures("_ticks")
def test_text_has_a_table_bars_and_a_recommendation(capsys: pytest.CaptureFixture[str], stream: Path) -> None:
    assert cli.main(["bench", *FEW, str(stream), "--sequence-length", "64", "--cold", "--seconds", "3"]) == 0
    text = capsys.readouterr().out
    assert text.count("█") > 4
    assert "░" in text
    assert "cold batch ms" in text
    assert "recommended: read_interface=" in text
    assert f"guideloom {cli.__version__}" in text


def test_what_is_refused(refused: Callable[..., str], stream: Path, documents: Path, tmp_path: Path) -> None:
    assert "--batch-size must be at least 1" in refused(stream, "--batch-size", "0")
    assert "--seconds must be a number above 0" in refused(stream, "--seconds", "nan")
    assert "expected some of" in refused(stream, "--backends", "floppy")
    assert "leave --sequence-length out" in refused(documents, "--sequence-length", "4")
    assert "use list, or your own" in refused(documents, "--collate", "none")
    assert "use list, or your own" in refused(documents, "--collate", "stack")
    assert "cannot import" in refused(stream, "--collate", "no_such_module:f")
    assert "expected module:object" in refused(stream, "--collate", "json")
    assert "--sequence-length of at most 4,000" in refused(stream, "--sequence-length", "5000")
    assert "--batch-size of at most 2" in refused(stream, "--batch-size", "3", "--sequence-length", "2000")
    assert "--batch-size of at most 40" in refused(documents, "--batch-size", "41")
    assert "nothing" in refused(tmp_path / "nothing")


# --- sizes ------------------------------------------------------------------------------------------


def test_small_data_is_measured_without_options_and_the_choice_is_said(
    capsys: pytest.CaptureFixture[str], stream: Path, documents: Path
) -> None:
    few = ("--workers", "0", "--prefetch", "0", "--seconds", "0.4", "--backends", "pread")
    assert cli.main(["bench", str(stream), *few]) == 0
    said = capsys.readouterr().out
    assert "windows of 64, batches of 15 " in said
    assert "with 4,000 elements only, it measures --sequence-length 64 instead of 2,048 and --batch-size 15" in said
    assert cli.main(["bench", str(documents), *few]) == 0
    assert "with 40 documents only, it measures --batch-size 10 instead of 32; give" in capsys.readouterr().out


SMALL = st.none() | st.integers(1, 3000)


@given(total=st.integers(1, 400_000), is_document=st.booleans(), sequence_length=SMALL, batch_size=SMALL)
@example(total=1, is_document=False, sequence_length=None, batch_size=None)
@example(total=2048 * 32 * 4, is_document=False, sequence_length=None, batch_size=None)
def test_sizes_fit_or_are_refused_with_limits_that_fit(
    total: int, is_document: bool, sequence_length: int | None, batch_size: int | None
) -> None:
    if is_document:
        sequence_length = None
    smallest = (sequence_length or 1) * (batch_size or 1)

    def chosen(length: int | None, size: int | None) -> Sizes:
        return choose_sizes(total, is_document=is_document, sequence_length=length, batch_size=size)

    if smallest > total:
        with pytest.raises(ArgumentError) as caught:
            chosen(sequence_length, batch_size)
        limits = {name: int(number.replace(",", "")) for name, number in LIMIT.findall(str(caught.value))}
        for name, limit in limits.items():
            fits = {"sequence-length": sequence_length, "batch-size": batch_size, name: limit}
            assert chosen(fits["sequence-length"], fits["batch-size"]).batch_size
            with pytest.raises(ArgumentError):
                fits[name] = limit + 1
                chosen(fits["sequence-length"], fits["batch-size"])
        return
    found = chosen(sequence_length, batch_size)
    assert total // (found.sequence_length or 1) >= found.batch_size
    assert (found.sequence_length is None) == is_document
    assert sequence_length in (None, found.sequence_length)
    assert batch_size in (None, found.batch_size)
    if total >= 4 * (sequence_length or (1 if is_document else 2048)) * (batch_size or 32):
        assert found.note is None
        default_length = None if is_document else 2048
        assert (found.sequence_length, found.batch_size) == (sequence_length or default_length, batch_size or 32)


def test_empty_data_is_nothing_to_measure() -> None:
    with pytest.raises(ArgumentError, match="nothing to measure"):
        choose_sizes(0, is_document=True)


# --- measuring --------------------------------------------------------------------------------------


def subject_of(directory: Path) -> Subject:
    import torch

    catalog = open_any(directory)
    return Subject(directory, catalog, default_format(catalog), None, 64, 4, torch.device("cpu"))


@pytest.mark.parametrize("seconds", [1, 20, 60, 200])
def test_time_is_bounded_whatever_the_settings(stream: Path, seconds: float) -> None:
    settings = [Setting("pread", 0, prefetch) for prefetch in range(30)]
    clock = Ticks()
    measured = measure(subject_of(stream), backends(), settings, seconds=seconds, cold=True, step_s=1e-6, clock=clock)
    # The measurement under way ends after the batch it waits for, a handful of looks at the clock.
    assert clock.now <= seconds + 16
    assert not measured.complete
    assert len(measured.rows) == 30


def test_a_step_that_is_longer_than_all_the_time_is_not_begun(stream: Path) -> None:
    settings = [Setting("pread", 0, 0), Setting("mmap", 0, 2)]
    measured = measure(subject_of(stream), backends(), settings, seconds=200, step_s=5000.0, clock=Ticks())
    assert [row.wait_s for row in measured.rows] == [None, None]
    assert all(row.batch_s is not None for row in measured.rows)
    assert not measured.complete
    advice = recommend(measured.rows, 5000.0)
    assert advice is not None
    assert advice.hidden is None


def test_of_one_batch_the_wait_is_for_that_one(stream: Path) -> None:
    subject = dataclasses.replace(subject_of(stream), sequence_length=1000)
    (row,) = measure(subject, backends(), [Setting("pread", 0, 0)], seconds=200, step_s=1e-4, clock=Ticks()).rows
    assert row.wait_s is not None


def test_progress_is_told_once_a_measurement(stream: Path) -> None:
    said: list[str] = []
    settings = [Setting("mmap", 0, 0), Setting("pread", 0, 1)]
    measure(
        subject_of(stream),
        backends(),
        settings,
        seconds=200,
        cold=True,
        step_s=1e-4,
        progress=said.append,
        clock=Ticks(),
    )
    assert len(said) == num_measurements(2, cold=True, step=True) == 1 + 2 * (ROUNDS + 2)


def test_a_backend_that_waits_is_measured_through_its_documented_methods(stream: Path) -> None:
    reads: list[int] = []
    waiting = LatencyBackend(gate=lambda path, offset, size: reads.append(size))
    measured = measure(subject_of(stream), {"slow": waiting}, [Setting("slow", 0, 0)], seconds=200, clock=Ticks())
    assert measured.rows[0].batch_s is not None
    # Each batch of 4 windows reads 4 windows of 128 bytes, or 5 runs where one crosses into the second shard.
    assert reads.count(64 * 2) >= 4 * measured.batches


def test_evicting_leaves_the_files_as_they_are(stream: Path) -> None:
    paths = sorted(path for path in stream.iterdir() if path.suffix == ".bin")
    before = [path.read_bytes() for path in paths]
    share = evict(paths)
    assert share is None or 0 <= share <= 1
    assert [path.read_bytes() for path in paths] == before


# --- formats and collate functions -------------------------------------------------------------------


def test_stack_keeps_what_is_no_array() -> None:
    samples = [{"a": np.arange(3) + k, "words": ["x"] * k} for k in range(2)]
    batch = stack(samples)
    assert batch["a"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert batch["words"] == [[], ["x"]]
    assert keep(samples) is samples


def test_streams_of_the_published_layout_need_a_dtype(tmp_path: Path) -> None:
    (tmp_path / "0000000.in_band.bin").write_bytes(bytes(64))
    with pytest.raises(ArgumentError, match="--dtype"):
        default_format(open_any(tmp_path))


# --- advice ------------------------------------------------------------------------------------------


def rows(times: dict[tuple[str, int, int], float], waits: dict[tuple[str, int, int], float] | None = None) -> list[Row]:
    return [Row(Setting(*key), first_s=1.0, batch_s=time, wait_s=(waits or {}).get(key)) for key, time in times.items()]


def chosen(found: Any) -> tuple[str, int, int]:
    return found.setting.backend, found.setting.workers, found.setting.prefetch


def test_nothing_measured_is_no_advice() -> None:
    assert recommend([Row(Setting("pread", 0, 0))]) is None


def test_workers_that_help_are_recommended() -> None:
    """As on a disk that makes reads wait."""
    found = recommend(rows({("pread", 0, 0): 9.0, ("pread", 0, 4): 8.0, ("pread", 1, 4): 8.0, ("pread", 4, 4): 2.0}))
    assert chosen(found) == ("pread", 4, 4)
    assert any("4.0 times as fast" in reason for reason in found.reasons)  # type: ignore[union-attr]


def test_workers_that_do_not_help_are_not() -> None:
    """As in the page cache; a little faster is noise."""
    found = recommend(rows({("mmap", 0, 0): 1.0, ("mmap", 0, 4): 1.03, ("mmap", 2, 4): 1.0, ("seek", 0, 4): 4.0}))
    assert chosen(found) == ("mmap", 0, 4)
    # Not without a word of how it was chosen: the table above has a faster one without prefetch.
    assert any("warm, prefetch above 0)" in reason for reason in found.reasons)  # type: ignore[union-attr]
    assert any("workers do not help" in reason for reason in found.reasons)  # type: ignore[union-attr]


def test_one_setting_alone_is_not_called_the_fastest() -> None:
    found = recommend(rows({("pread", 0, 0): 1.0}))
    assert found is not None
    assert found.reasons[0].startswith("no other was measured (warm)")


def test_cold_times_count_where_there_are_any() -> None:
    slow, fast = Row(Setting("mmap", 0, 4), 1, 1.0, 1, 50.0), Row(Setting("pread", 2, 4), 1, 2.0, 1, 5.0)
    assert chosen(recommend([slow, fast])) == ("pread", 2, 4)


def test_of_the_settings_that_hide_loading_the_cheapest_is_chosen() -> None:
    times = {("mmap", 0, 0): 0.5, ("mmap", 0, 4): 0.6, ("pread", 0, 4): 0.9, ("pread", 2, 8): 0.4}
    waits = {("mmap", 0, 0): 0.5, ("mmap", 0, 4): 0.001, ("pread", 0, 4): 0.01, ("pread", 2, 8): 0.0}
    found = recommend(rows(times, waits), step_s=1.0)
    assert (chosen(found), found.hidden) == (("pread", 0, 4), True)  # type: ignore[union-attr]


def test_loading_that_cannot_be_hidden_is_said() -> None:
    times = {("pread", 0, 4): 4.0, ("pread", 2, 4): 2.0}
    found = recommend(rows(times, {("pread", 0, 4): 3.0, ("pread", 2, 4): 1.0}), step_s=1.0)
    assert (chosen(found), found.hidden) == (("pread", 2, 4), False)  # type: ignore[union-attr]
    assert "not hidden" in found.reasons[0]  # type: ignore[union-attr]


def all_rows() -> Iterator[list[Row]]:
    values = (1.0, 1.02, 5.0)
    for times in itertools.product(values, repeat=4):
        yield rows(dict(zip((("seek", 0, 0), ("pread", 0, 2), ("mmap", 1, 2), ("mmap", 2, 8)), times, strict=True)))


def test_the_choice_is_never_much_slower_than_the_best_with_look_ahead() -> None:
    for measured in all_rows():
        found = recommend(measured)
        assert found is not None
        times = {row.setting: row.batch_s for row in measured if row.setting.prefetch and row.batch_s}
        assert times[found.setting] <= min(times.values()) / 0.92
