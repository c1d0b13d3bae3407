"""Batches made by processes, and one thread of ours that tells them which, and puts their batches in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

from guideloom._base.errors import ArgumentError
from guideloom._base.interrupts import interrupts_later
from guideloom._loader.exits import register, unregister
from guideloom._loader.outbox import Failure, Outbox
from guideloom._loader.work import Feed, Schedule
from guideloom._loader.worker_body import Job
from guideloom._loader.workers import PATIENCE_S, Worker, Workers, end_workers, interrupts_blocked

# The command after the present one waits in the worker's pipe, so that it never idles.
_COMMANDS_A_WORKER = 2


class ProcessFeed:
    """Batches made by processes.

    Parameters
    ----------
    workers : Workers
        Where idle processes come from, and where those go that owe nothing in the end.
    job : Job
        For processes that have to be started.
    schedule : Schedule
    num_workers : int
        Processes, at least 1; no more than there are batches.
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
        workers: Workers,
        job: Job,
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
        self._idle_workers = workers
        self._num_workers = num_workers
        self._workers: list[Worker] = []
        # Instead of the thread's own: ``threading`` takes a thread for ended when a wait for it is interrupted.
        self._ended = False
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name="guideloom-processes", daemon=True)
        # Of the thread and a start that was interrupted, one ends the workers.
        self._claim = threading.Lock()
        try:
            # What starts processes would lose them, or swallow the interrupt.
            with interrupts_later(), interrupts_blocked():
                self._man(job, min(num_workers, self._total))
                register(self, [self._thread])
                on_start(self)
                self._thread.start()
        except BaseException:
            self.stop()
            if self._claim.acquire(blocking=False):
                end_workers(self._workers, perf_counter() + PATIENCE_S)
                self._end()
            raise

    def _man(self, job: Job, num_workers: int) -> None:
        while len(self._workers) < num_workers and (worker := self._idle_workers.take()) is not None:
            self._workers.append(worker)
        if len(self._workers) < num_workers:
            # Compiles, or loads, the kernels of order and plan once here, instead of once in each forked worker.
            self._schedule.rows(0)
        while len(self._workers) < num_workers:
            self._workers.append(Worker(job, len(self._workers)))

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
        if os.getpid() != self._pid:
            # The thread stayed behind.
            return True
        if not self._ended and self._running.acquire(timeout=timeout_s):
            self._running.release()
        if self._ended and self._thread.is_alive():
            self._thread.join(timeout_s)
        return self._ended

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
            try:
                self._let_go()
            finally:
                self._results.clear()
                self._end()

    def _end(self) -> None:
        unregister(self)
        self._ended = True
        self._running.release()

    def _serve(self) -> None:
        head = 0
        while not self._stopped and head < self._total:
            self._assign()
            # One that was found dead when it was given a batch has left an error in its place: nobody wakes us then.
            if head not in self._results:
                self._wait()
            while head in self._results and not self._stopped:
                item = self._results.pop(head)
                head += 1
                if type(item) is not Failure and self._received is not None:
                    item = self._received(item)
                self._outbox.put(item)
                if type(item) is Failure:
                    return

    def _wait(self) -> None:
        """Wait for answers of workers, or to be woken."""
        waiting = {worker.connection: worker for worker in self._workers}
        for found in wait([*waiting, self._woken]):
            if found is self._woken:
                self._woken.recv_bytes()
            else:
                self._receive(waiting[found])  # type: ignore[index]

    def _assign(self) -> None:
        while self._workers:
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
            try:
                worker.send(number, self._schedule.positions(number), self._schedule.order)
            except OSError:
                self._lose(worker)

    def _receive(self, worker: Worker) -> None:
        try:
            answer = worker.receive()
        except (EOFError, OSError):
            self._lose(worker)
            return
        try:
            self._results[answer.number] = answer.batch() if answer.ok else Failure(answer.error())
        except BaseException as error:  # noqa: BLE001  also what unpickling raises is raised at this batch
            self._results[answer.number] = Failure(error)

    def _lose(self, worker: Worker) -> None:
        """Put an error in the place of the first batch that a dead worker owes."""
        worker.close()
        self._workers.remove(worker)
        worker.process.join(PATIENCE_S)
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

    def _let_go(self) -> None:
        """Keep the workers that owe nothing for the next epoch, and end the others."""
        deadline = perf_counter() + PATIENCE_S
        kept: list[Worker] = []
        try:
            self._settle(deadline)
            kept = [worker for worker in self._workers if worker.sound and not worker.assigned]
        finally:
            ended = [worker for worker in self._workers if worker not in kept]
            self._workers = []
            end_workers([*ended, *self._idle_workers.keep(kept, self._num_workers)], deadline)

    def _settle(self, deadline: float) -> None:
        """Take what workers still owe when an epoch is left before its end, and throw it away."""
        owing = {worker.connection: worker for worker in self._workers if worker.sound and worker.assigned}
        while owing and not self._idle_workers.closed:
            found_in_time = wait([*owing, self._woken], max(0.0, deadline - perf_counter()))
            if not found_in_time:
                return
            for found in found_in_time:
                if found is self._woken:
                    self._woken.recv_bytes()
                    continue
                worker = owing[found]  # type: ignore[index]
                with suppress(Exception):  # Whatever it is, the worker is then no longer sound.
                    worker.receive()
                if not worker.sound or not worker.assigned:
                    del owing[found]  # type: ignore[arg-type]


def _wake(waker: Connection[Any, Any]) -> None:
    with suppress(OSError):  # The child of a fork has no thread to wake, and may have no pipe.
        waker.send_bytes(b"w")
