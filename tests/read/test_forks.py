"""A reader that was open when the process forked: the child's threads read anew, whatever the parent was in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guideloom import StreamStorage
from guideloom.io import MmapIO, PosixPreadIO
from guideloom.testing import IdStreamFormat, MinimalBackend, make_stream

BACKENDS: dict[str, Callable[[], Any]] = {"pread": PosixPreadIO, "mmap": MmapIO, "user": MinimalBackend}


def status_of_child(act: Callable[[], None]) -> int:
    """Run a function in a forked process, which an alarm ends should it hang."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def read_first(reader: Any) -> None:
    assert reader.read(0, 3).elements.tolist() == [0, 1, 2]


def while_held_up(holder: Any, name: str, begin: Callable[[], None], act: Callable[[], None]) -> None:
    """Call ``act`` while a thread that runs ``begin`` is in the method ``name`` of ``holder``."""
    inside, go_on = threading.Event(), threading.Event()
    method, parent = getattr(holder, name), os.getpid()

    def held_up(*args: Any) -> Any:
        if os.getpid() == parent:
            inside.set()
            go_on.wait()
        return method(*args)

    setattr(holder, name, held_up)
    thread = threading.Thread(target=begin)
    thread.start()
    try:
        inside.wait()
        act()
    finally:
        go_on.set()
        thread.join()


def test_a_child_checks_what_a_thread_of_the_parent_was_checking(tmp_path: Path) -> None:
    make_stream(tmp_path, [9])
    statuses = []
    with StreamStorage(tmp_path, IdStreamFormat("<i8"), PosixPreadIO(), verify=True).sync_reader() as reader:
        while_held_up(
            reader.opened[1].checker,
            "accept",
            lambda: read_first(reader),
            lambda: statuses.append(status_of_child(lambda: read_first(reader))),
        )
    assert statuses == [0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_reads_of_a_child_may_be_several_at_once(tmp_path: Path, backend: str) -> None:
    storage = make_stream(tmp_path, [9], read_interface=BACKENDS[backend]())
    with storage.sync_reader() as reader:
        read_first(reader)
        files = reader.opened[1]

        def read() -> None:
            forget, forgot, failed = files._forget, [], []

            def meanwhile() -> None:
                try:
                    read_first(reader)
                except BaseException as error:  # noqa: BLE001  whatever it is, the child says so
                    failed.append(error)

            other = threading.Thread(target=meanwhile)

            def forget_slowly() -> None:
                forgot.append(threading.current_thread())
                if len(forgot) == 1:
                    other.start()
                    # The other thread comes to its end here only if it does not wait for this one.
                    other.join(0.05)
                forget()

            files._forget = forget_slowly
            read_first(reader)
            other.join()
            assert not failed
            assert len(forgot) == 1

        assert status_of_child(read) == 0
