"""The command: what it says of data sets of every kind, and how it says no."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom
from guideloom import DocumentNumpyFormat, DocumentStorage, StreamNumpyFormat, StreamStorage, cli
from guideloom._commands import info
from guideloom.testing import make_spans, make_stream
from tests.storage.support import Raw

TOKENS = np.dtype([("token", "<u2"), ("weight", "<f4")])

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command and return its output."""

    def run(*arguments: object) -> str:
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        return captured.out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command, which must refuse, and return the one line that it says."""

    def refused(*arguments: object) -> str:
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("guideloom: ")
        return captured.err

    return refused


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    with StreamStorage(tmp_path / "stream", StreamNumpyFormat(TOKENS)).sync_writer(metadata={"by": "me"}) as writer:
        for shard, count in enumerate((5, 0, 7)):
            token = np.arange(count) + 100 * shard
            writer.append(shard, {"token": token, "weight": token / 2})
    return tmp_path / "stream"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    with DocumentStorage(tmp_path / "documents", Raw()).sync_writer() as writer:
        writer.append(0, "grün".encode() * 300)
        writer.append(0, b"")
        writer.append(1, b"\x00\xff\x80")
    return tmp_path / "documents"


# --- info ---


def test_info_of_a_stream(run: Run, stream: Path) -> None:
    facts = json.loads(run("info", stream, "--json"))
    assert facts["kind"] == "stream"
    assert facts["layout"] == "current"
    assert facts["format"] == "StreamNumpyFormat"
    assert facts["dtype"] == [["token", "<u2"], ["weight", "<f4"]]
    assert (facts["num_shards"], facts["num_parts"], facts["count"], facts["bytes"]) == (3, 3, 12, 72)
    assert facts["identity"].startswith("v2:")
    assert facts["metadata"] == {"by": "me"}
    assert [(row["shard"], row["parts"], row["count"], row["bytes"]) for row in facts["shards"]] == [
        (0, 1, 5, 30),
        (1, 1, 0, 0),
        (2, 1, 7, 42),
    ]
    lines = run("info", stream).splitlines()
    assert ["elements", "12"] in [line.split() for line in lines]
    assert lines[-1].split() == ["2", "1", "7", "42"]


def test_info_counts_the_parts_of_a_shard(run: Run, stream: Path) -> None:
    with StreamStorage(stream, StreamNumpyFormat(TOKENS)).sync_writer(mode="append") as writer:
        writer.append(2, {"token": [1], "weight": [1.0]})
    facts = json.loads(run("info", stream, "--json"))
    assert (facts["num_shards"], facts["num_parts"], facts["count"]) == (3, 4, 13)
    assert facts["shards"][2]["parts"] == 2


def test_info_of_documents(run: Run, documents: Path) -> None:
    facts = json.loads(run("info", documents, "--json"))
    assert (facts["kind"], facts["format"], facts["dtype"], facts["count"]) == ("document", "Raw", None, 3)
    assert facts["bytes"] == (3 + 2) * 8 + 1500 + 3
    assert "documents" in run("info", documents)


def test_info_of_a_stream_with_metadata(run: Run, tmp_path: Path) -> None:
    make_spans(tmp_path / "spans", [[3, 2], [4]])
    facts = json.loads(run("info", tmp_path / "spans", "--json"))
    assert (facts["kind"], facts["count"], facts["spans"]) == ("stream_with_meta", 9, 3)
    assert [row["spans"] for row in facts["shards"]] == [2, 1]
    assert run("info", tmp_path / "spans").splitlines()[-1].split()[:4] == ["1", "1", "4", "1"]


def test_info_lists_the_first_shards_only(run: Run, tmp_path: Path) -> None:
    with DocumentStorage(tmp_path, Raw()).sync_writer() as writer:
        for shard in range(info.MAX_ROWS + 3):
            writer.append(shard, b"x")
    assert run("info", tmp_path).splitlines()[-1].startswith("... 3 more shards")
    assert len(json.loads(run("info", tmp_path, "--json"))["shards"]) == info.MAX_ROWS + 3


# --- show ---


def test_show_of_a_stream_crosses_shards_and_stops_at_the_end(run: Run, stream: Path) -> None:
    facts = json.loads(run("show", stream, 3, "--length", 4, "--json"))
    assert facts["elements"] == {"token": [3, 4, 200, 201], "weight": [1.5, 2.0, 100.0, 100.5]}
    assert facts["shards"] == [{"shard": 0, "length": 2}, {"shard": 2, "length": 2}]
    assert json.loads(run("show", stream, 10, "--json"))["elements"]["token"] == [205, 206]
    assert run("show", stream, 3, "--length", 2).splitlines()[1].split() == ["3", "3", "1.5"]


def test_show_counts_from_a_shard(run: Run, stream: Path) -> None:
    facts = json.loads(run("show", stream, 1, "--shard", 2, "--length", 1, "--json"))
    assert (facts["index"], facts["elements"]["token"]) == (6, [201])


def test_show_of_spans_gives_each_payload_once(run: Run, tmp_path: Path) -> None:
    make_spans(tmp_path, [[3, 2], [4]])
    facts = json.loads(run("show", tmp_path, 2, "--length", 4, "--json"))
    assert facts["elements"]["payload"] == [0, 1, 1, 2]
    assert [payload["shard"] for payload in facts["payloads"]] == [0, 0, 1]
    assert run("show", tmp_path, 2, "--length", 4).count("payload ") == 3


def test_show_of_a_document_gives_text_or_bytes(run: Run, documents: Path) -> None:
    facts = json.loads(run("show", documents, 0, "--bytes", 8, "--json"))
    assert facts == {"index": 0, "shard": 0, "bytes": 1500, "shown": 8, "text": "grüngr"}
    # A character that the cut divides is left out; it does not make the text binary.
    assert json.loads(run("show", documents, 0, "--bytes", 3, "--json"))["text"] == "gr"
    assert json.loads(run("show", documents, 1, "--json"))["text"] == ""
    facts = json.loads(run("show", documents, 0, "--shard", 1, "--json"))
    assert (facts["index"], facts["hex"]) == (2, "00 ff 80")
    assert run("show", documents, 2).splitlines() == ["document 2, shard 1, 3 bytes", "00 ff 80"]


def test_show_never_unpickles(run: Run, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "went-off",))

    with DocumentStorage(tmp_path / "data", guideloom.DocumentPickleFormat()).sync_writer() as writer:
        writer.append(0, Bomb())
    run("show", tmp_path / "data", 0)
    assert not (tmp_path / "went-off").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / "went-off").exists()


def test_show_prints_values_that_json_does_not_have(run: Run, tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<f4"), ("b", "S3"), ("c", "<c8"), ("d", "<i2", (2,))])
    with StreamStorage(tmp_path, StreamNumpyFormat(dtype)).sync_writer() as writer:
        writer.append(
            0,
            {
                "a": np.array([np.nan], "<f4"),
                "b": np.array([b"\xffz"], "S3"),
                "c": np.array([1 + 2j], "<c8"),
                "d": np.array([[1, 2]], "<i2"),
            },
        )
    elements = json.loads(run("show", tmp_path, 0, "--json"))["elements"]
    assert elements == {"a": ["nan"], "b": ["\\xffz"], "c": ["(1+2j)"], "d": [[1, 2]]}


# --- the published layout ---


def test_a_published_stream_needs_its_dtype(run: Run, refused: Run, tmp_path: Path) -> None:
    np.arange(6, dtype="<u2").tofile(tmp_path / "0000000.in_band.bin")
    facts = json.loads(run("info", tmp_path, "--json"))
    assert (facts["layout"], facts["count"], facts["bytes"]) == ("published-1", None, 12)
    assert facts["identity"].startswith("p1:")
    text = run("info", tmp_path)
    assert "--dtype" in text and text.splitlines()[-1].split() == ["0", "1", "unknown", "12"]
    assert json.loads(run("info", tmp_path, "--json", "--dtype", "<u2"))["count"] == 6
    assert json.loads(run("info", tmp_path, "--json", "--dtype", "[('a', '<u2'), ('b', '<u2')]"))["count"] == 3
    assert json.loads(run("show", tmp_path, 4, "--json", "--dtype", "<u2"))["elements"] == {"element": [4, 5]}
    assert "--dtype" in refused("show", tmp_path, 4)


def test_a_dtype_as_info_prints_it_can_be_given_back(run: Run, tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<u2"), ("b", [("c", "u1"), ("d", "<i4")]), ("e", "<f4", (2, 3))])
    with StreamStorage(tmp_path / "new", StreamNumpyFormat(dtype)).sync_writer() as writer:
        writer.append(0, np.zeros(5, dtype))
    printed = json.loads(run("info", tmp_path / "new", "--json"))["dtype"]
    (tmp_path / "old").mkdir()
    np.zeros(5, dtype).tofile(tmp_path / "old" / "0000000.in_band.bin")
    facts = json.loads(run("info", tmp_path / "old", "--json", "--dtype", json.dumps(printed)))
    assert (facts["count"], facts["dtype"]) == (5, printed)


def test_published_documents_need_nothing(run: Run, tmp_path: Path) -> None:
    np.array([0, 2, 5], "<i8").tofile(tmp_path / "0000000.out_of_band.index")
    (tmp_path / "0000000.out_of_band.bin").write_bytes(b"abcde")
    facts = json.loads(run("info", tmp_path, "--json"))
    assert (facts["kind"], facts["count"]) == ("document", 2)
    assert json.loads(run("show", tmp_path, 1, "--json"))["text"] == "cde"


# --- refusals ---


def test_what_is_no_data_set_is_refused_in_one_line(refused: Run, tmp_path: Path) -> None:
    assert "does not exist" in refused("info", tmp_path / "nothing")
    assert "holds no files" in refused("info", tmp_path)
    make_stream(tmp_path / "parent" / "train", [3])
    assert f"as in: guideloom info {tmp_path / 'parent' / 'train'}" in refused("info", tmp_path / "parent")
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt" in refused("info", tmp_path)
    assert "found a file" in refused("info", tmp_path / "notes.txt")


def test_a_damaged_data_set_is_refused_with_its_place(refused: Run, stream: Path) -> None:
    (elements,) = stream.glob("0000002-*.elements.bin")
    elements.write_bytes(elements.read_bytes()[:-1])
    assert elements.name in refused("info", stream)
    (record,) = stream.glob("0000000-*.commit.json")
    record.write_bytes(b"{}")
    assert record.name in refused("show", stream, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((12,), "[0, 12)"),
        ((-1,), "[0, 12)"),
        ((5, "--shard", 0), "[0, 5)"),
        ((0, "--shard", 3), "[0, 3)"),
        ((0, "--length", -1), "--length"),
        ((0, "--bytes", -1), "--bytes"),
        ((0, "--dtype", "<i8"), "<i8"),
    ],
)
def test_arguments_outside_are_refused(refused: Run, stream: Path, arguments: tuple[object, ...], words: str) -> None:
    assert words in refused("show", stream, *arguments)


def test_documents_refuse_a_dtype(refused: Run, documents: Path) -> None:
    assert "--dtype" in refused("info", documents, "--dtype", "<u2")


@pytest.mark.parametrize("text", ["nonsense", "[('a'", "[1, 2]", "__import__('os')", "[__import__('os')]"])
def test_a_dtype_that_is_none_is_a_usage_error(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["info", str(tmp_path), "--dtype", text])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "expected a dtype ('<u2', or a list of fields as info prints it" in said
    assert f"found {text!r}" in said


@pytest.mark.parametrize(
    "text", ["[['a']]", "[['a', '<u2', 2]]", "[['a', '<u2', [2], 1]]", "[['a', ['b', 1]]]", "[[1, 2]]"]
)
def test_fields_of_another_form_are_a_usage_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["info", str(tmp_path), "--dtype", text])
    assert caught.value.code == 2


def test_an_unknown_option_is_answered_with_the_options_of_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["show", str(tmp_path), "0", "--lenght", "3"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "usage: guideloom show" in said
    assert "guideloom show: error: unrecognized arguments: --lenght 3" in said
    with pytest.raises(SystemExit) as caught:
        cli.main(["--lenght"])
    assert caught.value.code == 2


# --- as a program ---


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "guideloom", *arguments], capture_output=True, text=True
    )


def test_the_module_answers() -> None:
    result = program()
    assert (result.returncode, result.stderr) == (0, "")
    assert "info" in result.stdout
    assert "show" in result.stdout


def test_the_version_is_the_packages() -> None:
    assert program("--version").stdout == f"guideloom {guideloom.__version__}\n"
    script = Path(sys.executable).with_name("guideloom")
    result = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"guideloom {guideloom.__version__}\n")


def test_an_error_has_no_traceback(tmp_path: Path) -> None:
    result = program("info", str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["f\u00f6lder", "f\udcfflder"])
def test_letters_that_the_output_cannot_show_come_as_escapes(tmp_path: Path, name: str) -> None:
    with DocumentStorage(tmp_path / name, Raw()).sync_writer() as writer:
        writer.append(0, "caf\u00e9".encode())
    for arguments in (["info", tmp_path / name], ["show", tmp_path / name, "0"]):
        for encoding, text in (("ascii", "caf\\xe9"), ("utf-8:strict", "caf\u00e9")):
            command = [sys.executable, "-m", "guideloom", *arguments]
            result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
            assert (result.returncode, result.stderr) == (0, b"")
            assert arguments[0] == "info" or result.stdout.decode().endswith(f"5 bytes\n{text}\n")


INTERRUPTED = """
import runpy, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "guideloom._commands.show":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--version"]
runpy.run_module("guideloom", run_name="__main__")
"""


def test_ctrl_c_while_the_command_is_imported_gives_no_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "\nguideloom: interrupted\n")


def test_output_that_is_closed_is_no_error(stream: Path) -> None:
    command = f"{sys.executable} -W error -m guideloom verify {stream} >&-"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error(stream: Path) -> None:
    command = f"{sys.executable} -W error -m guideloom info {stream} --json | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""


# --- show, of documents of arrays ---


NUMPY_FORMATS = [
    {"tokens": "<u2"},
    {"tokens": "<u2", "scores": ("<f4", (3,))},
    {"when": "<M8[ns]", "word": "<U5", "flag": "?"},
    None,
]


@pytest.mark.parametrize("fields", NUMPY_FORMATS)
def test_show_gives_the_arrays_of_a_document(run: Run, tmp_path: Path, fields: dict[str, Any] | None) -> None:
    fmt = DocumentNumpyFormat(fields)
    given = {name: np.dtype(dtype) for name, dtype in (fields or {"image": "<i4", "x": "<f8"}).items()}
    arrays = {name: np.zeros(5, dtype.base) for name, dtype in given.items() if not dtype.shape}
    arrays |= {name: np.ones((5, *dtype.shape), dtype.base) for name, dtype in given.items() if dtype.shape}
    with DocumentStorage(tmp_path / "d", fmt).sync_writer() as writer:
        writer.append(0, arrays)
    shown = json.loads(run("show", tmp_path / "d", 0, "--json", "--length", 2))["arrays"]
    assert {name: (facts["dtype"], facts["shape"]) for name, facts in shown.items()} == {
        name: (array.dtype.str, list(array.shape)) for name, array in arrays.items()
    }
    assert all(len(facts["values"]) == 2 for facts in shown.values())


def test_show_says_arrays_in_words(run: Run, tmp_path: Path) -> None:
    with DocumentStorage(tmp_path / "d", DocumentNumpyFormat({"a": "<u2", "b": ("<f4", (2,))})).sync_writer() as writer:
        writer.append(0, {"a": np.arange(40), "b": [[0.5, 1.0]]})
    text = run("show", tmp_path / "d", 0, "--length", 3)
    assert text == "document 0, shard 0, 104 bytes\na: <u2 [40]: 0 1 2 ...\nb: <f4 [1, 2]: 0.5 1.0\n"


def test_show_of_arrays_that_do_not_fit_says_so_and_gives_bytes(run: Run, tmp_path: Path) -> None:
    fmt = DocumentNumpyFormat({"a": "<u4"})
    fmt.pack = lambda data: b"\x00\x01\x02"  # type: ignore[method-assign]
    with DocumentStorage(tmp_path / "d", fmt).sync_writer() as writer:
        writer.append(0, {})
    text = run("show", tmp_path / "d", 0)
    assert "00 01 02" in text
    assert "a multiple of 4 bytes" in text


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (DocumentNumpyFormat({"a": "<u2"}).format_name, True),
        (DocumentNumpyFormat({"a": ("<u2", (2, 3)), "b": "S7"}).format_name, True),
        (DocumentNumpyFormat().format_name, True),
        (DocumentNumpyFormat({"a": [("x", "<u2")]}).format_name, False),
        (DocumentNumpyFormat({f"field{n}": "<u2" for n in range(40)}).format_name, False),
        (DocumentNumpyFormat({"a:<u2,b": "<u2", "c,d": "<u2"}).format_name, False),
        ("DocumentNumpyFormat(a:<u2,)", False),
        ("DocumentNumpyFormat(a:<O8)", False),
        ("DocumentNumpyFormat(a:|S0)", False),
        ("DocumentNumpyFormat(a:<u2[-1])", False),
        ("DocumentNumpyFormat(a:<u2[0])", False),
        (f"DocumentNumpyFormat(a:<u2[{10**30}])", False),
        ("DocumentNumpyFormat(a:<u2[1, , 2])", False),
        ("DocumentNumpyFormat(a:<u2[9999999999])", False),
        ("DocumentNumpyFormat()", False),
        ("MyDocumentNumpyFormat(a:<u2)", False),
        ("DocumentJsonFormat", False),
        ("", False),
    ],
)
def test_a_format_is_found_by_its_name_or_not_at_all(name: str, known: bool) -> None:
    found = DocumentNumpyFormat.from_format_name(name)
    assert (found is not None) == known
    assert found is None or found.format_name == name
