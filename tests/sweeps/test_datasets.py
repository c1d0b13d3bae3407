"""Data sets through the public interface: items, lengths and slices of any step, sync and async."""

from __future__ import annotations

import asyncio
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom import DocumentDataset, StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom._plan.order import make_order
from guideloom.errors import ArgumentError
from guideloom.testing import make_documents, make_spans, make_stream
from guideloom.testing.strategies import shard_counts, slices
from tests.sweeps.support import BACKENDS


def items(dataset: Any, keys: list[Any]) -> list[Any]:
    with dataset.sync_reader() as reader:
        return [reader[key] for key in keys]


def items_async(dataset: Any, keys: list[Any]) -> list[Any]:
    async def main() -> list[Any]:
        async with dataset.async_reader() as reader:
            return list(await asyncio.gather(*(reader[key] for key in keys)))

    return asyncio.run(main())


ITEMS = {"sync": items, "async": items_async}


def length(dataset: Any) -> int:
    with dataset.sync_reader() as reader:
        return len(reader)


def naive_windows(total: int, sequence_length: int, overlap: int = 0) -> list[list[int]]:
    windows = []
    start = 0
    while start + sequence_length + overlap <= total:
        windows.append(list(range(start, start + sequence_length + overlap)))
        start += sequence_length
    return windows


def ids(window: Any) -> list[int]:
    return window.elements.tolist()


@pytest.mark.parametrize("reader", ITEMS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_every_window_length(overlap: int, backend: str, reader: str, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, (4, 0, 7), read_interface=BACKENDS[backend]())
    for sequence_length in range(1, 13):
        dataset = StreamDataset(storage, sequence_length, overlap=overlap)
        expected = naive_windows(11, sequence_length, overlap)
        assert length(dataset) == len(expected), (sequence_length, overlap)
        found = ITEMS[reader](dataset, list(range(len(expected))))
        assert [ids(window) for window in found] == expected


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_slice_of_windows(data: st.DataObject) -> None:
    counts = data.draw(shard_counts(max_count=20))
    sequence_length = data.draw(st.integers(1, 4))
    expected = naive_windows(sum(counts), sequence_length)
    key = data.draw(slices(len(expected)))
    with tempfile.TemporaryDirectory() as folder:
        dataset = StreamDataset(make_stream(Path(folder), counts), sequence_length)
        for read in ITEMS.values():
            (found,) = read(dataset, [key])
            assert [ids(window) for window in found] == expected[key]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_slice_of_documents(data: st.DataObject) -> None:
    counts = data.draw(shard_counts())
    key = data.draw(slices(sum(counts)))
    with tempfile.TemporaryDirectory() as folder:
        dataset = DocumentDataset(make_documents(Path(folder), counts))
        for read in ITEMS.values():
            (found,) = read(dataset, [key])
            assert [document.id for document in found] == list(range(sum(counts)))[key]


def test_windows_of_spans(tmp_path: Path) -> None:
    dataset = StreamDataset(make_spans(tmp_path, [[2, 1], [], [3, 2]]), 3, overlap=1)
    assert length(dataset) == 2
    first, second = items(dataset, [0, 1])
    assert (ids(first), first.spans, first.shards) == ([0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 2])
    assert (ids(second), second.spans) == ([3, 4, 5, 6], [2, 2, 2, 3])
    assert [ids(window) for window in items(dataset, [slice(None, None, -1)])[0]] == [ids(second), ids(first)]


@pytest.mark.parametrize("reader", ITEMS)
@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_integer_indexes(kind: str, reader: str, tmp_path: Path) -> None:
    if kind == "stream":
        dataset: Any = StreamDataset(make_stream(tmp_path, (10,)), 2)
        first = lambda item: ids(item)[0] // 2  # noqa: E731
    else:
        dataset = DocumentDataset(make_documents(tmp_path, (2, 3)))
        first = lambda item: item.id  # noqa: E731
    assert [first(item) for item in ITEMS[reader](dataset, [0, 4, np.int16(3)])] == [0, 4, 3]
    for index in (-1, 5, 6, -5, 2**70):
        with pytest.raises(IndexError, match=str(index)):
            ITEMS[reader](dataset, [index])
    for wrong in (1.0, "1", None, (0, 1)):
        with pytest.raises((TypeError, ValueError)):
            ITEMS[reader](dataset, [wrong])
    with pytest.raises(ValueError, match="zero"):
        ITEMS[reader](dataset, [slice(None, None, 0)])


def test_slices_give_sequences(tmp_path: Path) -> None:
    dataset = StreamDataset(make_stream(tmp_path, (10,)), 2)
    for read in ITEMS.values():
        (found,) = read(dataset, [slice(1, 4)])
        assert len(found) == 3 and ids(found[0]) == [2, 3] and ids(found[-1]) == [6, 7]
        assert len(read(dataset, [slice(3, 3)])[0]) == 0


@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_len_before_open_is_a_runtime_error(kind: str, tmp_path: Path) -> None:
    dataset: Any
    if kind == "stream":
        dataset = StreamDataset(make_stream(tmp_path, (10,)), 2)
    else:
        dataset = DocumentDataset(make_documents(tmp_path, (5,)))
    reader = dataset.sync_reader()
    for use in (lambda: len(reader), lambda: reader[0], lambda: len(dataset.async_reader())):
        with pytest.raises(RuntimeError, match="open"):
            use()
    with reader:
        assert len(reader) == 5
    with pytest.raises(RuntimeError, match="open"):
        len(reader)

    async def main() -> None:
        other = dataset.async_reader()
        with pytest.raises(RuntimeError, match="open"):
            await other[0]
        async with other:
            assert len(other) == 5
        with pytest.raises(RuntimeError, match="open"):
            len(other)

    asyncio.run(main())


def test_iterating_a_reader_ends(tmp_path: Path) -> None:
    with StreamDataset(make_stream(tmp_path, (10,)), 2).sync_reader() as reader:
        assert [ids(window) for window in reader] == naive_windows(10, 2)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "8", None, True])
def test_sequence_length_is_a_positive_integer(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="sequence_length"):
        StreamDataset(make_stream(tmp_path, (10,)), wrong)


@pytest.mark.parametrize("wrong", [-1, -8, 0.5, "8", None, True])
def test_overlap_is_an_integer_of_at_least_0(wrong: Any, tmp_path: Path) -> None:
    """With less, elements would be left out between the windows."""
    with pytest.raises((TypeError, ValueError), match="overlap"):
        StreamDataset(make_stream(tmp_path, (10,)), 4, overlap=wrong)


@pytest.mark.parametrize("dtype", [None, "int64"])
@pytest.mark.parametrize("meta", [False, True])
def test_a_window_has_no_more_bytes_than_can_be_counted(meta: bool, dtype: str | None, tmp_path: Path) -> None:
    storage: Any = make_spans(tmp_path, [(10,)]) if meta else make_stream(tmp_path, (10,))
    longest = (2**63 - 1) // (storage.storage_format.stream_dtype.itemsize if dtype is None else 8)
    for length, overlap in ((longest, 0), (1, longest - 1)):
        with StreamDataset(storage, length, overlap=overlap, dtype=dtype).sync_reader() as reader:
            assert len(reader) == 0
            assert reader[:] == []
    for length, overlap in ((longest + 1, 0), (1, longest), (2**63, 0), (2**64, 0), (1, 2**64)):
        with pytest.raises(ArgumentError, match=f"at most {longest}, got {length + overlap}"):
            StreamDataset(storage, length, overlap=overlap, dtype=dtype)


def test_a_stream_shorter_than_a_window_has_none(tmp_path: Path) -> None:
    for total, expected in ((0, 0), (6, 0), (7, 1), (8, 1)):
        dataset = StreamDataset(make_stream(tmp_path / str(total), (total,)), 7)
        assert length(dataset) == expected


def test_data_sets_are_picklable_and_small(tmp_path: Path) -> None:
    streams = StreamDataset(make_stream(tmp_path / "s", [3] * 500), 2)
    documents = DocumentDataset(make_documents(tmp_path / "d", [2] * 200))
    for dataset, size in ((streams, 750), (documents, 400)):
        pickled = pickle.dumps(dataset)
        assert len(pickled) < 10_000
        assert length(pickle.loads(pickled)) == size


def test_the_wrong_storage_is_named(tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="DocumentDataset"):
        StreamDataset(make_documents(tmp_path / "d", (1,)), 2)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="StreamDataset"):
        DocumentDataset(make_stream(tmp_path / "s", (1,)))  # type: ignore[arg-type]


def test_wider_elements(tmp_path: Path) -> None:
    dtype = np.dtype([("tokens", "<u2"), ("mask", "?")])
    storage = make_stream(tmp_path, (70_000,), dtype)
    dataset = StreamDataset(storage, 4, dtype={"tokens": np.int64})
    for read in ITEMS.values():
        (window,) = read(dataset, [16_384])
        assert window["tokens"].dtype == np.int64 and window["mask"].dtype == np.bool_
        assert window["tokens"].tolist() == [i % 65_536 for i in range(65_536, 65_540)]
    for wrong in (np.int16, np.uint8, np.float16):
        with pytest.raises(ValueError, match="tokens"):
            StreamDataset(storage, 4, dtype={"tokens": wrong})


def test_a_dtype_for_a_field_that_is_not_there_is_refused(tmp_path: Path) -> None:
    fields = make_stream(tmp_path / "fields", (8,), np.dtype([("tokens", "<u2"), ("mask", "?")]))
    with pytest.raises(ArgumentError, match="no field 'token' in the elements: they have tokens, mask"):
        StreamDataset(fields, 4, dtype={"token": np.int64})
    plain = make_stream(tmp_path / "plain", (8,), np.dtype("<u2"))
    with pytest.raises(ArgumentError, match="no fields"):
        StreamDataset(plain, 4, dtype={"tokens": np.int64})


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", ("int64", "int64", "bool", "float64")),
        ("float64", ("uint16", "int32", "bool", "float64")),
        ("complex128", ("complex128", "complex128", "complex128", "complex128")),
        # Not the one field that it can hold alone, and of the others no word.
        ("uint32", "'place' (int32)"),
        ("int32", None),
        ("int8", "'token' (uint16)"),
        ("float32", "'weight' (float64)"),
    ],
)
def test_one_dtype_for_mixed_fields_is_for_all_of_its_sort(tmp_path: Path, dtype: str, expected: Any) -> None:
    names = "token", "place", "mask", "weight"
    storage = make_stream(tmp_path, (8,), np.dtype(list(zip(names, ("<u2", "<i4", "?", "<f8"), strict=True))))
    if isinstance(expected, str):
        with pytest.raises(ArgumentError, match=re.escape(expected)):
            StreamDataset(storage, 4, dtype=dtype)
        return
    with StreamDataset(storage, 4, dtype=dtype).sync_reader() as reader:
        found = tuple(str(reader[0][name].dtype) for name in names)
    assert found == (expected or ("int32", "int32", "bool", "float64"))


FIELDS: list[list[Any]] = [[("a", "<u2")], [("a", "<f4", (3,))], [("a", "<i8"), ("b", "<f8")]]


@pytest.mark.parametrize("fields", FIELDS, ids=["one", "one of arrays", "two"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", [{}, {"prefetch": 2, "num_workers": 2}], ids=["alone", "threads"])
@pytest.mark.parametrize("overlap", [0, 2])
def test_a_collate_fn_gets_the_windows_of_each_field(
    fields: list[Any], backend: str, way: dict[str, Any], overlap: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    columns = {
        name: rng.integers(0, 60_000, (97, *(shape[0] if shape else ()))).astype(dtype)
        for name, dtype, *shape in fields
    }
    storage = StreamStorage(tmp_path, StreamNumpyFormat(fields), BACKENDS[backend]())
    with storage.sync_writer() as writer:
        for shard, (begin, end) in enumerate([(0, 40), (40, 40), (40, 97)]):
            writer.create(shard)
            writer.append(shard, {name: column[begin:end] for name, column in columns.items()})
    dataset = StreamDataset(storage, 5, overlap=overlap)
    options = {"local_batch_size": 4, "shuffle": True, "drop_last": False, "device": "cpu", **way}
    with StatefulDataLoader(dataset, list, **options) as loader:
        samples = [sample for batch in loader for sample in batch]
    order = make_order(len(samples), True, 0, 0).at(np.arange(len(samples))).tolist()
    assert len(samples) == (97 - overlap) // 5
    for sample, number in zip(samples, order, strict=True):
        assert list(sample) == list(columns)
        for name, column in columns.items():
            window = column[5 * number : 5 * number + 5 + overlap]
            assert sample[name].dtype == window.dtype
            assert np.array_equal(sample[name], window)


KINDS: dict[str, Any] = {
    "stream": lambda folder: StreamDataset(make_stream(folder, (7, 0, 6)), 2, overlap=1),
    "spans": lambda folder: StreamDataset(make_spans(folder, [[4, 3], [], [5, 1]]), 2),
    "documents": lambda folder: DocumentDataset(make_documents(folder, (2, 0, 4))),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=20)
@given(indexes=st.lists(st.integers(0, 5)))
def test_items_by_several_indexes_are_those_by_each(kind: str, indexes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, KINDS[kind](Path(folder)).sync_reader() as reader:
        assert len(reader) == 6
        found = reader.__getitems__(indexes)
        assert [repr(sample) for sample in found] == [repr(reader[index]) for index in indexes]


@pytest.mark.parametrize("kind", KINDS)
def test_several_indexes_are_checked_as_one_is(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path).sync_reader() as reader:
        for bad in (6, -1):
            with pytest.raises(IndexError, match=rf"{bad} is outside \[0, 6\)"):
                reader.__getitems__([0, bad])
        with pytest.raises(ArgumentError, match="integer"):
            reader.__getitems__([0, 1.5])


@pytest.mark.parametrize("kind", KINDS)
def test_torch_s_own_loader_reads_whole_batches(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KINDS[kind](tmp_path).sync_reader() as reader:
        expected = [[repr(reader[index]) for index in range(begin, begin + 3)] for begin in (0, 3)]
        monkeypatch.delattr(type(reader), "__getitem__")
        batches = torch.utils.data.DataLoader(reader, batch_size=3, collate_fn=list)
        assert [[repr(sample) for sample in batch] for batch in batches] == expected
