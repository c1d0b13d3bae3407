"""Worker processes as their parent sees them: started, kept from one epoch to the next, and ended.

There are no names that could outlive a killed run: a pipe that closes ends the worker.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing import util
from time import perf_counter
from typing import Any

from guideloom._loader.worker_body import Answer, Job, SentJob, receive, work
from guideloom._plan.order import Order

PATIENCE_S = 0.3
"""How long a worker may take to finish what it has begun, or to end, before it is terminated."""
_LAST_PATIENCE_S = 0.2
GONE_S = PATIENCE_S + 2 * _LAST_PATIENCE_S
"""After so long the workers of a feed that was told to end are idle, or gone: terminated and, if need be, killed."""

# What batch systems send, and users handle.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
]
_NUMBERS = count()

_STARTED: set[Worker] = set()
_finalizer: util.Finalize | None = None


def _leave_to_parent() -> None:
    global _finalizer
    _finalizer = None
    children: set[Any] = getattr(multiprocessing.process, "_children", set())
    while _STARTED:
        worker = _STARTED.pop()
        # A forked child that kept this would keep the worker from noticing that the parent is gone.
        worker.connection.close()
        # Else multiprocessing would end the parent's worker when the child exits.
        children.discard(worker.process)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


_PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)
"""What Python raises for an object that cannot be pickled, by its type."""


class Worker:
    """A process that makes batches.

    Parameters
    ----------
    job : Job
        Pickled by the start methods other than fork.
    number : int
        For its name.

    Attributes
    ----------
    assigned : list of int
        Batches that it owes, in the order in which they come.
    sound : bool
        Whether all went well so far: only then it may serve another epoch.
    """

    def __init__(self, job: Job, number: int) -> None:
        context = multiprocessing.get_context()
        forks = context.get_start_method() == "fork"
        self.assigned: list[int] = []
        self.sound = True
        self._order: Order | None = None
        self._pid = os.getpid()
        self.connection, theirs = context.Pipe()
        try:
            # Daemonic: multiprocessing ends it too, should this process exit in a way that skips our own cleaning up.
            self.process = context.Process(
                target=work,
                args=(theirs, job if forks else SentJob(job), handled_signals(), next(_NUMBERS)),
                name=f"guideloom-worker-{number}",
                daemon=True,
            )
            _STARTED.add(self)
            _kill_at_exit()
            self.process.start()
        except BaseException as error:
            if not forks and isinstance(error, _PICKLING_ERRORS):
                error.add_note(
                    "worker processes that are not forked get data set, format and collate_fn pickled: define "
                    'functions and classes at the top level of a module, or pass parallel_method="thread"'
                )
            self.close()
            raise
        finally:
            theirs.close()

    @property
    def ours(self) -> bool:
        """Whether this process started it, and not one that this process was forked from."""
        return self._pid == os.getpid()

    def send(self, number: int, positions: tuple[int, int, int], order: Order) -> None:
        """Have batch ``number`` made; ``OSError`` where the process is gone."""
        self.assigned.append(number)
        self.connection.send((number, positions, None if order is self._order else order))
        self._order = order

    def receive(self) -> Answer:
        """Wait for the next answer; ``EOFError`` or ``OSError`` where the process is gone."""
        sound, self.sound = self.sound, False  # what breaks off leaves the pipe in the middle of an answer
        answer = receive(self.connection)
        self.assigned.remove(answer.number)
        self.sound = sound and answer.ok
        return answer

    def close(self) -> None:
        """Close the pipe, which tells the worker to end; safe to call again, and in a finaliser."""
        _STARTED.discard(self)
        self.connection.close()


class Workers:
    """The idle workers of an open loader, for its next epoch; those that are at work are their feed's.

    Nothing here refers to the loader, and nothing waits for a lock: a finaliser may close it, in any thread.
    """

    def __init__(self) -> None:
        self.closed = False
        self._idle: deque[Worker] = deque()
        self._leaving: list[Worker] = []
        self._leave_until = 0.0

    def take(self) -> Worker | None:
        """Return an idle worker; None where one must be started."""
        while True:
            worker = _pop(self._idle)
            if worker is None or (worker.ours and worker.process.is_alive()):
                return worker
            # The parent's, or killed meanwhile: it owed nothing, so that nothing is lost.
            worker.close()

    def keep(self, workers: Iterable[Worker], most: int) -> list[Worker]:
        """Keep workers that owe nothing, at most ``most`` in all, and return those that are to be ended."""
        left = list(workers)
        while left and len(self._idle) < most:
            self._idle.append(left.pop())
        if self.closed:
            # Perhaps meanwhile, by another thread: then one of us finds them.
            while (worker := _pop(self._idle)) is not None:
                left.append(worker)
        return left

    def close(self) -> None:
        """Tell all to end, and keep no worker from now on, without waiting; safe in a finaliser."""
        self._leave_until = perf_counter() + PATIENCE_S
        self.closed = True
        while (worker := _pop(self._idle)) is not None:
            worker.close()
            self._leaving.append(worker)

    def join(self) -> None:
        """Wait for the end of what ``close`` told to end, a moment; those that take longer are ended."""
        leaving, self._leaving = self._leaving, []
        end_workers(leaving, self._leave_until)


def _pop(workers: deque[Worker]) -> Worker | None:
    try:
        return workers.pop()
    except IndexError:
        return None


def end_workers(workers: Iterable[Worker], deadline: float) -> None:
    """End processes: they may do it by themselves until ``deadline``, of ``perf_counter``, or are made to."""
    left = [worker for worker in workers if worker.ours]
    for worker in left:
        worker.close()
    for last_word in ("terminate", "kill"):
        for worker in left:
            worker.process.join(max(0.0, deadline - perf_counter()))
        left = [worker for worker in left if worker.process.is_alive()]
        for worker in left:
            getattr(worker.process, last_word)()
        deadline = perf_counter() + _LAST_PATIENCE_S
    for worker in left:
        worker.process.join()


def _kill_at_exit() -> None:
    """Have what is left of the workers killed when this process exits.

    multiprocessing would send SIGTERM to them, which they may ignore, and wait for their end.
    """
    global _finalizer
    if _finalizer is None:
        _finalizer = util.Finalize(None, _kill_all, exitpriority=0)


def _kill_all() -> None:
    for worker in list(_STARTED):
        if worker.process.pid is not None:
            worker.process.kill()


def handled_signals() -> tuple[int, ...]:
    """Return the signals that this process has a handler of Python for, or ignores."""
    return tuple(number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_DFL, None))


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes without signals that are the parent's to handle, until they have said so themselves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked: set[int] = {signal.SIGINT}
    method = multiprocessing.get_start_method()
    if method != "fork":
        from multiprocessing import resource_tracker  # where there is one: not on Windows

        # It is started with the first of such processes, and unblocks signals then; so does it here, before.
        resource_tracker.ensure_running()
    if method != "forkserver":
        # The server would inherit it, and give it to processes that are none of ours.
        blocked.update(handled_signals())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
