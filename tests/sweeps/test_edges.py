"""Empty, smallest and many: what lies at the edge is legal, or a clear error at open; and what it costs is counted."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import DocumentStorage, StatefulDataLoader, StreamStorage
from guideloom.io import MmapIO, PosixPreadIO, SeekIO
from guideloom.testing import (
    CountingBackend,
    IdDocumentFormat,
    IdStreamFormat,
    make_documents,
    make_spans,
    make_stream,
    reference,
)
from tests.sweeps.support import BACKENDS, READ


def starts(samples: list[Any]) -> list[int]:
    return [int(sample.elements[0]) for sample in samples]


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("overlap", [0, 1])
def test_streams_around_the_length_of_a_window(overlap: int, length: int, tmp_path: Path) -> None:
    for total in range(max(0, length + overlap - 1), length + overlap + 2):
        storage = make_stream(tmp_path / str(total), (total,))
        loader = StatefulDataLoader.from_storage(storage, starts, sequence_length=length, overlap=overlap, device="cpu")
        expected = [i for i in range(total) if i % length == 0 and i + length + overlap <= total]
        if not expected:
            with pytest.raises(ValueError, match="global batch"):
                loader.open()
        else:
            with loader:
                assert list(loader) == [[i] for i in expected]


@pytest.mark.parametrize("shards", [(0,), (0, 0, 0)])
def test_a_data_set_without_samples_is_an_error_at_open(shards: tuple[int, ...], tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "stream", shards)
    documents = make_documents(tmp_path / "documents", shards)
    spans = make_spans(tmp_path / "spans", [[] for _ in shards])
    loaders = [StatefulDataLoader.from_storage(one, list, sequence_length=1, device="cpu") for one in (stream, spans)]
    loaders.append(StatefulDataLoader.from_storage(documents, list, device="cpu"))
    for loader in loaders:
        with pytest.raises(ValueError, match="global batch"):
            loader.open()
    for storage in (stream, documents, spans):
        with storage.sync_reader() as reader:
            assert (reader.total_length, reader.num_shards) == (0, len(shards))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty", [{0}, {4}, {0, 4}, {2}, {0, 1, 2, 3, 4}], ids=str)
def test_empty_documents_anywhere(empty: set[int], backend: str, tmp_path: Path) -> None:
    storage = make_documents(
        tmp_path, (2, 3), size=lambda i: 0 if i in empty else 11, read_interface=BACKENDS[backend]()
    )
    for read in READ.values():
        found = read(storage, [([4, 3, 2, 1, 0],)], "read_many")[0]
        assert [document.size for document in found] == [0 if i in empty else 11 for i in (4, 3, 2, 1, 0)]


def test_fewer_records_than_shards(tmp_path: Path) -> None:
    storage = make_documents(tmp_path, [1, 1, 0, 0, 0, 0, 0, 1])
    with storage.sync_reader() as reader:
        assert [document.shard for document in reader.read_many(range(3))] == [0, 1, 7]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"prefetch": 3}, {"num_workers": 2, "prefetch": 2}], ids=str)
def test_each_rank_reads_its_own_bytes_only(options: dict[str, int], world_size: int, tmp_path: Path) -> None:
    make_stream(tmp_path, (40, 0, 56), "<i4")
    for rank in range(world_size):
        backend = CountingBackend(PosixPreadIO())
        storage = StreamStorage(tmp_path, IdStreamFormat("<i4"), backend)
        make = partial(
            StatefulDataLoader.from_storage,
            storage,
            starts,
            sequence_length=4,
            local_batch_size=2,
            rank=rank,
            world_size=world_size,
            shuffle=True,
            shuffle_seed=2,
            device="cpu",
        )
        (epoch,) = reference(make, 1, **options)
        assert len(epoch) == 12 // world_size
        assert backend.matching("*.elements.bin").bytes_read == sum(map(len, epoch)) * 4 * 4
        assert backend.total.open_now == 0


def test_a_state_at_each_step_reads_nothing(tmp_path: Path) -> None:
    make_stream(tmp_path, (64,), "<i4")
    counts = []
    for ask in (False, True):
        backend = CountingBackend(PosixPreadIO())
        storage = StreamStorage(tmp_path, IdStreamFormat("<i4"), backend)
        with StatefulDataLoader.from_storage(storage, starts, sequence_length=4, device="cpu") as loader:
            for _ in loader:
                if ask:
                    loader.state_dict()
        counts.append(backend.total)
    assert counts[0] == counts[1]


def test_opening_many_shards_through_a_backend_reads_the_manifest_only(tmp_path: Path) -> None:
    make_documents(tmp_path, [1] * 50)
    backend = CountingBackend()
    with DocumentStorage(tmp_path, IdDocumentFormat(), backend).sync_reader() as reader:
        assert reader.num_shards == 50
    read = {Path(path).name for path, counts in backend.per_file.items() if counts.reads}
    assert read == {"manifest.json"}
    assert backend.total.open_now == 0


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    storage = make_documents(tmp_path, [1] * 300)
    backend = CountingBackend()
    storage.read_interface = backend
    with storage.sync_reader() as reader:
        for _ in range(2):
            found = reader.read_many(range(299, -1, -1))
        assert [document.id for document in found] == list(range(299, -1, -1))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert backend.peak_open <= max(2, soft // 2)
    assert backend.total.open_now == 0


@pytest.mark.parametrize("backend", ["SeekIO", "PosixPreadIO", "MmapIO", "MinimalBackend"])
def test_more_shards_than_descriptors(backend: str, tmp_path: Path) -> None:
    """In a process of its own, whose limit can be lowered."""
    make_stream(tmp_path, [2] * 400, "<i4")
    program = f"""
        import pathlib, resource
        import guideloom.io, guideloom.testing
        from guideloom import StreamStorage
        from guideloom.testing import IdStreamFormat
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
        backend = getattr(guideloom.io, {backend!r}, None) or getattr(guideloom.testing, {backend!r})
        storage = StreamStorage(pathlib.Path({str(tmp_path)!r}), IdStreamFormat("<i4"), backend())
        with storage.sync_reader() as reader:
            for _ in range(2):
                assert reader.read(1, 799).elements.tolist() == [*range(1, 800)]
            for index in range(0, 800, 7):
                assert reader.read(index, 1).elements.tolist() == [index]
        for _ in range(120):
            with storage.sync_reader() as reader:
                assert reader.read(799, 2).elements.tolist() == [799, 0]
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("backend", [SeekIO, PosixPreadIO, MmapIO])
def test_readers_leave_no_descriptor_and_no_map(backend: Any, tmp_path: Path) -> None:
    storage = make_stream(tmp_path, [2] * 5, read_interface=backend())

    def resources() -> int:
        maps = Path("/proc/self/maps").read_text().count(str(tmp_path))
        held = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in _target(path)]
        return maps + len(held)

    for _ in range(3):
        with storage.sync_reader() as reader:
            reader.read(0, 10)
        reader = storage.sync_reader()
        reader.open()
        reader.read(0, 3)
        reader.close()
    del reader
    assert resources() == 0


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the descriptor of the listing itself
        return ""


def test_a_window_costs_one_read_a_shard(tmp_path: Path) -> None:
    backend = CountingBackend(PosixPreadIO())
    storage = make_stream(tmp_path, (1_000, 1_000), "<i4", read_interface=backend)
    with storage.sync_reader() as reader:
        for (index, length), reads in (((0, 10), 1), ((500, 500), 1), ((995, 10), 2), ((1_995, 10), 2), ((7, 0), 0)):
            backend.reset()
            assert reader.read(index, length).elements.size == length
            counts = backend.matching("*.elements.bin")
            assert (counts.reads, counts.bytes_read) == (reads, 4 * length)


@pytest.mark.slow
def test_windows_and_batches_of_65_535_to_65_538_samples(tmp_path: Path) -> None:
    for total in range(65_535, 65_539):
        storage = make_stream(tmp_path / str(total), (total // 2, 0, total - total // 2), "<i4")
        options = {"sequence_length": 1, "local_batch_size": 1_024, "shuffle": True, "shuffle_seed": 3, "device": "cpu"}
        make = partial(StatefulDataLoader.from_storage, storage, starts, drop_last=False, **options)
        (epoch,) = reference(make, 1, prefetch=2, num_workers=2)
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(total))
