"""Resume through the public interface: at every position, chained, in other worlds, with other workers and backends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guideloom import StatefulDataLoader, errors
from guideloom.testing import (
    CountingBackend,
    check_resume,
    make_documents,
    make_spans,
    make_sparse_stream,
    make_stream,
)
from tests.sweeps.support import BACKENDS

TOKENS = [("tokens", "<i4")]
FAST = {"prefetch": 4, "num_workers": 2}


def ids(samples: list[Any]) -> list[int]:
    """Collate: the number of each sample's first element, or of the document."""
    return [
        int(s["tokens"][0]) if isinstance(s, dict) else s.id if hasattr(s, "id") else int(s.elements[0])
        for s in samples
    ]


def make_loader(kind: str, folder: Path, backend: str = "seek", **options: Any) -> StatefulDataLoader:
    """A loader over a data set that is there; module-level, so that a new process can make it too."""
    from guideloom import DocumentStorage, StreamNumpyFormat, StreamStorage, StreamWithMetaStorage
    from guideloom.testing import IdDocumentFormat, IdSpanFormat

    storage: Any
    io = BACKENDS[backend]()
    if kind == "documents":
        storage = DocumentStorage(folder, IdDocumentFormat(), io)
    elif kind == "spans":
        storage = StreamWithMetaStorage(folder, IdSpanFormat(), io)
    else:
        storage = StreamStorage(folder, StreamNumpyFormat(TOKENS), io)
    if kind != "documents":
        options.setdefault("sequence_length", 2)
    return StatefulDataLoader.from_storage(storage, options.pop("collate_fn", ids), device="cpu", **options)


def write(kind: str, folder: Path, size: int) -> None:
    """A data set of ``size`` samples: documents, or windows of two elements."""
    if kind == "documents":
        make_documents(folder, (size // 2, 0, size - size // 2))
    elif kind == "spans":
        make_spans(folder, [[1] * size, [], [size]])
    else:
        make_stream(folder, (size, 0, size), TOKENS)


@pytest.mark.parametrize("kind", ["fields", "documents", "spans"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_position(drop_last: bool, shuffle: bool, kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path, 10)
    options = {"local_batch_size": 3, "shuffle": shuffle, "shuffle_seed": 7, "drop_last": drop_last}
    check_resume(partial(make_loader, kind, tmp_path, **options), 2)


@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 8}, FAST], ids=str)
def test_every_position_with_batches_in_flight(options: dict[str, int], tmp_path: Path) -> None:
    write("fields", tmp_path, 10)
    fixed = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 7, "drop_last": False}
    check_resume(partial(make_loader, "fields", tmp_path, **fixed, **options), 2, through=["json"])


def test_other_workers_and_backends(tmp_path: Path) -> None:
    write("fields", tmp_path, 10)
    fixed = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 7}
    others: list[dict[str, Any]] = [{"backend": backend} for backend in BACKENDS]
    others += [{"prefetch": 1}, FAST, {"prefetch": 2, "num_workers": 6, "backend": "mmap"}]
    check_resume(
        partial(make_loader, "fields", tmp_path, **fixed),
        2,
        points=[0, 1, 3, 4, 6],
        through=["json"],
        restore_with=others,
    )


def test_processes_and_a_new_process(tmp_path: Path) -> None:
    write("documents", tmp_path, 10)
    fixed = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 7}
    others = [{"num_workers": 2, "prefetch": 2, "parallel_method": "process"}]
    check_resume(
        partial(make_loader, "documents", tmp_path, **fixed),
        1,
        points=[2],
        through=["json"],
        chain=(),
        restore_with=others,
        subprocess=True,
    )


def test_numeric_batches_resume_too(tmp_path: Path) -> None:
    write("fields", tmp_path, 10)
    options = {"local_batch_size": 3, "shuffle": True, "shuffle_seed": 7, "collate_fn": None, "prefetch": 2}
    check_resume(partial(make_loader, "fields", tmp_path, **options), 2, through=["json"])


# --- what must be refused -----------------------------------------------------------------------


def saved(make: Callable[..., StatefulDataLoader]) -> dict[str, Any]:
    with make() as loader:
        next(iter(loader))
        return dict(loader.state_dict())


def refused(make: Callable[..., StatefulDataLoader], state: Any, error: type[BaseException], *words: str) -> None:
    """Refused both when loaded into an open loader and when loaded before ``open``."""
    with make() as loader:
        before = loader.state_dict()
        with pytest.raises(error) as caught:
            loader.load_state_dict(state)
        assert loader.state_dict() == before, "a refused state must change nothing"
    assert all(word in str(caught.value) for word in words), str(caught.value)
    early = make()
    with pytest.raises(error):
        early.load_state_dict(state)
        early.open()


def test_another_view_or_order_is_refused_with_both_values(tmp_path: Path) -> None:
    write("fields", tmp_path, 12)
    make = partial(make_loader, "fields", tmp_path, shuffle=True, shuffle_seed=7)
    state = saved(make)
    for change, words in (
        ({"shuffle_seed": 8}, ("shuffle_seed", "7", "8")),
        ({"shuffle": False}, ("shuffle", "True", "False")),
        ({"sequence_length": 3}, ("sequence_length", "2", "3")),
        ({"overlap": 1}, ("overlap", "0", "1")),
        ({"drop_last": False}, ("drop_last", "True", "False")),
    ):
        refused(partial(make, **change), state, errors.StateMismatchError, *words)


@pytest.mark.parametrize("change", ["edited", "longer", "swapped", "fewer"])
def test_other_data_is_refused_and_the_same_data_elsewhere_is_not(change: str, tmp_path: Path) -> None:
    write("documents", tmp_path / "one", 10)
    state = saved(partial(make_loader, "documents", tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    with make_loader("documents", tmp_path / "moved", backend="mmap") as loader:
        loader.load_state_dict(state)
        assert [batch[0] for batch in loader] == list(range(1, 10))
    other = tmp_path / "other"
    if change == "edited":
        make_documents(other, (5, 0, 5), size=lambda i: 8 + i % 5 + (i == 9))
    elif change == "swapped":
        make_documents(other, (5, 5, 0))
    else:
        make_documents(other, (5, 0, 6 if change == "longer" else 4))
    with make_loader("documents", other) as loader:
        found = loader.state_dict()
    refused(
        partial(make_loader, "documents", other),
        state,
        errors.StateMismatchError,
        str(state["identity"]),
        str(found["identity"]),
    )
    with make_loader("documents", other) as loader:
        loader.load_state_dict(state, override={"identity"})
        assert next(iter(loader)) == [1]


def test_resuming_far_into_a_huge_epoch_costs_what_the_start_costs(tmp_path: Path) -> None:
    count = 2 * 10**9 + 4
    make_sparse_stream(tmp_path, count, "<i4", {count - 1: 1})
    costs = []
    for offset in (0, 10**9, count - 4):
        from guideloom import StreamStorage
        from guideloom.testing import IdStreamFormat

        backend = CountingBackend(BACKENDS["pread"]())
        storage = StreamStorage(tmp_path, IdStreamFormat("<i4"), backend)
        loader = StatefulDataLoader.from_storage(
            storage, len, sequence_length=1, local_batch_size=4, shuffle=True, shuffle_seed=1, device="cpu"
        )
        with loader:
            loader.load_state_dict({**loader.state_dict(), "epoch": 1, "observation_offset": offset})
            iterator = iter(loader)
            backend.reset()
            assert next(iterator) == 4
            costs.append((backend.total.reads, backend.total.bytes_read))
    assert costs == [(4, 16)] * 3
