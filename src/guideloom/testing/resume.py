"""Whether a loader that is stopped and restored gives what an uninterrupted one gives: lists compared, never sets."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeAlias

import numpy as np

from guideloom.testing.oracles import difference

Epochs: TypeAlias = list[list[Any]]


MakeLoader: TypeAlias = Callable[..., Any]
"""Makes a loader: iterable, with ``state_dict`` and ``load_state_dict``. A context manager is used as one."""


def plain(value: Any) -> Any:
    """Turn ``value``'s arrays and tensors, inside containers too, into nested lists: ``==`` then compares content.

    Mappings become dicts, sequences lists, dataclasses the list of their values.
    """
    if isinstance(value, str | bytes | int | float | None):
        return value
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return value


@contextmanager
def _opened(loader: Any) -> Iterator[Any]:
    manager: AbstractContextManager[Any] = loader if hasattr(loader, "__exit__") else nullcontext(loader)
    with manager:
        yield loader


def _close(iterator: Any) -> None:
    if hasattr(iterator, "close"):
        iterator.close()


def reference(make_loader: MakeLoader, epochs: int = 1, **overrides: Any) -> Epochs:
    """Return the batches of an uninterrupted run, ``[epoch][batch]``, as :func:`plain` values.

    Parameters
    ----------
    make_loader : callable
        ``make_loader(**overrides)`` returns a new loader, not yet opened.
    epochs : int
        Number of epochs.
    **overrides
        Passed on to ``make_loader``.
    """
    with _opened(make_loader(**overrides)) as loader:
        return [[plain(batch) for batch in loader] for _ in range(epochs)]


def check_resume(
    make_loader: MakeLoader,
    epochs: int = 2,
    *,
    points: Iterable[int] | None = None,
    through: Sequence[str] = ("json", "pickle"),
    chain: Sequence[int] = (1, 2, 3),
    restore_with: Sequence[Mapping[str, Any]] = ({},),
    subprocess: bool = False,
) -> Epochs:
    """Stop and restore a loader at each point, and compare every batch after it with an uninterrupted run.

    Parameters
    ----------
    make_loader : callable
        ``make_loader(**overrides)`` returns a new loader, not yet opened, whose batches say which records they hold.
        With ``subprocess`` it must be picklable.
    epochs : int
        Epochs of the run.
    points : iterable of int, optional
        Numbers of batches delivered before the stop, counted over all epochs; every one when not given.
    through : sequence of {"json", "pickle"}
        What the state goes through.
    chain : sequence of int
        Strides of chained runs: stop after so many batches, restore, stop again, to the end of the last epoch.
    restore_with : sequence of mappings
        Overrides for the restored loaders, one restore for each: other workers, prefetch, backend. What is delivered
        must not depend on them.
    subprocess : bool
        Also restore in a fresh interpreter.

    Returns
    -------
    list of lists
        The uninterrupted run.

    Raises
    ------
    AssertionError
        At the first difference, saying where it is.

    Notes
    -----
    Also checked: a state survives its transport unchanged; a state taken right after a load equals the loaded one; one
    taken while the iterator is live equals the one taken after it was closed; a run that was asked for its state at
    each batch delivers the same. A state taken at an epoch's last batch, before its ``StopIteration``, may be resumed
    with the empty rest of that epoch.
    Costs ``len(points) * len(through) * len(restore_with)`` runs, plus one for each stride.
    """
    # One epoch more than asked: what follows the last point must be right too.
    expected = reference(make_loader, epochs + 1)
    total = sum(map(len, expected[:epochs]))
    wanted = sorted(set(range(total + 1) if points is None else points))
    if any(point not in range(total + 1) for point in wanted):
        raise ValueError(f"expected points within 0 .. {total}, the batches of {epochs} epochs, found {wanted}")

    stops, walked = _walk(make_loader, expected)
    _compare("a run that was asked for its state after each batch", expected, walked)
    stops = [stop for stop in stops if stop.point in wanted]
    for stop in stops:
        for name in through:
            state = _transport(stop, name)
            for overrides in restore_with:
                how = f"through {name}" + (f" with {dict(overrides)}" if overrides else "")
                _check_restored(make_loader, stop, state, how, **overrides)
        if not stop.finished:
            state = _stop_at(make_loader, stop.point)
            _check_restored(make_loader, stop, state, "from the state taken after its iterator was closed")

    for stride in chain:
        flat = [batch for epoch in expected[:epochs] for batch in epoch]
        _compare(f"a run restored every {stride} batches", flat, _chained(make_loader, stride, total))
    if subprocess:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_check_all_restored, make_loader, stops).result()
    return expected[:epochs]


def check_worlds(
    make_loader: MakeLoader,
    worlds: Sequence[tuple[int, int, int]],
    merge: Callable[[Any], list[Any]] = list,
) -> list[Any]:
    """Carry one epoch through other numbers of ranks and other batch sizes, and demand every sample once, in order.

    Parameters
    ----------
    make_loader : callable
        ``make_loader(local_batch_size=, rank=, world_size=, **)`` returns a new loader, not yet opened, with
        ``drop_last=False``.
    worlds : sequence of (local_batch_size, world_size, steps)
        Each is restored from the state of rank 0 of the one before, and runs for ``steps`` batches; the last one runs
        to the end of the epoch, whatever its ``steps``.
    merge : callable
        Turns a batch into the list of its samples.

    Returns
    -------
    list
        The samples of the epoch, in order.
    """
    (order,) = reference(make_loader, 1, local_batch_size=1, rank=0, world_size=1)
    expected = [sample for batch in order for sample in merge(batch)]
    found: list[Any] = []
    state: Any = None
    for number, (local_batch_size, world_size, steps) in enumerate(worlds):
        last = number == len(worlds) - 1
        per_rank: list[list[list[Any]]] = []
        after: list[Any] = []
        for rank in range(world_size):
            loader = make_loader(local_batch_size=local_batch_size, rank=rank, world_size=world_size)
            with _opened(loader):
                if state is not None:
                    loader.load_state_dict(state)
                iterator = iter(loader)
                batches = [merge(plain(batch)) for batch in islice(iterator, None if last else steps)]
                after.append(loader.state_dict())
                _close(iterator)
            per_rank.append(batches)
        what = f"world {number} (batch {local_batch_size}, {world_size} ranks)"
        taken = [len(batches) for batches in per_rank]
        if len(set(taken)) != 1:
            raise AssertionError(f"{what}: the ranks took different numbers of steps: {taken}")
        for other in after[1:]:
            if other != after[0]:
                raise AssertionError(f"{what}: the ranks' states differ: {after[0]!r} and {other!r}")
        for step in zip(*per_rank, strict=True):
            turns = [iter(part) for part in step]
            first = len(found)
            # A rank that ran dry too early shows as None, and so as a difference.
            found.extend(next(turns[p % world_size], None) for p in range(first, first + sum(map(len, step))))
        state = json.loads(json.dumps(dict(after[0])))
    _compare(f"one epoch through {worlds}", expected, found)
    return found


@dataclass(frozen=True)
class _Stop:
    """A place to stop at.

    ``point`` batches were delivered over all epochs, ``place`` says so in words; ``state`` was taken while the run went
    on; ``left`` are the batches that must follow. ``at_end``: the epoch's last batch was delivered; ``finished``: its
    ``StopIteration`` too.
    """

    point: int
    place: str
    state: Any
    left: Epochs
    at_end: bool = False
    finished: bool = False


def _walk(make_loader: MakeLoader, expected: Epochs) -> tuple[list[_Stop], Epochs]:
    """Run once, stopping nowhere, taking the state before the first batch, after each, and after each epoch."""
    found: Epochs = []
    stops: list[_Stop] = []
    point = 0
    with _opened(make_loader()) as loader:
        stops.append(_Stop(0, "no batch", _copy(loader.state_dict()), expected))
        for number, epoch in enumerate(expected):
            found.append([])
            for batch in loader:
                found[-1].append(plain(batch))
                point += 1
                done = len(found[-1])
                place = f"batch {point} (batch {done} of {len(epoch)} of epoch {number})"
                at_end = done == len(epoch)
                left = ([] if at_end else [epoch[done:]]) + expected[number + 1 :]
                stops.append(_Stop(point, place, _copy(loader.state_dict()), left, at_end))
            place = f"the end of epoch {number}"
            stops.append(_Stop(point, place, _copy(loader.state_dict()), expected[number + 1 :], True, True))
    return stops, found


def _stop_at(make_loader: MakeLoader, point: int) -> Any:
    """Run for ``point`` batches, stop, and return the state after the iterator was closed."""
    with _opened(make_loader()) as loader:
        left = point
        while True:
            iterator = iter(loader)
            taken = sum(1 for _ in islice(iterator, left))
            left -= taken
            if not left:
                break
            if not taken:
                raise AssertionError(f"an epoch without batches, {left} of {point} batches before the stop")
            _close(iterator)
        live = _copy(loader.state_dict())
        _close(iterator)
        state = _copy(loader.state_dict())
    if state != live:
        raise AssertionError(f"stopped after {point} batches: the state was {live!r} before close and {state!r} after")
    return state


def _check_restored(make_loader: MakeLoader, stop: _Stop, state: Any, how: str, **overrides: Any) -> None:
    what = f"restored after {stop.place} {how}"
    found: Epochs = []
    with _opened(make_loader(**overrides)) as loader:
        loader.load_state_dict(_copy(state))
        again = loader.state_dict()
        if dict(again) != dict(state):
            raise AssertionError(f"{what}: loaded {state!r}, but state_dict() right after gave {again!r}")
        for epoch in stop.left:
            batches = [plain(batch) for batch in loader]
            if not batches and epoch and not found and stop.at_end and not stop.finished:
                # The rest of the epoch, which is empty.
                batches = [plain(batch) for batch in loader]
            found.append(batches)
    _compare(what, stop.left, found)


def _check_all_restored(make_loader: MakeLoader, stops: Sequence[_Stop]) -> None:
    for stop in stops:
        _check_restored(make_loader, stop, stop.state, "in a new process")


def _chained(make_loader: MakeLoader, stride: int, total: int) -> list[Any]:
    found: list[Any] = []
    state: Any = None
    empty = 0
    while len(found) < total:
        with _opened(make_loader()) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            got = [plain(batch) for batch in islice(iterator, min(stride, total - len(found)))]
            state = json.loads(json.dumps(dict(loader.state_dict())))
            _close(iterator)
        found.extend(got)
        empty = 0 if got else empty + 1
        if empty > 1:
            raise AssertionError(f"restored every {stride} batches: nothing more after {len(found)} of {total} batches")
    return found


def _copy(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def _transport(stop: _Stop, name: str) -> Any:
    if name == "json":
        through = json.loads(json.dumps(stop.state))
    elif name == "pickle":
        through = _copy(stop.state)
    else:
        raise ValueError(f"expected 'json' or 'pickle', found {name!r}")
    if through != stop.state:
        raise AssertionError(
            f"the state after {stop.place} changed on its way through {name}: {stop.state!r}, {through!r}"
        )
    return through


def _compare(what: str, expected: list[Any], found: list[Any]) -> None:
    where = difference(expected, found)
    if where is not None:
        raise AssertionError(f"{what}: {where}")
