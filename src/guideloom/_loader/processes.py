"""Batches made by processes, and one thread of ours that tells them which, and puts their batches in order.

A command is a batch number and three integers; the worker computes the rest. Batches come back through pipes, large
arrays beside the pickle. There are no names that could outlive a killed run: a pipe that closes ends the worker.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import numpy as np

from guideloom._base.errors import ArgumentError
from guideloom._base.interrupts import interrupts_later
from guideloom._base.protocols import DatasetAbstract
from guideloom._dataset.source import BatchSource, source_of
from guideloom._loader.outbox import Failure, Outbox
from guideloom._loader.pipeline import register, unregister
from guideloom._loader.work import CollateFn, Feed, Schedule
from guideloom._plan.order import Order
from guideloom._storage.catalog import Catalog

# The command after the present one waits in the worker's pipe, so that it never idles.
_COMMANDS_A_WORKER = 2
_ASIDE_BYTES = 1 << 16
_PATIENCE_S = (0.3, 0.2)

_PARENT_ENDS: set[Connection[Any, Any]] = set()


def _close_parent_ends() -> None:
    # A forked child that kept these would keep its siblings from noticing that the parent is gone.
    while _PARENT_ENDS:
        _PARENT_ENDS.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_parent_ends)


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker needs to know."""

    dataset: DatasetAbstract
    snapshot: Catalog | None
    collate_fn: CollateFn | None
    order: Order


class _Worker:
    """A process as its parent sees it."""

    def __init__(self, job: _Job, number: int) -> None:
        context = multiprocessing.get_context()
        self.connection, theirs = context.Pipe()
        _PARENT_ENDS.add(self.connection)
        try:
            # Daemonic: multiprocessing ends it too, should this process exit in a way that skips our own cleaning up.
            self.process = context.Process(
                target=_work, args=(theirs, job), name=f"guideloom-worker-{number}", daemon=True
            )
            self.process.start()
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
        self.assigned: list[int] = []

    def close(self) -> None:
        """Close the pipe, which tells the worker to end."""
        _PARENT_ENDS.discard(self.connection)
        self.connection.close()


class ProcessFeed:
    """Batches made by processes.

    Parameters
    ----------
    dataset, collate_fn
        As the loader's; with the start methods other than fork they are pickled.
    snapshot : Catalog or None
        What the loader has open, and the processes open too.
    schedule : Schedule
    num_workers : int
        Processes, at least 1.
    prefetch : int
        Batches made ahead; 0: each is begun when it is asked for.
    enter_thread : callable
        Called first in our thread.
    received : callable or None
        What is done to each batch, in our thread.
    on_start : callable
        Called once, with this object, before the thread starts.
    """

    def __init__(
        self,
        dataset: DatasetAbstract,
        snapshot: Catalog | None,
        collate_fn: CollateFn | None,
        schedule: Schedule,
        num_workers: int,
        prefetch: int,
        enter_thread: Callable[[], None],
        received: Callable[[Any], Any] | None,
        on_start: Callable[[Feed], None],
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise ArgumentError(
                'parallel_method="process" cannot be used in a daemonic process, which may have no processes of its '
                'own, such as a worker of multiprocessing.Pool: use parallel_method="thread", or start this process '
                "with daemon=False"
            )
        self._schedule = schedule
        self._total = schedule.num_batches
        self._on_demand = prefetch == 0
        self._demanded = 0
        # The pipe is never closed by hand: a finaliser may write to it at any time, and must not meet another file's
        # number. It goes with what refers to it, at once, for nothing in that refers to us.
        self._woken, self._waker = multiprocessing.Pipe(duplex=False)
        self._wake = partial(_wake, self._waker)
        self._outbox = Outbox(max(1, prefetch), self._total, self._wake)
        self._enter_thread = enter_thread
        self._received = received
        self._results: dict[int, Any] = {}
        self._stopped = False
        self._pid = os.getpid()
        self._workers: list[_Worker] = []
        job = _Job(dataset, snapshot, collate_fn, schedule.order)
        # Compiles, or loads, the kernels of order and plan once here, instead of once in each forked worker.
        schedule.rows(0)
        self._thread = threading.Thread(target=self._run, name="guideloom-processes", daemon=True)
        # Of the thread and a start that was interrupted, one ends the workers.
        self._claim = threading.Lock()
        try:
            # What starts processes would lose them, or swallow the interrupt.
            with interrupts_later(), _interrupts_blocked():
                for number in range(min(num_workers, self._total)):
                    self._workers.append(_Worker(job, number))
                register(self)
                on_start(self)
                self._thread.start()
        except BaseException:
            self.stop()
            if self._claim.acquire(blocking=False):
                self._end_workers()
                unregister(self)
            raise

    # --- the caller's side ---

    def take(self) -> Any:
        """See :class:`Feed`."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator was made before the process forked, its workers stayed behind: call iter(loader) again"
            )
        if self._on_demand and self._demanded < self._total:
            self._demanded += 1
            self._wake()
        return self._outbox.take()

    def stop(self) -> None:
        """See :class:`Feed`."""
        self._stopped = True
        self._outbox.stop()
        self._wake()

    def join(self, timeout_s: float) -> bool:
        """See :class:`Feed`."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- our thread ---

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._enter_thread()
            self._serve()
        except BaseException as error:  # noqa: BLE001  whatever it is, the caller gets it
            self._outbox.put(Failure(error))
        finally:
            self._end_workers()
            self._results.clear()
            unregister(self)

    def _serve(self) -> None:
        head = 0
        while not self._stopped and head < self._total:
            self._assign()
            waiting = {worker.connection: worker for worker in self._workers}
            for found in wait([*waiting, self._woken]):
                if found is self._woken:
                    self._woken.recv_bytes()
                else:
                    self._receive(waiting[found])  # type: ignore[index]
            while head in self._results and not self._stopped:
                item = self._results.pop(head)
                head += 1
                if type(item) is not Failure and self._received is not None:
                    item = self._received(item)
                self._outbox.put(item)
                if type(item) is Failure:
                    return

    def _assign(self) -> None:
        while True:
            worker = min(self._workers, key=lambda worker: len(worker.assigned))
            if len(worker.assigned) >= _COMMANDS_A_WORKER:
                return
            with self._outbox.mutex:
                limit = self._demanded if self._on_demand else self._outbox.limit
                if self._outbox.begun >= limit:
                    self._outbox.starved = True
                    return
                number = self._outbox.begun
                self._outbox.begun += 1
            worker.assigned.append(number)
            try:
                worker.connection.send((number, self._schedule.positions(number)))
            except OSError:
                self._lose(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            number, ok, sizes, body = pickle.loads(worker.connection.recv_bytes())
            buffers = []
            for size in sizes:
                buffers.append(bytearray(size))
                worker.connection.recv_bytes_into(buffers[-1])
        except (EOFError, OSError):
            self._lose(worker)
            return
        worker.assigned.remove(number)
        try:
            self._results[number] = pickle.loads(body, buffers=buffers) if ok else Failure(_unpack_error(body))
        except BaseException as error:  # noqa: BLE001  whatever unpickling raises, it is raised at this batch
            self._results[number] = Failure(error)

    def _lose(self, worker: _Worker) -> None:
        """Put an error in the place of the first batch that a dead worker owes."""
        worker.close()
        self._workers.remove(worker)
        worker.process.join(_PATIENCE_S[0])
        code = worker.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how += f", killed by signal {-code}"
            if -code == getattr(signal, "SIGKILL", 9):
                how += ", for lack of memory perhaps"
        with self._outbox.mutex:
            if not worker.assigned:
                worker.assigned.append(self._outbox.begun)
                self._outbox.begun += 1
        for number in worker.assigned:
            self._results[number] = Failure(
                RuntimeError(
                    f"worker process {worker.process.pid} ended ({how}) before it gave batch {number}: "
                    "look for its output, or use parallel_method='thread' to see the cause"
                )
            )
        if not self._workers:
            # Nothing more will come; let the failure be found.
            with self._outbox.mutex:
                self._outbox.begun = self._total

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.close()
        left = [worker.process for worker in self._workers]
        for patience_s, last_word in zip(_PATIENCE_S, ("terminate", "kill"), strict=True):
            deadline = perf_counter() + patience_s
            for process in left:
                process.join(max(0.0, deadline - perf_counter()))
            left = [process for process in left if process.is_alive()]
            for process in left:
                getattr(process, last_word)()
        for process in left:
            process.join()
        self._workers = []


def _wake(waker: Connection[Any, Any]) -> None:
    with suppress(OSError):  # The child of a fork has no thread to wake, and may have no pipe.
        waker.send_bytes(b"w")


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes without SIGINT, until they have said that Ctrl-C is the parent's."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the worker -----------------------------------------------------------------------------


def _work(connection: Connection[Any, Any], job: _Job) -> None:
    """Body of a worker: answers commands until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent's handler, inherited by fork, is none of ours.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if "torch" in sys.modules:
        from guideloom._loader import bridge

        bridge.one_thread()
    reader = None
    failure: BaseException | None = None
    source: BatchSource | None = None
    try:
        reader = job.dataset.sync_reader()
        # What was committed since must not come into some of the workers' batches.
        open_snapshot = getattr(reader, "open_snapshot", None)
        if job.snapshot is None or open_snapshot is None:
            reader.open()
        else:
            open_snapshot(job.snapshot)
        source = source_of(reader)
        if source.size != job.order.size:
            raise ArgumentError(
                f"the data set has {source.size} samples in the worker process and {job.order.size} in its parent: "
                "it must not change while a loader is open"
            )
    except BaseException as error:  # noqa: BLE001  the parent raises it
        failure = error
    try:
        while True:
            number, positions = connection.recv()
            if failure is None and source is not None:
                try:
                    _send_batch(connection, number, _make(source, job, positions))
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    return
                except BaseException as error:  # noqa: BLE001  the parent raises it
                    _send(connection, number, False, _pack_error(error), [])
            else:
                _send(connection, number, False, _pack_error(failure), [])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent closed its end, or is gone.
        return
    finally:
        if reader is not None and failure is None:
            reader.close()


def _make(source: BatchSource, job: _Job, positions: tuple[int, int, int]) -> Any:
    prepared = source.prepare(job.order.positions_to_indexes(*positions))
    count = positions[2]
    if job.collate_fn is None:
        return source.arrays(prepared, 0, count, np.empty)
    return job.collate_fn(source.samples(prepared, 0, count))


def _send_batch(connection: Connection[Any, Any], number: int, batch: Any) -> None:
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
    _send(connection, number, True, out.getvalue(), aside)


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
