from __future__ import annotations

import dataclasses
import math
import pickle
import sys
import threading
from typing import Any, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom import DocumentJsonFormat, DocumentMsgpackFormat, DocumentPickleFormat
from guideloom._base.errors import ArgumentError, CorruptDataError, PackError
from guideloom.types import DocumentStorageFormat

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=8,
)
MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=8,
)


class Doc(msgspec.Struct):
    id: int
    tokens: memoryview
    tags: list[str] = []


@dataclasses.dataclass
class Plain:
    name: str
    size: int


class Typed(TypedDict):
    name: str
    size: int


class Gone:
    """Unpickled after its module lost it."""


@pytest.mark.parametrize("fmt", [DocumentPickleFormat(), DocumentJsonFormat(), DocumentMsgpackFormat(Any)])
def test_is_a_document_format(fmt: Any) -> None:
    assert fmt.format_name == type(fmt).__name__
    assert isinstance(fmt, DocumentStorageFormat)


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        (DocumentPickleFormat(), "DocumentPickleFormat()"),
        (DocumentJsonFormat(), "DocumentJsonFormat()"),
        (DocumentMsgpackFormat(Doc), "DocumentMsgpackFormat(Doc)"),
        (DocumentMsgpackFormat(dict[str, int], verify=False), "DocumentMsgpackFormat(dict[str, int], verify=False)"),
    ],
)
def test_picklable_with_a_short_repr(fmt: Any, text: str) -> None:
    assert repr(pickle.loads(pickle.dumps(fmt))) == text


def test_each_docstring_says_whether_it_is_safe() -> None:
    assert DocumentPickleFormat.__doc__ and DocumentPickleFormat.__doc__.startswith("NOT safe on data from strangers")
    for kind in (DocumentJsonFormat, DocumentMsgpackFormat):
        assert kind.__doc__ and "Safe on data from strangers." in kind.__doc__ and "Cost:" in kind.__doc__


@given(JSON, st.booleans())
def test_json_round_trip(data: Any, view: bool) -> None:
    fmt = DocumentJsonFormat()
    encoded = bytearray(fmt.pack(data))
    assert fmt.unpack(memoryview(encoded) if view else encoded, 0) == data


@given(MSGPACK, st.booleans())
def test_msgpack_round_trip(data: Any, view: bool) -> None:
    fmt = DocumentMsgpackFormat(Any)
    encoded = bytearray(fmt.pack(data))
    back = fmt.unpack(memoryview(encoded) if view else encoded, 0)
    assert repr(back) == repr(data)


@given(MSGPACK)
def test_pickle_round_trip(data: Any) -> None:
    fmt = DocumentPickleFormat()
    assert repr(fmt.unpack(memoryview(bytearray(fmt.pack(data))), 0)) == repr(data)


def test_golden_bytes() -> None:
    assert DocumentJsonFormat().pack({"b": [1, 0.5, None], "a": "ü"}) == '{"b":[1,0.5,null],"a":"ü"}'.encode()
    assert DocumentMsgpackFormat(Typed).pack({"name": "a", "size": 300}) == b"\x82\xa4name\xa1a\xa4size\xcd\x01\x2c"
    assert DocumentPickleFormat().pack(None) == b"\x80\x05N."


# --- JSON ---------------------------------------------------------------------------------------------


def circular() -> list[Any]:
    data: list[Any] = []
    data.append(data)
    return data


def deep(levels: int = 200_000) -> list[Any]:
    data: list[Any] = []
    for _ in range(levels):
        data = [data]
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (math.nan, "NaN and infinities have no JSON form"),
        ([math.inf], "NaN and infinities have no JSON form"),
        ({"a": np.arange(2)}, r"got dict: .*ndarray.*\.tolist\(\)"),
        ({1, 2}, "got set"),
        ("\ud800", "surrogates not allowed"),
        ({1: "a"}, "expected only strings as keys, got int 1: convert it"),
        ([{"a": ({None: 1},)}], "expected only strings as keys, got NoneType None"),
        (circular(), "Circular|circular"),
        (deep(), "got list"),
    ],
)
def test_json_refuses_what_would_not_come_back(data: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        DocumentJsonFormat().pack(data)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"NaN", b"[Infinity]", b'"\xff"', b"1 2", b"\xef\xbb\xbf1", b"[" * 200_000, b"9" * 5000]
)
def test_json_damaged(payload: bytes) -> None:
    with pytest.raises(CorruptDataError, match="expected a document that is JSON in UTF-8") as caught:
        DocumentJsonFormat().unpack(memoryview(payload), 7)
    assert caught.value.shard == 7 and caught.value.__cause__ is not None


# --- MessagePack --------------------------------------------------------------------------------------


def test_msgpack_struct_has_zero_copy_fields() -> None:
    fmt = DocumentMsgpackFormat(Doc)
    encoded = bytearray(fmt.pack(Doc(1, memoryview(np.arange(4, dtype="<u2").tobytes()), ["x"])))
    back = fmt.unpack(memoryview(encoded), 0)
    assert (back.id, back.tags) == (1, ["x"])
    tokens = np.frombuffer(back.tokens, "<u2")
    assert tokens.tolist() == [0, 1, 2, 3]
    assert np.shares_memory(tokens, np.frombuffer(encoded, np.uint8))


@pytest.mark.parametrize(
    ("schema", "data"), [(Plain, Plain("a", 1)), (Typed, {"name": "a", "size": 1}), (dict[str, list[int]], {"a": [1]})]
)
def test_msgpack_schemas(schema: Any, data: Any) -> None:
    fmt = pickle.loads(pickle.dumps(DocumentMsgpackFormat(schema)))
    assert fmt.unpack(bytearray(fmt.pack(data)), 0) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Plain("a", "b"),  # type: ignore[arg-type]
            r"expected a document of the schema Plain, got Plain: Expected `int`, got `str` - at `\$.size`",
        ),
        ({"name": "a"}, "missing required field `size`"),
        (object(), "got object: Encoding objects of type object is unsupported"),
        (2**70, "got int"),
        ("\ud800", "surrogates not allowed"),
        (circular(), "recursion|Stack overflow"),
    ],
)
def test_msgpack_refuses_what_the_schema_would(data: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        DocumentMsgpackFormat(Plain).pack(data)


def test_msgpack_without_verification_finds_out_at_reading() -> None:
    fmt = DocumentMsgpackFormat(Plain, verify=False)
    with pytest.raises(CorruptDataError, match="missing required field `size`"):
        fmt.unpack(bytearray(fmt.pack({"name": "a"})), 0)


@pytest.mark.parametrize(
    "payload", [b"", b"\x82", b"\x01", b"\x81\xa4name\xa1\xff", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 200_000]
)
@pytest.mark.parametrize("schema", [Plain, list])
def test_msgpack_damaged(schema: Any, payload: bytes) -> None:
    with pytest.raises(CorruptDataError, match="expected a document that is MessagePack of the schema") as caught:
        DocumentMsgpackFormat(schema).unpack(memoryview(payload), 7)
    assert caught.value.shard == 7 and caught.value.__cause__ is not None


def test_msgpack_unknown_schema() -> None:
    with pytest.raises(ArgumentError, match="expected a schema that msgspec can decode"):
        DocumentMsgpackFormat(5)


def test_msgpack_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ArgumentError, match="not installed: pip install msgspec") as caught:
        DocumentMsgpackFormat(Plain)
    assert isinstance(caught.value.__cause__, ImportError)


# --- pickle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [threading.Lock(), lambda: None, deep()])
def test_pickle_refuses_what_cannot_be_pickled(data: Any) -> None:
    with pytest.raises(PackError, match=f"can be pickled, got {type(data).__name__}") as caught:
        DocumentPickleFormat().pack(data)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80",
        b"\x80\x05",
        b"garbage",
        b"\x80\x05h\x05.",
        b"\x80\xff.",
        b"0.",
        b"Iabc\n.",
        b"\x80\x05X\xff\xff\xff\x7f.",
    ],
)
def test_pickle_damaged(payload: bytes) -> None:
    with pytest.raises(CorruptDataError, match="expected a document that is a pickle") as caught:
        DocumentPickleFormat().unpack(memoryview(payload), 7)
    assert caught.value.shard == 7 and caught.value.__cause__ is not None


def test_pickle_of_a_class_that_is_not_here() -> None:
    encoded = b"\x80\x05c" + b"guideloom_no_such_module\nGone\n."
    with pytest.raises(ModuleNotFoundError) as caught:
        DocumentPickleFormat().unpack(memoryview(encoded), 7)
    assert "document of shard 7: its class must be importable here" in caught.value.__notes__[0]
