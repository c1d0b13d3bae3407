"""Data sets of the published 1.x layout open read-only, with the content they were written with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentStorage, StreamDataset, StreamNumpyFormat, StreamStorage, StreamWithMetaStorage
from guideloom.testing import naive_window
from tests.sweeps.support import BACKENDS, READ

SAMPLES = Path(__file__).parents[1] / "data" / "published-1.1"


@pytest.fixture(scope="module")
def expected() -> Any:
    return json.loads((SAMPLES / "expected.json").read_text())


class Raw:
    def pack(self, data: Any) -> Any:
        return data

    def unpack(self, encoded: Any, shard: int) -> tuple[int, str]:
        return shard, bytes(encoded).hex()


class Meta:
    stream_dtype = np.dtype("<i4")

    def size(self, data: Any) -> int:
        return 0

    def pack(self, data: Any) -> Any:
        raise AssertionError("the published layout is never written")

    def unpack(self, stream: Any, shard: Any, index: Any, data: Sequence[Any]) -> list[tuple[int, int, str]]:
        assert (shard.dtype, index.dtype, stream.dtype) == (np.int64, np.int32, np.dtype("<i4"))
        return [(int(e), int(shard[i]), bytes(data[i]).hex()) for e, i in zip(stream, index, strict=True)]


def stream_storage(folder: Path, expected: Any, backend: str = "seek") -> StreamStorage:
    dtype = np.dtype([(name, code) for name, code in expected["stream"]["dtype"]])
    return StreamStorage(folder, StreamNumpyFormat(dtype), read_interface=BACKENDS[backend]())


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
def test_stream(backend: str, reader: str, expected: Any) -> None:
    shards = expected["stream"]["shards"]
    storage = stream_storage(SAMPLES / "stream", expected, backend)
    assert READ[reader](storage, [(shard,) for shard in range(3)], "length") == [257, 0, 100]
    requests = [(0, 357), (250, 20), (356, 3), (5, 0), (300, 800)]
    for (index, length), window in zip(requests, READ[reader](storage, requests), strict=True):
        for name, code in expected["stream"]["dtype"]:
            wanted = np.array(naive_window([shard[name] for shard in shards], index, length), code)
            assert window[name].dtype == np.dtype(code)
            np.testing.assert_array_equal(window[name], wanted)


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
def test_documents(backend: str, reader: str, expected: Any) -> None:
    shards = expected["documents"]["shards"]
    wanted = [(shard, text) for shard, documents in enumerate(shards) for text in documents]
    storage = DocumentStorage(SAMPLES / "documents", Raw(), read_interface=BACKENDS[backend]())
    assert READ[reader](storage, [(0,), (1,)], "length") == [len(documents) for documents in shards]
    assert READ[reader](storage, [(i,) for i in range(len(wanted))]) == wanted
    request = [9, 0, 2, 2, 4, 7]
    assert list(READ[reader](storage, [(request,)], "read_many")[0]) == [wanted[i] for i in request]


def meta_elements(expected: Any) -> list[list[tuple[int, int, str]]]:
    return [
        [
            (token, shard, record["payload"][span])
            for record in records
            for token, span in zip(record["tokens"], record["span"], strict=True)
        ]
        for shard, records in enumerate(expected["stream_with_meta"]["shards"])
    ]


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize("backend", BACKENDS)
def test_stream_with_meta(backend: str, reader: str, expected: Any) -> None:
    shards = meta_elements(expected)
    storage = StreamWithMetaStorage(SAMPLES / "stream_with_meta", Meta(), read_interface=BACKENDS[backend]())
    total = sum(map(len, shards))
    with storage.sync_reader() as stream:
        assert stream.total_length == total
    requests = [(0, total), (total - 1, 3), (90, 12), (10, 0), (17, 2 * total)]
    requests += [(i, 7) for i in range(total)]
    for (index, length), window in zip(requests, READ[reader](storage, requests), strict=True):
        assert window == naive_window(shards, index, length), (index, length)


def test_the_identity_follows_the_content(expected: Any, tmp_path: Path) -> None:
    identities = []
    for name in ("a", "b", "changed"):
        shutil.copytree(SAMPLES / "stream", tmp_path / name)
        (tmp_path / name / "0000002.in_band.bin").chmod(0o600)
    data = bytearray((tmp_path / "changed" / "0000002.in_band.bin").read_bytes())
    data[350] ^= 1
    (tmp_path / "changed" / "0000002.in_band.bin").write_bytes(data)
    for name in ("a", "b", "changed"):
        with stream_storage(tmp_path / name, expected).sync_reader() as reader:
            identities.append(reader.identity)
    assert identities[0] == identities[1] != identities[2]
    assert identities[0].startswith("p1:")


def test_windows_as_a_data_set(expected: Any) -> None:
    tokens = naive_window([shard["tokens"] for shard in expected["stream"]["shards"]], 0, 357)
    with StreamDataset(stream_storage(SAMPLES / "stream", expected), 50).sync_reader() as reader:
        assert len(reader) == 7
        assert [window["tokens"].tolist() for window in reader[::-2]] == [
            tokens[i : i + 50] for i in (300, 200, 100, 0)
        ]


@pytest.mark.parametrize("backend", ["seek", "pread", "advice", "mmap"])
def test_index_arithmetic_of_huge_files(backend: str, tmp_path: Path) -> None:
    count = 2**40 + 3
    marks = {0: 11, 2**31 - 1: 12, 2**31: 13, 2**32 + 1: 14, 2**40: 15, count - 1: 16}
    with open(tmp_path / "0000000.in_band.bin", "wb") as file:
        file.truncate(count * 4)
        for index, value in marks.items():
            file.seek(index * 4)
            file.write(np.int32(value).tobytes())
    storage = StreamStorage(
        tmp_path, StreamNumpyFormat(np.dtype([("tokens", "<i4")])), read_interface=BACKENDS[backend]()
    )
    with storage.sync_reader() as reader:
        assert reader.total_length == count
        for index, value in marks.items():
            assert reader.read(index, 1)["tokens"].tolist() == [value]
            assert reader.read(max(index - 1, 0), 3)["tokens"].tolist().count(value) == 1
        assert reader.read(count - 1, 2)["tokens"].tolist() == [16, 11]
