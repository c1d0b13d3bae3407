"""What a user reads who opens the wrong thing: class and words of the error, through each backend and reader."""

from __future__ import annotations

import asyncio
import json
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import (
    DocumentDataset,
    DocumentJsonFormat,
    DocumentPickleFormat,
    DocumentStorage,
    StreamDataset,
    StreamNumpyFormat,
    StreamStorage,
    StreamWithMetaStorage,
    errors,
)
from guideloom.io import SeekIO
from guideloom.testing import (
    Fault,
    FaultBackend,
    IdDocumentFormat,
    IdSpanFormat,
    IdStreamFormat,
    MinimalBackend,
    make_documents,
    make_spans,
    make_stream,
)
from tests.sweeps.support import BACKENDS

ALIEN = (
    "NoneType",
    "invalid literal",
    "object has no attribute",
    "not subscriptable",
    "values to unpack",
    "struct.error",
)


def open_error(storage: Any, expected: type[BaseException], *, asynchronous: bool = False) -> str:
    """The message of what opening raises; no words of Python's inside it."""
    with pytest.raises(expected) as caught:
        if asynchronous:
            asyncio.run(storage.async_reader().open())
        else:
            storage.sync_reader().open()
    message = str(caught.value)
    assert isinstance(caught.value, errors.GuideLoomError | OSError)
    assert not any(word in message for word in ALIEN), message
    return message


MAKE = {
    "StreamStorage": lambda folder: make_stream(folder, (3, 2)),
    "DocumentStorage": lambda folder: make_documents(folder, (3, 2)),
    "StreamWithMetaStorage": lambda folder: make_spans(folder, [[3], [2]]),
}
OPEN = {
    "StreamStorage": lambda folder, backend: StreamStorage(folder, IdStreamFormat(), backend),
    "DocumentStorage": lambda folder, backend: DocumentStorage(folder, IdDocumentFormat(), backend),
    "StreamWithMetaStorage": lambda folder, backend: StreamWithMetaStorage(folder, IdSpanFormat(), backend),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("written", MAKE)
@pytest.mark.parametrize("opened", OPEN)
def test_one_kind_opened_as_another(
    opened: str, written: str, backend: str, asynchronous: bool, tmp_path: Path
) -> None:
    MAKE[written](tmp_path)
    storage = OPEN[opened](tmp_path, BACKENDS[backend]())
    if opened == written:
        storage.sync_reader().open()
        return
    message = open_error(storage, errors.WrongKindError, asynchronous=asynchronous)
    assert opened in message and written in message and str(tmp_path) in message, message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["StreamStorage", "StreamWithMetaStorage"])
def test_another_dtype(kind: str, backend: str, tmp_path: Path) -> None:
    MAKE[kind](tmp_path)
    storage = (
        StreamStorage(tmp_path, IdStreamFormat("<u2"), BACKENDS[backend]())
        if kind == "StreamStorage"
        else StreamWithMetaStorage(tmp_path, IdSpanFormat("<u2"), BACKENDS[backend]())
    )
    message = open_error(storage, errors.WrongKindError)
    assert "u2" in message and "i8" in message, message


def test_other_fields(tmp_path: Path) -> None:
    make_stream(tmp_path, (3,), [("tokens", "<i4"), ("mask", "?")])
    for fields in ([("tokens", "<i4")], [("mask", "?"), ("tokens", "<i4")], [("words", "<i4"), ("mask", "?")]):
        message = open_error(StreamStorage(tmp_path, StreamNumpyFormat(np.dtype(fields))), errors.WrongKindError)
        assert "mask" in message and "tokens" in message, message


def test_a_dtype_that_differs_in_byte_order_or_padding_only_is_the_same(tmp_path: Path) -> None:
    make_stream(tmp_path, (3,), [("tokens", "<i4"), ("mask", "?")])
    aligned = np.dtype([("tokens", "<i4"), ("mask", "?")], align=True)
    with StreamStorage(tmp_path, StreamNumpyFormat(aligned)).sync_reader() as reader:
        assert reader.read(0, 3)["tokens"].tolist() == [0, 1, 2]


def test_another_document_format(tmp_path: Path) -> None:
    with DocumentStorage(tmp_path, DocumentPickleFormat()).sync_writer() as writer:
        writer.append(0, {"a": 1})
    message = open_error(DocumentStorage(tmp_path, DocumentJsonFormat()), errors.WrongKindError)
    assert "DocumentPickleFormat" in message and "DocumentJsonFormat" in message, message


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", OPEN)
def test_nothing_there(kind: str, backend: str, asynchronous: bool, tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        storage = OPEN[kind](folder, BACKENDS[backend]())
        message = open_error(storage, errors.DataSetNotFoundError, asynchronous=asynchronous)
        assert "no data set" in message and str(folder) in message, message
        with pytest.raises(FileNotFoundError):
            storage.sync_reader().open()


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("backend", ["seek", "pread", "mmap"])
def test_other_files_there(kind: str, backend: str, tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    message = open_error(OPEN[kind](tmp_path, BACKENDS[backend]()), errors.ForeignDataError)
    assert "readme.txt" in message, message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", OPEN)
def test_a_file_in_place_of_the_folder(kind: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"12345678")
    message = open_error(OPEN[kind](path, BACKENDS[backend]()), (OSError, errors.ForeignDataError))  # type: ignore[arg-type]
    assert str(path) in message, message


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("operation", ["open", "read"])
def test_without_permission(operation: Any, asynchronous: bool, tmp_path: Path) -> None:
    # A backend that refuses: a folder's mode does not stop the super-user.
    make_stream(tmp_path, (3,))
    backend = FaultBackend(None, Fault(PermissionError(13, "Permission denied"), operation=operation, times=None))
    storage = StreamStorage(tmp_path, IdStreamFormat(), backend)
    assert "Permission denied" in open_error(storage, PermissionError, asynchronous=asynchronous)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", OPEN)
def test_a_writer_that_has_not_finished(kind: str, backend: str, tmp_path: Path) -> None:
    storage = OPEN[kind](tmp_path, BACKENDS[backend]())
    with storage.sync_writer():
        message = open_error(storage, errors.DataSetNotFoundError)
        assert str(tmp_path) in message, message


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_file_removed_or_resized_is_found_at_open(backend: str, tmp_path: Path) -> None:
    for kind, make in MAKE.items():
        make(tmp_path / kind)
        for victim in sorted((tmp_path / kind).glob("*.bin")):
            content = victim.read_bytes()
            for change in (content[:-1], content + b"\0", None):
                if change is None:
                    victim.unlink()
                elif change != content:
                    victim.write_bytes(change)
                else:
                    continue
                wanted = errors.MissingShardError if change is None else errors.CorruptDataError
                message = open_error(OPEN[kind](tmp_path / kind, BACKENDS[backend]()), wanted)
                assert victim.name in message, message
            victim.write_bytes(content)
        OPEN[kind](tmp_path / kind, BACKENDS[backend]()).sync_reader().open()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_damaged_record_is_found_at_open(backend: str, tmp_path: Path) -> None:
    make_stream(tmp_path, (3, 2))
    (tmp_path / "manifest.json").unlink()
    record = tmp_path / "0000001-0000.commit.json"
    good = record.read_text()
    for bad in (
        good[:-2],
        good.replace('"count":2', '"count":1').replace('"count": 2', '"count": 1'),
        "{}",
        "[]",
        "\0",
        "",
    ):
        assert bad != good
        record.write_text(bad)
        message = open_error(StreamStorage(tmp_path, IdStreamFormat(), BACKENDS[backend]()), errors.DamagedRecordError)
        assert record.name in message, message
    newer = json.loads(good)
    newer["guideloom"] = 3
    record.write_text(json.dumps(newer))
    message = open_error(StreamStorage(tmp_path, IdStreamFormat(), BACKENDS[backend]()), errors.NewerVersionError)
    assert "3" in message and record.name in message, message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_damaged_manifest_is_found_and_a_missing_one_done_without(backend: str, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (3, 2), read_interface=BACKENDS[backend]())
    manifest = tmp_path / "manifest.json"
    good = manifest.read_text()
    manifest.unlink()
    with storage.sync_reader() as reader:
        assert reader.total_length == 5
    for bad in (good[:-2], "{}", "\0"):
        manifest.write_text(bad)
        assert "manifest.json" in open_error(storage, errors.DamagedRecordError)


# --- arguments ---------------------------------------------------------------------------------


def test_arguments_of_a_storage(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: StreamStorage(str(tmp_path), IdStreamFormat()), "Path"),  # type: ignore[arg-type]
        (lambda: StreamStorage(None, IdStreamFormat()), "Path"),  # type: ignore[arg-type]
        (lambda: StreamStorage(tmp_path, IdStreamFormat), "IdStreamFormat"),  # type: ignore[arg-type]
        (lambda: StreamStorage(tmp_path, IdDocumentFormat()), "IdDocumentFormat"),  # type: ignore[arg-type]
        (lambda: StreamStorage(tmp_path, None), "format"),  # type: ignore[arg-type]
        (lambda: StreamStorage(tmp_path, IdStreamFormat(), SeekIO), "SeekIO"),  # type: ignore[arg-type]
        (lambda: StreamStorage(tmp_path, IdStreamFormat(), "seek"), "backend"),  # type: ignore[arg-type]
        (lambda: StreamWithMetaStorage(tmp_path, IdStreamFormat()), "IdStreamFormat"),  # type: ignore[arg-type]
        (lambda: DocumentStorage(tmp_path, np.dtype("<i4")), "format"),  # type: ignore[arg-type]
        (lambda: StreamDataset(tmp_path, 8), "StreamStorage"),  # type: ignore[arg-type]
        (lambda: DocumentDataset(None), "DocumentStorage"),  # type: ignore[arg-type]
    ]
    for make, word in cases:
        with pytest.raises((TypeError, ValueError), match=word) as caught:
            make()
        assert not any(alien in str(caught.value).replace("NoneType", "") for alien in ALIEN), str(caught.value)


class WholeSpansFormat:
    """Spans that come whole, and no element by element."""

    stream_dtype = np.dtype("<i4")

    def pack_spans(self, data: Any) -> Any:
        return data

    def unpack(self, *arguments: Any) -> Any:
        return arguments


FORMATS_OF = {
    "StreamStorage": (StreamStorage, [IdStreamFormat(), StreamNumpyFormat([("a", "<i4")])]),
    "StreamWithMetaStorage": (StreamWithMetaStorage, [IdSpanFormat(), WholeSpansFormat()]),
    "DocumentStorage": (DocumentStorage, [IdDocumentFormat(), DocumentJsonFormat(), DocumentPickleFormat()]),
}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("DocumentStorage", "StreamStorage"),
        ("DocumentStorage", "StreamWithMetaStorage"),
        ("StreamStorage", "DocumentStorage"),
        ("StreamWithMetaStorage", "StreamStorage"),
        ("StreamWithMetaStorage", "DocumentStorage"),
    ],
)
def test_a_format_of_another_kind_is_refused_by_the_storage(asked: str, given: str, tmp_path: Path) -> None:
    """When it is made, and not only at the first append; the message names the storage that the format is for."""
    make: Any = FORMATS_OF[asked][0]
    for storage_format in FORMATS_OF[given][1]:
        with pytest.raises(errors.ArgumentError) as caught:
            make(tmp_path, storage_format)
        message, name = str(caught.value), type(storage_format).__name__
        assert f"expected a format for {asked}, found {name}" in message and f"use {given}" in message, message
    for storage_format in FORMATS_OF[asked][1]:
        make(tmp_path, storage_format)


def test_a_format_that_is_for_no_storage(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match=r"lacks pack, unpack: give .* guideloom\.types"):
        DocumentStorage(tmp_path, object())  # type: ignore[arg-type]
    lacking = type("Lacking", (), {"stream_dtype": np.dtype("<i4"), "pack": len})()
    with pytest.raises(errors.ArgumentError, match=r"lacks unpack: give .* guideloom\.types"):
        StreamStorage(tmp_path, lacking)


def test_a_pure_path_works_through_a_backend_of_one_s_own(tmp_path: Path) -> None:
    make_stream(tmp_path, (3, 2))
    pure = pathlib.PurePosixPath(tmp_path)
    storage = StreamStorage(pure, IdStreamFormat(), MinimalBackend())
    with storage.sync_reader() as reader:
        assert reader.read(0, 5).elements.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="Path"), storage.sync_writer():
        pass


def test_a_short_read_of_a_backend_is_an_error(tmp_path: Path) -> None:
    make_stream(tmp_path, (300,))
    backend = FaultBackend(None, Fault(short_by=8, match="*.elements.bin", times=None))
    with (
        StreamStorage(tmp_path, IdStreamFormat(), backend).sync_reader() as reader,
        pytest.raises((IndexError, OSError, errors.DataSetError)) as caught,
    ):
        reader.read(0, 10)
    assert "elements.bin" in str(caught.value), str(caught.value)


def test_an_error_of_a_backend_reaches_the_caller_as_itself(tmp_path: Path) -> None:
    make_stream(tmp_path, (300,))
    backend = FaultBackend(None, Fault(OSError(5, "Input/output error"), match="*.elements.bin"))
    with StreamStorage(tmp_path, IdStreamFormat(), backend).sync_reader() as reader:
        with pytest.raises(OSError, match="Input/output error") as caught:
            reader.read(0, 10)
        assert caught.value.errno == 5
        assert reader.read(0, 3).elements.tolist() == [0, 1, 2]
