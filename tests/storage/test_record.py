"""Commit records and manifests that are not trusted: each field removed, changed, or given another type."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._base.checks import descr_of, dtype_from_descr, packed_little_endian
from guideloom._base.errors import (
    ArgumentError,
    CorruptDataError,
    DamagedRecordError,
    ForeignDataError,
    GuideLoomError,
    NewerVersionError,
)
from guideloom._storage import record as module
from guideloom._storage.local import LocalFolder
from guideloom._storage.manifest import decode_manifest, encode_manifest
from guideloom._storage.record import decode_record, encode_record, unseal
from tests.storage.support import KINDS, names, opened, record_of, resealed, write

NAME = "0000000-0000.commit.json"


def files_of(kind: Any, folder: Path) -> tuple[bytes, bytes]:
    """A record and a manifest."""
    write(kind, folder, {0: range(3), 1: range(2)})
    write(kind, folder, {1: range(5)}, "append")
    return (folder / NAME).read_bytes(), (folder / "manifest.json").read_bytes()


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the fields of a JSON value are."""
    found = [at] if at else []
    if isinstance(value, dict) and at[:1] != ("metadata",):
        for key, entry in value.items():
            found += paths_in(entry, (*at, key))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any, remove: bool = False) -> Any:
    value = copy.deepcopy(value)
    target = value
    for key in at[:-1]:
        target = target[key]
    if remove:
        del target[at[-1]]
    else:
        target[at[-1]] = new
    return value


HOSTILE = [
    None,
    True,
    -1,
    2**31,
    2**63,
    2**64,
    10**40,
    0.5,
    "",
    "x",
    "../../etc/passwd",
    "|O",
    "<i4,<i4",
    "(2,)i4",
    [],
    [[]],
    {},
    {"name": 1},
    ["<i4"],
    [["a", "O"]],
    [["a", "<i4", [2**31, 2**31, 2**31]]],
    "stream",
    "document",
    "A" * 44,
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_a_record(kind: Any, tmp_path: Path) -> None:
    data, _ = files_of(kind, tmp_path)
    value = json.loads(data)
    assert decode_record(data, NAME).count == value["count"]
    assert resealed(value) == data
    tried = 0
    for at in paths_in(value):
        if at == ("checksum",):
            continue
        with pytest.raises(DamagedRecordError, match=NAME):
            decode_record(resealed(replaced(value, at, None, remove=True)), NAME)
        original = value
        for key in at:
            original = original[key]
        # What a format's name and the user's notes may be is nobody's business but the user's.
        free = {("format",): str, ("metadata",): dict}.get(at)
        for new in [*HOSTILE, *([original + 1, original - 1] if type(original) is int else [])]:
            if (type(new) is type(original) and new == original) or (free is not None and isinstance(new, free)):
                continue
            if at == ("stride",) and type(new) is int and value["spans"] <= new < 2**31:
                continue  # the same sample, and so the same file
            if at == ("files", "payload", "size") and type(new) is int and 0 < new <= 1 << 20:
                continue  # nothing in the record contradicts it; the file's size does
            with pytest.raises((DamagedRecordError, NewerVersionError)):
                decode_record(resealed(replaced(value, at, new)), NAME)
            tried += 1
    assert tried > 300
    with pytest.raises(DamagedRecordError, match="unknown"):
        decode_record(resealed({**value, "extra": 1}), NAME)


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_a_manifest(kind: Any, tmp_path: Path) -> None:
    """What passes must be as harmless as a manifest that is right: it opens, or it is one of our errors."""
    _, data = files_of(kind, tmp_path)
    value = json.loads(data)
    assert resealed(value) == data
    harmless = {("format", "values"), ("metadata", "values"), ("pending",), ("count",), ("spans",), ("dtype",)}
    for at in paths_in(value):
        if at == ("checksum",):
            continue
        with pytest.raises(DamagedRecordError, match=r"manifest\.json"):
            decode_manifest(resealed(replaced(value, at, None, remove=True)))
        original = value
        for key in at:
            original = original[key]
        variants: list[Any] = [*HOSTILE]
        if isinstance(original, list) and original:
            variants += [original[1:], [*original, original[-1]], original[::-1], [True, *original[1:]]]
            if type(original[0]) is int:
                variants += [
                    [-1, *original[1:]],
                    [2**63, *original[1:]],
                    [2**62 + 1, *original[1:]],
                    [0.5, *original[1:]],
                ]
        if isinstance(original, str):
            variants += [original[1:], original.upper(), original[:-1] + " ", original + "00"]
        for new in variants:
            if new == original:
                continue
            hostile = resealed(replaced(value, at, new))
            if (
                at[:1] == ("metadata",)
                or at in harmless
                or at[-1] in ("index",)
                or at[0] in ("stride", "payload", "replaces")
            ):
                try:
                    decode_manifest(hostile)
                    (tmp_path / "manifest.json").write_bytes(hostile)
                    opened(kind, tmp_path)
                except (GuideLoomError, FileNotFoundError):
                    continue
            else:
                with pytest.raises((DamagedRecordError, NewerVersionError)):
                    decode_manifest(hostile)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("stream_with_meta", {"spans": 7}),  # more than its 6 elements
        ("stream_with_meta", {"spans": 0}),
        ("stream_with_meta", {"stride": 0}),
        ("stream_with_meta", {"count": 0, "spans": 0, "stride": 0}),
        ("stream", {"spans": 1}),
        ("stream", {"stride": 1}),
        ("stream", {"payload": 1}),
        ("document", {"spans": 1}),
        ("document", {"stride": 1}),
    ],
)
def test_counts_of_a_manifest_that_no_kind_allows(kind: Any, columns: dict[str, int], tmp_path: Path) -> None:
    """They decide the sizes of files: the files may be made to fit."""
    _, data = files_of(kind, tmp_path)
    value = json.loads(data)
    for key, number in columns.items():
        value[key][1] = number
    with pytest.raises(DamagedRecordError, match="'spans'"):
        decode_manifest(resealed(value))


@pytest.mark.parametrize("sums", ["!" * 12, "A" * 12, "AAAAAAAAA===", "AAAAAAAAAA=="])
def test_checksums_that_only_have_the_right_length(sums: str, tmp_path: Path) -> None:
    data, _ = files_of("stream", tmp_path)
    value = json.loads(data)
    assert len(value["files"]["elements"]["sums"]) == 12
    value["files"]["elements"]["sums"] = sums
    with pytest.raises(DamagedRecordError, match="base64 of 1 checksums"):
        decode_record(resealed(value), NAME)


@pytest.mark.parametrize("pair", [[2**31, 0], [0, 2**31], [-1, 0], [0, -1]])
def test_numbers_of_a_manifest_that_no_file_has(pair: list[int], tmp_path: Path) -> None:
    _, data = files_of("stream", tmp_path)
    with pytest.raises(DamagedRecordError, match="'pending': expected numbers from 0 to 2147483647"):
        decode_manifest(resealed({**json.loads(data), "pending": [pair]}))


def test_a_manifest_whose_first_part_replaces_others(tmp_path: Path) -> None:
    _, data = files_of("stream", tmp_path)
    with pytest.raises(DamagedRecordError, match="part 0 has nothing to replace"):
        decode_manifest(resealed({**json.loads(data), "replaces": [0, 1, 0]}))


@pytest.mark.parametrize("kind", KINDS)
def test_each_byte_of_a_file(kind: Any, tmp_path: Path) -> None:
    for data in files_of(kind, tmp_path):
        decode = (lambda flipped: decode_record(flipped, NAME)) if b"files" in data else decode_manifest
        decode(data)
        for place in range(0, len(data), 3):
            flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            with pytest.raises((DamagedRecordError, NewerVersionError)):
                decode(flipped)
            with pytest.raises(DamagedRecordError):
                decode(data[:place])
        with pytest.raises(DamagedRecordError):
            decode(data + b"\n")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_damage(data: bytes) -> None:
    for decode in (lambda: decode_record(data, NAME), lambda: decode_manifest(data)):
        with pytest.raises(DamagedRecordError):
            decode()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"guideloom": NaN}', '{"guideloom": 1' + "0" * 5000 + "}", "[]", "null", '"\ud800"', "{}"]
)
def test_json_that_is_hostile(text: str) -> None:
    with pytest.raises(DamagedRecordError):
        unseal(text.encode("utf-8", "surrogatepass"), "a path")


def test_newer_is_said_before_anything_else() -> None:
    for data in (b'{"guideloom": 3}', b'{"guideloom":3,"kind":"pixels","checksum":"no"}'):
        with pytest.raises(NewerVersionError, match=r"version 3.*upgrade"):
            decode_record(data, NAME)
        with pytest.raises(NewerVersionError):
            decode_manifest(data)


def test_names_that_are_not_ours(tmp_path: Path) -> None:
    data, _ = files_of("stream", tmp_path)
    for name in ("x.commit.json", "00000000-0000.commit.json", "0000000-00000.commit.json", "../" + NAME):
        with pytest.raises(ForeignDataError):
            decode_record(data, name)
    with pytest.raises(DamagedRecordError, match="'shard': expected 1"):
        decode_record(data, "0000001-0000.commit.json")


def test_a_record_survives_encoding(tmp_path: Path) -> None:
    for kind in KINDS:
        data, manifest = files_of(kind, tmp_path / kind)
        record = decode_record(data, NAME)
        assert encode_record(record) == (data, record.checksum)
        decoded = decode_manifest(manifest)
        assert encode_manifest(decoded.parts, decoded.pending) == manifest


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    with (tmp_path / NAME).open("r+b") as file:
        file.truncate(1 << 40)
    with (tmp_path / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedRecordError, match=str(1 << 40)):
        opened("stream", tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(DamagedRecordError, match=str(1 << 40)):
        opened("stream", tmp_path)


def test_records_of_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    write("document", tmp_path / "other", {1: [record_of("document", 1)[0]]})
    for name in names(tmp_path / "other"):
        if name.startswith("0000001"):
            (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    for listing in (True, False):
        with pytest.raises(CorruptDataError, match="two data sets"):
            opened("stream", tmp_path, listing=listing)


# --- dtypes ---

scalars = st.sampled_from(
    ["?", "i1", "u1", "<i2", ">u2", "<i8", ">f2", "<f4", ">c16", "S3", "<U2", "V5", "<M8[ns]", "m8[25s]", ">M8[D]"]
).map(np.dtype)


@st.composite
def structs(draw: Any, inner: Any) -> np.dtype[Any]:
    fields = draw(st.dictionaries(st.text(min_size=1, max_size=3), inner, min_size=1, max_size=4))
    shapes = [draw(st.lists(st.integers(1, 3), max_size=2)) for _ in fields]
    return np.dtype(
        [
            (name, dtype, tuple(shape)) if shape else (name, dtype)
            for (name, dtype), shape in zip(fields.items(), shapes, strict=True)
        ],
        align=draw(st.booleans()),
    )


@given(dtype=st.recursive(scalars, structs, max_leaves=6))
def test_dtypes_survive_json(dtype: np.dtype[Any]) -> None:
    packed = packed_little_endian(dtype)
    assert packed_little_endian(packed) == packed
    parsed = dtype_from_descr(json.loads(json.dumps(descr_of(packed))))
    assert parsed == packed and parsed.itemsize == packed.itemsize
    assert np.zeros(3, dtype).astype(packed).tobytes() == bytes(3 * packed.itemsize)


@pytest.mark.parametrize(
    "descr",
    [
        "O",
        "|O",
        "object",
        ">i4",
        "i4",
        "<i3",
        "<i4,<i4",
        "S0",
        "V0",
        "",
        "S999999999999",
        "<U4294967295",
        "<M8[lightyear]",
        "<f16",
        "<c32",
        4,
        None,
        {},
        [],
        [["", "<i4"]],
        [["a", "<i4"], ["a", "<i4"]],
        [["a"]],
        [[1, "<i4"]],
        [["a", "<i4", [0]]],
        [["a", "<i4", [-1]]],
        [["a", "<i4", 3]],
        [["a", "<i4", [True]]],
        [["a", "<i4", [2**30, 2**30]]],
        [["a", "<i4", [1] * 33]],
        [["a", [["b", "|O"]]]],
    ],
)
def test_descrs_that_are_refused(descr: Any) -> None:
    with pytest.raises(ArgumentError):
        dtype_from_descr(descr)


@pytest.mark.parametrize("descr", ["<f16", [["a", "<c32"]]])
def test_who_has_long_doubles_is_told_why_they_are_refused(descr: Any) -> None:
    with pytest.raises(ArgumentError, match="other processors read other numbers"):
        dtype_from_descr(descr)


def test_a_dtype_nested_too_deep() -> None:
    descr: Any = "<i4"
    for _ in range(200):
        descr = [["a", descr]]
    with pytest.raises(ArgumentError, match="deeper"):
        dtype_from_descr(descr)


def test_local_answers(tmp_path: Path) -> None:
    local = LocalFolder(tmp_path)
    (tmp_path / "file").write_bytes(b"0123456789")
    assert local.read_range("file", 3, 4) == b"3456"
    assert local.file_size("file") == 10 and local.file_size("none") is None and local.file_size("file/below") is None
    with pytest.raises(CorruptDataError, match="expected 4 bytes from byte 8, found 2"):
        local.read_range("file", 8, 4)
    with pytest.raises(FileNotFoundError):
        local.read_range("none", 0, 1)


def test_a_record_has_a_size_at_which_it_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = files_of("stream", tmp_path)
    record = decode_record(data, NAME)
    monkeypatch.setattr(module, "RECORD_LIMIT_BYTES", len(data))
    assert encode_record(decode_record(data, NAME))[0] == data
    monkeypatch.setattr(module, "RECORD_LIMIT_BYTES", len(data) - 1)
    with pytest.raises(DamagedRecordError, match=f"expected at most {len(data) - 1} bytes, found {len(data)}"):
        decode_record(data, NAME)
    with pytest.raises(ArgumentError, match=f"record of {len(data)} bytes: at most {len(data) - 1} are allowed"):
        encode_record(record)
