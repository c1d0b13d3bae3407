"""What a worker process does, and what passes through its pipe.

A command is a batch number, ``(start, stride, count)`` of its positions, and the order that they are positions of, None
for that of the last command; the worker computes the rest. Batches come back with large arrays beside the pickle.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from guideloom._base.dataset_protocols import DatasetAbstract
from guideloom._base.errors import ArgumentError
from guideloom._dataset.source import BatchSource, source_of
from guideloom._loader.work import CollateFn, collated
from guideloom._plan.order import Order
from guideloom._plan.seeds import position_seeds
from guideloom._storage.catalog import Catalog

_ASIDE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know as long as it lives."""

    dataset: DatasetAbstract
    snapshot: Catalog | None
    collate_fn: CollateFn | None


class SentJob:
    """A job for a process that is not forked, in which it may not be possible to unpickle it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __reduce__(self) -> tuple[Callable[[bytes], Job | Exception], tuple[bytes]]:
        return _unpack_job, (bytes(ForkingPickler.dumps(self._job)),)


def _unpack_job(body: bytes) -> Job | Exception:
    try:
        job: Job = pickle.loads(body)
    except Exception as error:  # noqa: BLE001  the parent raises it
        error.add_note(
            "worker processes that are not forked find functions and classes by their module and name: define them in "
            'a file that can be imported, not in a notebook or at a prompt, or pass parallel_method="thread"'
        )
        return error
    return job


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a batch, still packed: the batch, or, where ``ok`` is False, an error."""

    number: int
    ok: bool
    body: bytes
    buffers: list[bytearray]

    def batch(self) -> Any:
        """Return the batch."""
        return pickle.loads(self.body, buffers=self.buffers)

    def error(self) -> BaseException:
        """Return the error."""
        return _unpack_error(self.body)


def receive(connection: Connection[Any, Any]) -> Answer:
    """Return the next answer of a worker; ``EOFError`` or ``OSError`` where it is gone."""
    number, ok, sizes, body = pickle.loads(connection.recv_bytes())
    buffers = []
    for size in sizes:
        buffers.append(bytearray(size))
        connection.recv_bytes_into(buffers[-1])
    return Answer(number, ok, body, buffers)


def work(connection: Connection[Any, Any], job: Any, parents_signals: tuple[int, ...], number: int) -> None:
    """Body of a worker: answers commands, and sleeps between them, until the pipe closes.

    ``job`` is a :class:`Job`, or the error for which there is none.
    ``parents_signals`` are those that the parent has a handler for, or ignores; no two workers of a process have the
    same ``number``.
    """
    _leave_signals_to_parent(parents_signals)
    if "torch" in sys.modules:
        from guideloom._loader import bridge

        bridge.one_thread()
    _draw_other_numbers(number)
    reader = None
    failure: BaseException | None = None
    source: BatchSource | None = None
    try:
        if isinstance(job, Exception):
            raise job
        reader = job.dataset.sync_reader()
        # What was committed since must not come into some of the workers' batches.
        open_snapshot = getattr(reader, "open_snapshot", None)
        if job.snapshot is None or open_snapshot is None:
            reader.open()
        else:
            open_snapshot(job.snapshot)
        source = source_of(reader)
    except BaseException as error:  # noqa: BLE001  the parent raises it
        failure = error
    order: Any = None  # comes with the first command
    try:
        while True:
            number, positions, new_order = connection.recv()
            order = order if new_order is None else new_order
            if source is None:
                _send(connection, number, False, _pack_error(failure), [])
            else:
                _answer(connection, number, source, order, job.collate_fn, positions)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent closed its end, or is gone.
        return
    finally:
        if reader is not None and failure is None:
            reader.close()


def _leave_signals_to_parent(parents_signals: tuple[int, ...]) -> None:
    """Ignore what the parent handles, and Ctrl-C.

    A batch system signals all processes of a job, so that it may save its state and end, or go on. The parent decides
    which, and may want more batches until then: its handler, inherited by fork, must not run here, and the workers
    must not be ended by such a signal. They end with their pipe.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGINT, *parents_signals):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *parents_signals})


def _draw_other_numbers(number: int) -> None:
    """Give the worker random numbers of its own: a fork copies the parent's generators, and all would draw the same.

    They follow from the parent's generators and ``number``. Python's own generator sees to it by itself.
    """
    if "numpy.random" in sys.modules:
        parents = np.random.get_bit_generator()  # type: ignore[attr-defined]
        # Another kind of generator was put there by the user, and is left as it is.
        if isinstance(parents, np.random.MT19937):
            # A thread that the fork left behind may have held the lock of the parent's, for ever now: so that one is
            # replaced, not seeded, and in that case not asked for its state either, for which NumPy 2.5 takes the lock.
            entropy = None
            if parents.lock.acquire(blocking=False):
                parents.lock.release()
                state: Any = parents.state["state"]
                entropy = [*state["key"].tolist(), int(state["pos"]), number]
            seed = np.random.SeedSequence(entropy)
            np.random.set_bit_generator(np.random.MT19937(seed))  # type: ignore[attr-defined]
    if "torch" in sys.modules:
        from guideloom._loader import bridge

        bridge.draw_other_numbers(number)


def _answer(
    connection: Connection[Any, Any],
    number: int,
    source: BatchSource,
    order: Order,
    collate_fn: CollateFn | None,
    positions: tuple[int, int, int],
) -> None:
    """Make a batch, and send it, or the error that came of it; what is raised here is the pipe's."""
    ok = True
    aside: list[memoryview] = []
    try:
        body, aside = _pack(_make(source, order, collate_fn, positions))
    except BaseException as error:  # noqa: BLE001  the parent raises it
        ok, body = False, _pack_error(error)
    _send(connection, number, ok, body, aside)


def _make(source: BatchSource, order: Order, collate_fn: CollateFn | None, positions: tuple[int, int, int]) -> Any:
    if source.size != order.size:
        raise ArgumentError(
            f"the data set has {source.size} samples in the worker process and {order.size} in its parent: "
            "it must not change while a loader is open"
        )
    prepared = source.prepare(order.positions_to_indexes(*positions))
    count = positions[2]
    if collate_fn is None:
        return source.arrays(prepared, 0, count, np.empty)
    samples = source.samples(prepared, 0, count)
    return collated(collate_fn, samples, lambda number: position_seeds(order, *positions), 0)


def _pack(batch: Any) -> tuple[bytes, list[memoryview]]:
    aside: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _ASIDE_BYTES:
            return True
        aside.append(raw)
        return False

    out = io.BytesIO()
    if "torch" in sys.modules:
        from guideloom._loader import bridge

        pickler: pickle.Pickler = bridge.TensorPickler(out, protocol=5, buffer_callback=keep)
    else:
        pickler = pickle.Pickler(out, protocol=5, buffer_callback=keep)
    pickler.dump(batch)
    return out.getvalue(), aside


def _send(connection: Connection[Any, Any], number: int, ok: bool, body: bytes, aside: list[memoryview]) -> None:
    connection.send_bytes(pickle.dumps((number, ok, [raw.nbytes for raw in aside], body), protocol=5))
    for raw in aside:
        connection.send_bytes(raw)


def _pack_error(error: BaseException | None) -> bytes:
    """Pickle an error, or, where it does not survive that, a text that says everything about it."""
    text = "".join(traceback.format_exception(error))
    body, whole = b"", False
    with suppress(Exception):  # Whatever the user's own reduction raises: the text below tells the error itself.
        body = pickle.dumps(error)
        whole = type(pickle.loads(body)) is type(error)
    if not whole:
        kind = type(error)
        body = pickle.dumps(
            RuntimeError(
                f"{kind.__module__}.{kind.__qualname__}: {error} (an error that cannot be pickled, so it is told here)"
            )
        )
    return pickle.dumps((body, f"in worker process {os.getpid()}:\n{text}"))


def _unpack_error(packed: bytes) -> BaseException:
    body, text = pickle.loads(packed)
    try:
        error: BaseException = pickle.loads(body)
    except Exception as failure:  # noqa: BLE001  the note tells the error itself
        error = RuntimeError(f"an error of a worker process cannot be unpickled here: {failure}")
    error.add_note(text)
    return error
