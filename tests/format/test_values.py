"""Checks of values against an oracle that works in exact Python numbers."""

from __future__ import annotations

import datetime
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guideloom._base.errors import ArgumentError, PackError
from guideloom._format.values import alignment_bytes, as_values, field_dtype

INTEGERS = [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = [f"{order}f{size}" for order in "<>" for size in (2, 4, 8)]
NUMBERS = [*INTEGERS, *FLOATS, "?"]


def holds(target: np.dtype[Any], value: Any) -> bool:
    """Whether ``target`` has a number equal to ``value`` (integers, bool), or a finite one near it (floats)."""
    if target.kind == "b":
        return bool(value == 0 or value == 1)
    if target.kind in "iu":
        if isinstance(value, float) and not math.isfinite(value):
            return False
        exact = Fraction(value)
        info = np.iinfo(target)
        return exact.denominator == 1 and int(info.min) <= exact <= int(info.max)
    return not (isinstance(value, float | int) and math.isfinite(value)) or abs(Fraction(value)) <= Fraction(
        float(np.finfo(target).max)
    )


def check(given_values: Any, target: np.dtype[Any]) -> None:
    """The first value that does not fit is named; without one, every value is kept."""
    plain = given_values.tolist() if isinstance(given_values, np.ndarray) else list(given_values)
    bad = [position for position, value in enumerate(plain) if not holds(target, value)]
    if bad:
        with pytest.raises(PackError) as caught:
            as_values(given_values, target, "tokens")
        found = re.match(rf"field 'tokens': value (.+) at position {bad[0]} does not fit (\S+), ", str(caught.value))
        assert found and found[2] == target.str
        value = plain[bad[0]]
        assert str(np.asarray(given_values)[bad[0]]) == found[1] or str(value) == found[1] or value.bit_length() > 190
        return
    kept = as_values(given_values, target, "tokens").astype(target).tolist()
    for value, back in zip(plain, kept, strict=True):
        if target.kind == "f":
            with np.errstate(over="ignore"):
                nearest = float(np.float64(value).astype(target))
            assert back == nearest or (math.isnan(back) and math.isnan(value))
        else:
            assert back == value


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.data())
def test_arrays_of_any_number_dtype(source: str, target: str, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(source, st.integers(0, 6)))
    step = data.draw(st.sampled_from([1, 2, -1]))
    check(values[::step], np.dtype(target))


@given(st.sampled_from(INTEGERS), st.data())
def test_values_at_the_limits(target: str, data: st.DataObject) -> None:
    info = np.iinfo(np.dtype(target))
    near = st.sampled_from([int(info.min) + d for d in (-2, -1, 0, 1)] + [int(info.max) + d for d in (-1, 0, 1, 2)])
    fitting = st.integers(int(info.min), int(info.max))
    check(data.draw(st.lists(st.one_of(near, fitting), max_size=6)), np.dtype(target))


@given(st.sampled_from(NUMBERS), st.lists(st.one_of(st.integers(), st.floats(), st.booleans()), max_size=6))
def test_lists_of_python_numbers(target: str, values: list[Any]) -> None:
    dtype = np.dtype(target)
    if dtype.kind == "f":
        values = [value for value in values if not isinstance(value, int) or abs(value) < 2**53]
    check(values, dtype)


def test_list_of_large_integers_keeps_every_digit() -> None:
    # NumPy alone makes rounded float64 of this list.
    assert as_values([2**63 + 1, 0], np.dtype("<u8"), "x").tolist() == [2**63 + 1, 0]
    assert as_values([2**53 + 1, 1.0], np.dtype("<i8"), "x").tolist() == [2**53 + 1, 1]


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        ([1, 65536], "<u2", "value 65536 at position 1 does not fit <u2, which holds whole numbers from 0 to 65535"),
        ([-1], "<u4", "value -1 at position 0 does not fit <u4, which holds whole numbers from 0 to 4294967295"),
        (
            np.array([0, 128]),
            "i1",
            "value 128 at position 1 does not fit |i1, which holds whole numbers from -128 to 127",
        ),
        ([0.5], "<i4", "value 0.5 at position 0 does not fit <i4, which holds whole numbers"),
        ([float("nan")], "<i4", "value nan at position 0"),
        (np.array([1.0, np.inf]), "<i8", "value inf at position 1"),
        (np.array([2.0**63]), "<i8", "value 9.223372036854776e+18 at position 0"),
        (np.array([2**56], ">i8"), "<u2", f"value {2**56} at position 0"),
        ([2**70], "<u8", f"value {2**70} at position 0"),
        ([10**80], "<u8", "value of 266 bits at position 0"),
        ([1.5], "<u2", "whole numbers from 0 to 65535: give the field a dtype that holds it, or correct the value"),
        ([10**400], "<f8", "value of 1329 bits at position 0 does not fit <f8, which holds numbers from -1.797"),
        ([1e39], "<f4", "value 1e+39 at position 0 does not fit <f4, which holds numbers from -3.40"),
        ([70000], "<f2", "value 70000 at position 0 does not fit <f2"),
        ([2], "?", "value 2 at position 0 does not fit |b1, which holds 0 and 1"),
        ([1 + 1e39j], "<c8", "value 1e+39 at position 0 does not fit <f4"),
        ([[1, 2], [3, 256]], "(2,)u1", "value 256 at position (1, 1) does not fit |u1"),
        ([b"abcd"], "S3", "does not fit |S3, which holds at most 3 bytes"),
        (["abcd"], "U3", "does not fit <U3, which holds at most 3 characters"),
        (np.array(["2020-01-01T00:00:01"], "M8[s]"), "M8[m]", "at position 0 does not fit <M8[m]"),
        (np.array([1], "m8[s]"), "M8[s]", "expected datetime64 values, got values of dtype timedelta64[s]"),
        (["1"], "<i4", "expected numbers that fit <i4, got values of dtype <U1: convert them first"),
        ([b"1"], "<f4", "expected numbers that fit <f4, got values of dtype |S1"),
        ([1, None], "<i4", "expected a number at position 1, got NoneType None"),
        (np.array([Fraction(1, 2)]), "<f8", "expected a number at position 0, got Fraction"),
        ([1j], "<f8", "expected numbers that fit <f8, got values of dtype complex128"),
        ([datetime.date(2020, 1, 1)], "M8[s]", "expected datetime64 values, got values of dtype object"),
        (
            [[1], [2, 3]],
            "<i4",
            "expected an array or a sequence, got list of rows: append row by row, or join the rows",
        ),
        (5, "<i4", "expected shape (L,), got shape () from int: give an array, or a sequence of numbers"),
        ({1, 2}, "<i4", "expected shape (L,), got shape () from set"),
        (b"\x01\x00", "<u2", 'got 2 bytes: give np.frombuffer(value, "<u2") where they are numbers of 2 bytes each'),
        (bytearray(4), "<f4", 'got 4 bytearray: give np.frombuffer(value, "<f4") where they are numbers of 4 bytes'),
        ("text", "u1", "got shape () from str: store a text as its bytes, text.encode()"),
        ([[1, 2]], "<i4", "expected shape (L,), got shape (1, 2) from list: append row by row, or reshape"),
        ([1, 2], "(2,)<i4", "expected shape (L, 2), got shape (2,) from list"),
        (np.ma.masked_equal([1, 2], 2), "<i4", "a masked array's mask cannot be stored"),
        (np.zeros(1, "V3"), "V4", "expected |V4 values, got values of dtype |V3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: Any, target: str, message: str) -> None:
    with pytest.raises(PackError) as caught:
        as_values(value, np.dtype(target), "tokens")
    assert str(caught.value).startswith("field 'tokens': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (b"\x00\xff", "u1", [0, 255]),
        (bytearray(b"\x01\x02"), "u1", [1, 2]),
        (range(3), "<i4", [0, 1, 2]),
        ([1.0, 2.0], "<i4", [1, 2]),
        ([True, False], "<i4", [1, 0]),
        ([1, 0], "?", [True, False]),
        (np.array([1, 2], object), "<u2", [1, 2]),
        ([0.1], "<f4", [float(np.float32(0.1))]),
        ([1], "<c8", [1 + 0j]),
        ([b"ab", b""], "S3", [b"ab", b""]),
        (["ab", "ü"], "U2", ["ab", "ü"]),
        (np.array([60, "NaT"], "m8[s]"), "m8[m]", [datetime.timedelta(seconds=60), None]),
        (np.ma.array([1, 2], mask=False), "<i4", [1, 2]),
        (np.array([2.0**62], ">f8"), "<i8", [2**62]),
        (np.array([255.0, 0.0]), "u1", [255, 0]),
        (np.array([-128, 127], "<f2"), "i1", [-128, 127]),
    ],
)
def test_what_fits_is_kept(value: Any, target: str, expected: list[Any]) -> None:
    assert as_values(value, np.dtype(target), "x").astype(np.dtype(target)).tolist() == expected


@pytest.mark.parametrize("target", [*NUMBERS, "(3,)<f4", "S2", "M8[s]"])
@pytest.mark.parametrize("nothing", [[], (), np.array([]), np.array([], object)])
def test_no_values_fit_anywhere(nothing: Any, target: str) -> None:
    dtype = np.dtype(target)
    assert as_values(nothing, dtype, "x").shape == (0, *dtype.shape)


def test_special_floats_are_kept() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e-300])
    kept = as_values(values, np.dtype("<f4"), "x").astype("<f4")
    np.testing.assert_array_equal(kept, np.array([np.nan, np.inf, -np.inf, 0], "<f4"))


def test_the_same_dtype_is_not_looked_at() -> None:
    values = np.arange(10, dtype="<u2")
    assert as_values(values, np.dtype("<u2"), "x") is values


def test_structured_values_are_checked_inside() -> None:
    target = np.dtype([("a", "<i2"), ("b", "<f4", (2,))])
    wide = np.zeros(3, [("a", "<i8"), ("b", "<f8", (2,))])
    wide["a"] = [1, 2, 40000]
    with pytest.raises(PackError, match=r"field 'x\.a': value 40000 at position 2 does not fit <i2"):
        as_values(wide, target, "x")
    assert as_values(wide[:2], target, "x").astype(target)["a"].tolist() == [1, 2]
    with pytest.raises(PackError, match="expected a structured array with dtype"):
        as_values(wide[["b", "a"]], target, "x")


@pytest.mark.parametrize("dtype", ["O", np.dtypes.StringDType(), "S0", "(0,)<i4", [("a", [("b", "O")])]])
def test_dtypes_without_fixed_bytes_are_refused(dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^field 'x': "):
        field_dtype("x", np.dtype(dtype))


def test_field_dtype_has_no_gaps_and_one_byte_order() -> None:
    asked = np.dtype([("a", "u1"), ("b", ">i4", (2,)), ("c", [("d", ">f8"), ("e", "?")])], align=True)
    packed = field_dtype("x", np.dtype((asked, (3,))))
    assert packed.shape == (3,)
    assert packed.base == np.dtype([("a", "u1"), ("b", "<i4", (2,)), ("c", [("d", "<f8"), ("e", "?")])])
    assert packed.base.itemsize == 1 + 8 + 9


def test_alignments_are_those_of_the_document() -> None:
    wanted = {
        "?": 1,
        "u1": 1,
        "<i2": 2,
        "<f4": 4,
        "<f8": 8,
        "<c8": 4,
        "<c16": 8,
        "S5": 1,
        "<U3": 4,
        "<M8[s]": 8,
        "V6": 1,
    }
    assert {name: alignment_bytes(np.dtype(name)) for name in wanted} == wanted
    assert alignment_bytes(np.dtype(("<f4", (3,)))) == 4
    assert alignment_bytes(np.dtype([("a", "<f8")])) == 1


@pytest.mark.parametrize("source", ["<f2", "<f4", "<f8", ">f8"])
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_at_the_limits_of_integers(source: str, target: str) -> None:
    """Each alone, since the first that does not fit hides the others."""
    dtype = np.dtype(source)
    info = np.iinfo(np.dtype(target))
    with np.errstate(over="ignore"):
        limits = [np.float64(limit).astype(dtype) for limit in (int(info.min), int(info.max), int(info.max) + 1)]
        for limit in limits:
            for value in (limit, limit - 1, limit + 1, np.nextafter(limit, dtype.type(0)), np.nextafter(limit, -limit)):
                check(np.array([0, value], dtype), np.dtype(target))


@pytest.mark.parametrize(("kind", "letters"), [("S", b"abcd"), ("U", "\u00e9bcd")])
def test_what_a_string_holds_decides_not_its_room(kind: str, letters: Any) -> None:
    target = np.dtype(f"{kind}3")
    fitting = np.array([letters[:1], letters[:3], letters[:0]], f"{kind}9")
    assert as_values(fitting, target, "word").astype(target).tolist() == fitting.tolist()
    with pytest.raises(PackError, match=r"at position 1 does not fit .*, which holds at most 3 "):
        as_values(np.array([letters[:3], letters, letters], f"{kind}9"), target, "word")
