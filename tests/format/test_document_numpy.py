from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guideloom import DocumentNumpyFormat
from guideloom._base.errors import ArgumentError, CorruptDataError, PackError
from guideloom.types import DocumentStorageFormat

FIELDS: dict[str, Any] = {"tokens": "<u2", "flag": "?", "scores": ("<f4", (3,)), "when": "<M8[s]"}
DOCUMENT = {
    "tokens": np.array([1, 2, 3], "<u2"),
    "flag": np.array([True]),
    "scores": np.array([[0.5, 1, 2]], "<f4"),
    "when": np.array([5], "<M8[s]"),
}
DTYPES = hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0)


def buffer(encoded: Any) -> memoryview:
    return memoryview(bytearray(encoded))


@pytest.mark.parametrize("fields", [None, FIELDS, {"tokens": "<u2"}])
def test_is_a_document_format(fields: Any) -> None:
    assert isinstance(DocumentNumpyFormat(fields), DocumentStorageFormat)


@given(
    st.dictionaries(
        st.text(max_size=5), st.tuples(DTYPES, st.sampled_from([(), (2,), (3, 1)])), min_size=1, max_size=4
    ),
    st.data(),
)
def test_round_trip_with_fields(fields: dict[str, Any], data: st.DataObject) -> None:
    fmt = DocumentNumpyFormat(fields)
    document = {
        name: data.draw(hnp.arrays(dtype, (data.draw(st.integers(0, 4)), *inner)))
        for name, (dtype, inner) in fields.items()
    }
    encoded = buffer(fmt.pack(document))
    back = fmt.unpack(encoded, 0)
    assert list(back) == list(fields)
    for name, array in back.items():
        assert array.dtype == fmt.fields[name].base and array.shape == document[name].shape  # type: ignore[index]
        assert array.tobytes() == document[name].astype(array.dtype).tobytes()
        if array.size:
            assert np.shares_memory(array, np.frombuffer(encoded, np.uint8))


@given(st.dictionaries(st.text(max_size=5), DTYPES, max_size=4), st.data())
def test_round_trip_without_fields(names: dict[str, Any], data: st.DataObject) -> None:
    document = {
        name: data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3)))
        for name, dtype in names.items()
    }
    encoded = buffer(DocumentNumpyFormat().pack(document))
    back = DocumentNumpyFormat().unpack(encoded, 0)
    assert list(back) == list(document)
    for name, array in back.items():
        little = document[name].dtype.newbyteorder("<")
        assert array.dtype == little and array.shape == document[name].shape
        assert array.tobytes() == document[name].astype(little).tobytes()


def test_golden_bytes_with_fields() -> None:
    encoded = DocumentNumpyFormat(FIELDS).pack(DOCUMENT)
    assert bytes(encoded) == (
        struct.pack("<4q", 3, 1, 1, 1)
        + b"\x01\x00\x02\x00\x03\x00"  # 32: tokens
        + b"\x01"  # 38: flag
        + b"\x00"  # to a multiple of 4
        + b"\x00\x00\x00\x3f\x00\x00\x80\x3f\x00\x00\x00\x40"  # 40: scores
        + b"\x00" * 4  # to a multiple of 8
        + b"\x05"
        + b"\x00" * 7  # 56: when
    )


def test_structured_arrays_without_fields() -> None:
    rows = np.array([(1, [2, 3])], np.dtype([("x", ">i4"), ("y", "<f4", (2,))], align=True))
    back = DocumentNumpyFormat().unpack(buffer(DocumentNumpyFormat().pack({"rows": rows})), 0)["rows"]
    assert back.dtype == np.dtype([("x", "<i4"), ("y", "<f4", (2,))])
    assert back["x"].tolist() == [1] and back["y"].tolist() == [[2, 3]]


def test_golden_bytes_of_a_single_field() -> None:
    assert bytes(DocumentNumpyFormat({"tokens": "<u2"}).pack({"tokens": [1, 258]})) == b"\x01\x00\x02\x01"
    assert bytes(DocumentNumpyFormat({"tokens": "<u2"}).pack({"tokens": []})) == b""


def test_golden_bytes_without_fields() -> None:
    encoded = DocumentNumpyFormat().pack({"x": np.array([[1], [2]], ">u2"), "y": np.float64(0.5)})
    table = b'[["x","<u2",[2,1]],["y","<f8",[]]]'
    assert bytes(encoded) == (
        struct.pack("<q", len(table)) + table + b"\x01\x00\x02\x00" + b"\x00" * 2 + struct.pack("<d", 0.5)
    )
    assert len(table) == 34


def test_a_single_field_of_the_stored_dtype_is_not_copied() -> None:
    tokens = np.arange(5, dtype="<u2")
    encoded = DocumentNumpyFormat({"tokens": "<u2"}).pack({"tokens": tokens})
    assert np.shares_memory(np.frombuffer(encoded, np.uint8), tokens)


@pytest.mark.parametrize("fields", [None, FIELDS, {"tokens": "<u2"}])
def test_views_are_writable_if_the_buffer_is(fields: Any) -> None:
    fmt = DocumentNumpyFormat(fields)
    encoded = bytes(fmt.pack({name: DOCUMENT[name] for name in fields or DOCUMENT}))
    assert fmt.unpack(bytearray(encoded), 0)["tokens"].flags.writeable
    assert not fmt.unpack(memoryview(encoded), 0)["tokens"].flags.writeable


def test_buffers_that_are_not_aligned() -> None:
    encoded = bytearray(b"\x00") + DocumentNumpyFormat(FIELDS).pack(DOCUMENT)
    back = DocumentNumpyFormat(FIELDS).unpack(memoryview(encoded)[1:], 0)
    assert back["scores"].tolist() == [[0.5, 1, 2]]


def test_ragged_attributes_only_with_one_field() -> None:
    one = DocumentNumpyFormat({"scores": (">f4", (3,))})
    assert one.ragged_name == "scores" and one.ragged_dtype == np.dtype(("<f4", (3,)))
    for fmt in (DocumentNumpyFormat(), DocumentNumpyFormat(FIELDS)):
        assert not hasattr(fmt, "ragged_name") and not hasattr(fmt, "ragged_dtype")


# --- arguments and records ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected a mapping such as"),
        ([("a", "<i4")], "expected a mapping such as"),
        ({1: "<i4"}, "expected strings as names of fields, got int 1"),
        ({"a": "nonsense"}, "field 'a': expected a dtype, got 'nonsense'"),
        ({"a": None}, "field 'a': expected a dtype, got None"),
        ({"a": "O"}, "field 'a': elements of dtype object cannot be stored"),
        ({"a": "<f16"}, "field 'a': elements of dtype float128 cannot be stored: other processors"),
        ({"a": ("<i4", (0,))}, "field 'a': an inner shape of"),
    ],
)
def test_fields_that_cannot_be(fields: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DocumentNumpyFormat(fields)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"tokens": [65536], "scores": np.zeros((0, 3))},
            "field 'tokens': value 65536 at position 0 does not fit <u2, which holds",
        ),
        ({"tokens": [1], "scores": [1.0]}, r"field 'scores': expected shape \(L, 3\), got shape \(1,\)"),
        ({"tokens": [1]}, "got one without 'scores'"),
        ({"tokens": [1], "scores": [], "x": []}, "with 'x' besides"),
        ([1], "expected a mapping with the fields 'tokens', 'scores', got list"),
    ],
)
def test_documents_that_do_not_fit(data: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        DocumentNumpyFormat({"tokens": "<u2", "scores": ("<f4", (3,))}).pack(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "expected a mapping name -> array, got list"),
        ({1: np.zeros(1)}, "expected strings as names of arrays, got int 1"),
        ({"a": [1]}, "field 'a': expected a NumPy array, got list: make it one with the dtype you mean"),
        ({"a": "text"}, r"got str: store its bytes, np\.frombuffer\(text\.encode\(\), np\.uint8\)"),
        ({"a": b"bytes"}, r"got bytes: store its bytes, np\.frombuffer\(it, np\.uint8\)"),
        ({"a": np.zeros(1, np.clongdouble)}, "field 'a': elements of dtype complex256 cannot be stored"),
        ({"a": np.array([None])}, "field 'a': elements of dtype object cannot be stored"),
        ({"a": np.array(["x"], np.dtypes.StringDType())}, "field 'a': elements of dtype StringDType"),
        ({"a": np.ma.masked_equal([1], 1)}, "field 'a': a masked array's mask cannot be stored"),
        ({"\ud800": np.zeros(1)}, "expected names of arrays that UTF-8 can encode"),
    ],
)
def test_documents_that_cannot_say_what_they_hold(data: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        DocumentNumpyFormat().pack(data)


@pytest.mark.parametrize("fields", [None, FIELDS, {"tokens": "<u2"}, {"p": [("a", "<i4"), ("b", "?")]}])
def test_picklable_with_a_repr_that_makes_it_again(fields: Any) -> None:
    fmt = DocumentNumpyFormat(fields)
    again = pickle.loads(pickle.dumps(fmt))
    assert again.fields == fmt.fields and repr(again) == repr(fmt) and "\n" not in repr(fmt)
    assert eval(repr(fmt)).fields == fmt.fields


# --- payloads that are damaged, or of another format ---------------------------------------------------


def described(table: Any, data: bytes = b"") -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<q", len(text)) + text + data


TWO = DocumentNumpyFormat({"a": "<u2", "b": "<i4"})
HOSTILE = [
    (DocumentNumpyFormat({"a": "<i4"}), b"12345", "a multiple of 4 bytes"),
    (TWO, b"", "at least the 16 bytes of 2 lengths"),
    (TWO, bytes(15), "at least the 16 bytes of 2 lengths"),
    (TWO, struct.pack("<2q", -1, 0), "field 'a' within its 16 bytes, found length -1"),
    (TWO, struct.pack("<2q", 2**62, 0), f"found length {2**62} of <u2 at byte 16"),
    (TWO, struct.pack("<2q", 0, 2**63 - 1), "field 'b' within"),
    (TWO, struct.pack("<2q", 1, 0) + bytes(3), "field 'b' within its 19 bytes"),
    (TWO, struct.pack("<2q", 1, 1) + bytes(7), "field 'b' within its 23 bytes"),
    (DocumentNumpyFormat(), b"", "at least 8 bytes"),
    (DocumentNumpyFormat(), struct.pack("<q", 1), "a table within 8 bytes, found one that ends at byte 9"),
    (DocumentNumpyFormat(), struct.pack("<q", -1), "a table within 8 bytes"),
    (DocumentNumpyFormat(), struct.pack("<q", 2**63 - 1), "a table within 8 bytes"),
    (DocumentNumpyFormat(), described(b"\xff"), "a table of arrays in JSON"),
    (DocumentNumpyFormat(), described(b"[" * 100_000), "a table of arrays in JSON"),
    (DocumentNumpyFormat(), described({}), "found JSON of type dict"),
    (DocumentNumpyFormat(), described([1]), "rows of"),
    (DocumentNumpyFormat(), described([["a", "<i4", [True]]], bytes(4)), "rows of"),
    (DocumentNumpyFormat(), described([["a", "<i4", [-1]]]), "rows of"),
    (DocumentNumpyFormat(), described([["a", "|O8", [1]]], bytes(8)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", "O", [1]]], bytes(8)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", ">i4", [1]]], bytes(4)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", "<i3", [1]]], bytes(3)), "plain dtypes"),
    (
        DocumentNumpyFormat(),
        described([["a", "|S9999999999", [1]]], bytes(3)),
        "plain dtypes, found a dtype that is too large",
    ),
    (DocumentNumpyFormat(), described([["a", "<M8[zz]", [1]]], bytes(8)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", "|u1", [1] * 65]], bytes(1)), "shapes that NumPy can represent"),
    (DocumentNumpyFormat(), described([["a", "|u1", [2**40, 2**40]]], bytes(1)), "field 'a' within"),
    (DocumentNumpyFormat(), described([["a", [["x", "|O8"]], [1]]], bytes(8)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", 5, [1]]], bytes(8)), "plain dtypes"),
    (DocumentNumpyFormat(), described([["a", "|u1", [0, 2**62, 2**62]]]), "shapes that NumPy can represent"),
    (DocumentNumpyFormat(), described([["a", "|u1", [0, 2**70]]]), "shapes that NumPy can represent"),
    (DocumentNumpyFormat(), described([["a", "|u1", [1]], ["a", "|u1", [1]]], bytes(2)), "distinct names"),
    (DocumentNumpyFormat(), described([["a", "|u1", [1]]], bytes(2)), "bytes in all"),
]


@pytest.mark.parametrize(("fmt", "payload", "message"), HOSTILE)
def test_damaged_documents(fmt: DocumentNumpyFormat, payload: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message) as caught:
        fmt.unpack(memoryview(payload), 3)
    assert caught.value.shard == 3


@given(st.sampled_from([None, FIELDS]), st.data())
def test_any_bytes_give_a_document_inside_the_buffer_or_an_error(fields: Any, data: st.DataObject) -> None:
    fmt = DocumentNumpyFormat(fields)
    encoded = bytearray(fmt.pack(DOCUMENT))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.integers(0, len(encoded))) :]
    whole = np.frombuffer(encoded, np.uint8)
    try:
        document = fmt.unpack(memoryview(encoded), 0)
    except CorruptDataError:
        return
    for array in document.values():
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        first = whole.__array_interface__["data"][0]
        assert not array.size or first <= low <= high <= first + whole.size
