from __future__ import annotations

from typing import Any

import pytest

import guideloom
from guideloom._format.naming import BUILT_IN, format_name, formats_agree


class Mine:
    pass


class Named:
    format_name = "tokens-v2"


class Gzipped(guideloom.DocumentJsonFormat):
    """Stores other bytes than its base."""


class Odd:
    format_name = 5


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (Mine(), "Mine"),
        (Named(), "tokens-v2"),
        (Odd(), "Odd"),
        (Gzipped(), "Gzipped"),
        (guideloom.DocumentJsonFormat(), "DocumentJsonFormat"),
        (guideloom.DocumentNumpyFormat(), "DocumentNumpyFormat"),
        (guideloom.DocumentNumpyFormat({"a": ">u2", "b": ("<f4", (3, 2))}), "DocumentNumpyFormat(a:<u2,b:<f4[3, 2])"),
    ],
)
def test_format_name(fmt: Any, name: str) -> None:
    assert format_name(fmt) == name


def test_name_of_many_fields_is_short_and_tells_them_apart() -> None:
    def name(last: str) -> str:
        return format_name(guideloom.DocumentNumpyFormat({**{f"field-{i}": "<i4" for i in range(1000)}, "last": last}))

    assert name("<i4") == name(">i4") != name("<i8")
    assert len(name("<i4")) < 300 and name("<i4").startswith("DocumentNumpyFormat(1001 fields:")


def test_built_in_names_are_all() -> None:
    assert {name for name in guideloom.__all__ if name.endswith("Format")} == BUILT_IN


@pytest.mark.parametrize(
    ("written", "asked", "agree"),
    [
        ("DocumentJsonFormat", "DocumentJsonFormat", True),
        ("DocumentJsonFormat", "DocumentPickleFormat", False),
        ("DocumentNumpyFormat(a:<u2)", "DocumentNumpyFormat(a:<u4)", False),
        ("DocumentNumpyFormat(a:<u2)", "DocumentNumpyFormat", False),
        ("Mine", "DocumentJsonFormat", True),
        ("DocumentJsonFormat", "Mine", True),
        ("Mine", "Other", True),
        ("", "DocumentJsonFormat", True),
    ],
)
def test_formats_agree(written: str, asked: str, agree: bool) -> None:
    assert formats_agree(written, asked) is agree
