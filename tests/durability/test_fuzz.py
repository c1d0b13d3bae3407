"""Records and manifests from strangers: only our errors come out, and memory stays bounded.

The test marked slow tries a hundred times as many.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guideloom._storage.manifest import decode_manifest
from guideloom._storage.names import MANIFEST
from guideloom._storage.record import decode_record, seal, unseal
from guideloom._storage.verify import verify
from guideloom.errors import CorruptDataError, DataSetError, DataSetNotFoundError, GuideLoomError, NewerVersionError
from tests.storage.support import KINDS, opened, write

NAME = "0000000-0000.commit.json"
GOLDEN = Path(__file__).parents[1] / "data" / "format-2"

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 1 << 20])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["../x", "/etc/passwd", "|O", "<i4", "V99999999999", "stream", "A" * 44, "\ud800", "\x00", "0" * 32]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@cache
def seeds() -> list[tuple[str, bytes]]:
    """Good files to change: every record and manifest of the golden data sets."""
    return [(path.name, path.read_bytes()) for path in sorted(GOLDEN.glob("*/*.json"))]


def parse(name: str, data: bytes) -> None:
    """Only these errors, which are the ones of data from strangers."""
    try:
        if name == MANIFEST:
            decode_manifest(data)
        else:
            decode_record(data, name)
    except (CorruptDataError, NewerVersionError):
        pass


def bounded(name: str, data: bytes) -> None:
    tracemalloc.start()
    try:
        parse(name, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # JSON as Python objects takes some tens of bytes for each of its own; the floor is what NumPy needs for a dtype.
    assert peak < 200 * len(data) + (4 << 20), (peak, len(data))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in pairs:
        found += places(entry, (*at, key))
    return found


def put(value: Any, at: tuple[Any, ...], new: Any) -> None:
    for key in at[:-1]:
        value = value[key]
    value[at[-1]] = new


def sealed(value: dict[str, Any]) -> bytes | None:
    """With a checksum that holds, None for what is no JSON."""
    try:
        return seal({key: entry for key, entry in value.items() if key != "checksum"})[0]
    except (ValueError, UnicodeError):
        return None


@st.composite
def changed_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good file with up to three fields changed, and a checksum that holds."""
    name, data = draw(st.sampled_from(seeds()))
    value = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(places(value)))
        new = draw(values)
        put(value, at, new)
    result = sealed(value) if isinstance(value, dict) else None
    return name, data if result is None else result


@st.composite
def cut_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good file with bytes changed, cut out or put in."""
    name, data = draw(st.sampled_from(seeds()))
    begin = draw(st.integers(0, len(data)))
    end = draw(st.integers(begin, min(len(data), begin + 40)))
    return name, data[:begin] + draw(st.binary(max_size=40)) + data[end:]


def _test_changed(case: tuple[str, bytes]) -> None:
    bounded(*case)


test_changed_fields = settings(max_examples=400)(given(changed_files())(_test_changed))


@settings(max_examples=300)
@given(cut_files())
def test_changed_bytes(case: tuple[str, bytes]) -> None:
    bounded(*case)


@settings(max_examples=200)
@given(st.binary(max_size=400), st.sampled_from([NAME, MANIFEST]))
def test_anything(data: bytes, name: str) -> None:
    bounded(name, data)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(sorted(json.loads(seeds()[0][1]))) | st.text(max_size=6), values, max_size=14))
def test_any_object_with_a_checksum(value: dict[str, Any]) -> None:
    data = sealed({"guideloom": 2, **value})
    if data is not None:
        bounded(NAME, data)
        bounded(MANIFEST, data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"guideloom":' * 50_000,
        b'{"guideloom":2,"a":' + b"9" * 100_000 + b"}",
        b'{"guideloom":2' + b',"a":1' * 50_000 + b"}",
        b"\xff\xfe{\x00}\x00",
        b'{"guideloom":2,"a":"\\ud800"}',
        b'{"guideloom":1e999}',
        b'{"guideloom":NaN}',
        b"\x00" * 100_000,
    ],
)
def test_hostile_texts(data: bytes) -> None:
    bounded(NAME, data)
    bounded(MANIFEST, data)


def test_a_size_that_is_promised_allocates_nothing() -> None:
    """2^58 documents in a record of a kilobyte: refused or believed, but never allocated."""
    name, data = next(seed for seed in seeds() if b'"kind":"document"' in seed[1] and seed[0] != MANIFEST)
    value = json.loads(data)
    value["count"] = 2**58
    value["files"]["offsets"]["size"] = 8 * (2**58 + 1)
    hostile = sealed(value)
    assert hostile is not None
    bounded(name, hostile)
    with pytest.raises(CorruptDataError, match="checksums"):
        decode_record(hostile, name)


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    """A name in a record must be the one that its numbers give, whatever lies at the place it points to."""
    write("stream", tmp_path / "data", {0: [1]})
    record = tmp_path / "data" / NAME
    value = json.loads(record.read_bytes())
    (tmp_path / "outside.bin").write_bytes(b"\0" * 8)
    for name in ("../outside.bin", str(tmp_path / "outside.bin"), "x/../../outside.bin", "", "."):
        value["files"]["elements"]["name"] = name
        hostile = sealed(value)
        assert hostile is not None
        record.write_bytes(hostile)
        (tmp_path / "data" / MANIFEST).unlink(missing_ok=True)
        with pytest.raises(CorruptDataError, match="name of the elements file"):
            opened("stream", tmp_path / "data")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(source=st.sampled_from(["stream", "documents", "spans"]), case=changed_files() | cut_files())
def test_a_folder_with_a_hostile_file(source: str, case: tuple[str, bytes]) -> None:
    """Also one of another data set. Opening and checking: a result, or one of our errors."""
    name, data = case
    with TemporaryDirectory() as folder:
        for path in (GOLDEN / source).iterdir():
            (Path(folder) / path.name).write_bytes(path.read_bytes())
        (Path(folder) / name).write_bytes(data)
        for asked in KINDS:
            for listing in (True, False):
                try:
                    opened(asked, Path(folder), listing=listing)
                except (DataSetError, GuideLoomError):
                    continue
        try:
            report = verify(Path(folder))
        except DataSetNotFoundError:
            return
        good = GOLDEN / source / name
        # But for the words of a user, everything that a record says is checked against something else.
        assert report.findings or _same_but_for_words(data, good.read_bytes())


def _same_but_for_words(one: bytes, other: bytes) -> bool:
    left, right = json.loads(one), json.loads(other)
    return all(left[key] == right[key] for key in right if key not in ("format", "metadata", "checksum", "pending"))


# --- thousands ---


def mutated(chance: random.Random, data: bytes) -> bytes:
    data = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randint(1, 30)]
            case 2:
                data[place:place] = chance.choice(
                    [b"9" * 30, b"-", b"null", b"[[[[", b'","', b"1e9", b"\\ud800", b"{}", b".."]
                )
            case 3:
                source = chance.randrange(len(data))
                data[place:place] = data[source : source + chance.randint(1, 60)]
            case _:
                digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
                if digits:
                    data[chance.choice(digits)] = chance.randint(48, 57)
        if not data:
            data = bytearray(b"{}")
    return bytes(data)


def resealed(data: bytes) -> bytes | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return sealed(value) if isinstance(value, dict) else None


def _many(num_cases: int, parse_one: Callable[[str, bytes], None]) -> None:
    chance = random.Random(20261129)
    num_sealed = 0
    for case in range(num_cases):
        name, data = seeds()[case % len(seeds())]
        hostile = mutated(chance, data)
        parse_one(name, hostile)
        # The checksum stops nearly all; who wants to hurt writes one that holds.
        again = resealed(hostile)
        if again is not None:
            num_sealed += 1
            parse_one(name, again)
    assert num_sealed > num_cases // 50


def test_mutations() -> None:
    _many(400, parse)


@pytest.mark.slow
def test_very_many_mutations() -> None:
    _many(100_000, parse)


def test_the_checksum_is_what_is_read(tmp_path: Path) -> None:
    """The fuzzing above reaches behind the checksum: what is sealed anew passes it."""
    for name, data in seeds():
        again = resealed(data)
        assert again == data
        assert unseal(data, name)["guideloom"] == 2
