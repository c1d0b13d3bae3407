from __future__ import annotations

import dataclasses
import math
import pickle
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guideloom import DocumentNumpyFormat, StreamNumpyFormat
from guideloom._base.errors import ArgumentError, PackError
from guideloom.types import StreamStorageFormat

NOTHING = np.zeros(0, np.int64)
TOKENS = np.dtype([("tokens", "<i4")])
THREE = np.dtype([("tokens", "<u2"), ("mask", "?"), ("weight", "<f4", (2,))])


@dataclasses.dataclass
class Record:
    tokens: npt.NDArray[Any]


class Pair(NamedTuple):
    tokens: npt.NDArray[Any]
    mask: npt.NDArray[Any]


class Typed(TypedDict):
    tokens: npt.NDArray[Any]


def test_is_a_stream_format() -> None:
    assert isinstance(StreamNumpyFormat(TOKENS), StreamStorageFormat)
    assert StreamNumpyFormat(TOKENS).format_name == "StreamNumpyFormat"


@given(hnp.array_dtypes(hnp.scalar_dtypes(), min_size=1, max_size=4), st.integers(0, 5), st.data())
def test_round_trip(dtype: np.dtype[Any], length: int, data: st.DataObject) -> None:
    """Any structured dtype, any byte order, strided columns: what comes back is what a plain loop would store."""
    fmt = StreamNumpyFormat(dtype)
    rows = data.draw(hnp.arrays(dtype, length))
    stream = fmt.pack({name: rows[name] for name in dtype.names or ()})
    assert stream.dtype == fmt.stream_dtype and stream.shape == (length,)
    window = fmt.unpack(stream, NOTHING, NOTHING)
    assert list(window) == list(dtype.names or ())
    for name, column in window.items():
        assert column.tobytes() == rows[name].astype(fmt.stream_dtype[name].base).tobytes()


@pytest.mark.parametrize("length", [0, 1, 5])
def test_golden_bytes(length: int) -> None:
    stream = StreamNumpyFormat(THREE).pack(
        {"tokens": list(range(length)), "mask": [True] * length, "weight": [[0.5, 2]] * length}
    )
    assert stream.tobytes() == b"".join(bytes([i, 0, 1]) + b"\x00\x00\x00\x3f\x00\x00\x00\x40" for i in range(length))


def test_a_single_field_of_the_stored_dtype_is_not_copied() -> None:
    tokens = np.arange(8, dtype="<i4")
    assert np.shares_memory(StreamNumpyFormat(TOKENS).pack({"tokens": tokens}), tokens)


@pytest.mark.parametrize(
    "tokens", [np.arange(16, dtype="<i4")[::2], np.arange(8, dtype=">i4"), np.arange(8), list(range(8))]
)
def test_other_inputs_are_converted(tokens: Any) -> None:
    stream = StreamNumpyFormat(TOKENS).pack({"tokens": tokens})
    assert stream.dtype == TOKENS and stream["tokens"].tolist() == list(tokens)


@pytest.mark.parametrize(
    "stored", [TOKENS, np.dtype([("tokens", "<i4", (3,))]), np.dtype([("tokens", "<M8[s]")])], ids=str
)
def test_what_need_not_be_checked_is_taken_as_what_is(stored: np.dtype[Any]) -> None:
    """The short way for a dict with one column that is stored as it is, against the long way for any mapping."""

    def outcome(pack: Any, given: Any) -> Any:
        try:
            return pack(given).tobytes()
        except PackError as error:
            return str(error)

    dtypes = ["<i4", ">i4", "<u4", "<i8", "<f4", "<U1", "<M8[s]"]
    shapes: list[tuple[int, ...]] = [(0,), (4,), (0, 3), (2, 3), (4, 1), ()]
    for dtype, shape, step, names in product(dtypes, shapes, [1, 2, -1], [["tokens"], ["other"], ["tokens", "other"]]):
        values = (np.arange(math.prod(shape)) * (2**31 - 1) // 6).astype(dtype).reshape(shape)
        record = dict.fromkeys(names, values[::step] if shape else values)
        for fmt in (StreamNumpyFormat(stored), DocumentNumpyFormat({"tokens": stored[0]})):
            assert outcome(fmt.pack, record) == outcome(fmt.pack, MappingProxyType(record)), (dtype, shape, step, names)


def test_read_only_input() -> None:
    tokens = np.frombuffer(b"\x01\x00\x00\x00", "<i4")
    assert StreamNumpyFormat(TOKENS).pack({"tokens": tokens})["tokens"].tolist() == [1]


def test_unpack_gives_views() -> None:
    stream = np.zeros(4, THREE)
    window = StreamNumpyFormat(THREE).unpack(stream, NOTHING, NOTHING)
    assert type(window) is dict
    assert window["weight"].shape == (4, 2)
    assert all(np.shares_memory(column, stream) for column in window.values())


def test_dtype_is_stored_little_endian_and_packed() -> None:
    asked = np.dtype([("a", "u1"), ("b", ">i4")], align=True)
    fmt = StreamNumpyFormat(asked)
    assert fmt.stream_dtype == np.dtype([("a", "u1"), ("b", "<i4")])
    assert fmt.requested_dtype == asked
    assert fmt.pack({"a": [1], "b": [258]}).tobytes() == bytes([1, 2, 1, 0, 0])
    assert StreamNumpyFormat(TOKENS).stream_dtype == np.dtype([("tokens", "<i4")])


@pytest.mark.parametrize("dtype", ["<f16", ">f16", "<c32", ("<f16", (2,)), [("inner", "<f16")]])
def test_long_doubles_are_refused(dtype: Any) -> None:
    """What x86 writes, other processors would take for other numbers."""
    with pytest.raises(ArgumentError, match="cannot be stored: other processors read other numbers"):
        StreamNumpyFormat([("a", dtype)])


@pytest.mark.parametrize("data_type", [dict, Typed])
def test_data_type_makes_the_mapping(data_type: Any) -> None:
    fmt = StreamNumpyFormat(TOKENS, data_type)
    window = fmt.unpack(fmt.pack({"tokens": [1, 2]}), NOTHING, NOTHING)
    assert window["tokens"].tolist() == [1, 2]


def test_data_type_may_be_a_class_and_its_instances_are_packed() -> None:
    fmt = StreamNumpyFormat(TOKENS, Record)
    record = fmt.unpack(fmt.pack(Record(np.arange(3))), NOTHING, NOTHING)
    assert isinstance(record, Record) and record.tokens.tolist() == [0, 1, 2]
    pair = StreamNumpyFormat(np.dtype([("tokens", "<i4"), ("mask", "?")]), Pair)
    assert pair.unpack(pair.pack(Pair(np.arange(2), np.ones(2, bool))), NOTHING, NOTHING).mask.tolist() == [True, True]


def test_structured_array_is_taken_as_a_record() -> None:
    rows = np.array(
        [(1, True, (1, 2)), (3, False, (3, 4))], [("tokens", "<i8"), ("mask", "?"), ("weight", "<f8", (2,))]
    )
    assert StreamNumpyFormat(THREE).pack(rows)["weight"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "dtype", ["<i4", np.dtype("<i4"), np.int32, np.dtype([]), "nonsense", [("a", "O")], ("<i4", (3,))]
)
def test_only_structured_dtypes_of_fixed_width(dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=r"structured dtype|field 'a': .* hold references") as caught:
        StreamNumpyFormat(dtype)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("data_type", ["dict", 5])
def test_data_type_must_be_callable(data_type: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a callable such as dict"):
        StreamNumpyFormat(TOKENS, data_type)


def test_data_type_must_take_the_fields() -> None:
    with pytest.raises(ArgumentError, match="data_type Record does not take the fields tokens, mask"):
        StreamNumpyFormat(np.dtype([("tokens", "<i4"), ("mask", "?")]), Record)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"tokens": [1], "mask": [True]},
            "expected a record with the fields 'tokens', 'mask', 'weight', got one without 'weight'",
        ),
        (
            {"tokens": [1], "mask": [1], "weights": [[1, 2]]},
            "got one without 'weight' and with 'weights' besides: give it exactly these",
        ),
        ({"tokens": [1], "mask": [1], "weight": [[1, 2]], "ids": [1]}, "got one with 'ids' besides"),
        ([1, 2], "expected a mapping with the fields 'tokens', 'mask', 'weight', got list"),
        (np.arange(3), "expected a mapping with the fields 'tokens', 'mask', 'weight', got ndarray"),
        (
            {"tokens": [1, 2], "mask": [True], "weight": [[1, 2], [3, 4]]},
            "expected fields of equal length, a value .*, got: 'tokens' has 2, 'mask' has 1, 'weight' has 2",
        ),
        ({"tokens": [1, 65536], "mask": [1, 1], "weight": [[1, 2]] * 2}, "field 'tokens': value 65536 at position 1"),
        ({"tokens": [1], "mask": [1], "weight": [1]}, r"field 'weight': expected shape \(L, 2\), got shape \(1,\)"),
    ],
)
def test_records_that_do_not_fit(data: Any, message: str) -> None:
    with pytest.raises(PackError, match=message):
        StreamNumpyFormat(THREE).pack(data)


def test_data_type_instance_without_a_field() -> None:
    record = Record(np.arange(2))
    del record.tokens
    with pytest.raises(PackError, match="without 'tokens'"):
        StreamNumpyFormat(TOKENS, Record).pack(record)


@pytest.mark.parametrize("data_type", [None, dict, Record])
def test_picklable_with_a_short_repr(data_type: Any) -> None:
    fmt = StreamNumpyFormat(TOKENS, data_type)
    again = pickle.loads(pickle.dumps(fmt))
    assert again.stream_dtype == TOKENS and again.data_type is data_type
    more = "" if data_type is None else f", {data_type.__name__}"
    assert repr(again) == f"StreamNumpyFormat([('tokens', '<i4')]{more})"
