"""A reader that was open when the process forked: the child's threads read anew, whatever the parent was in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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


def data_files_open(folder: Path) -> int:
    """How many descriptors of this process are those of files in a folder."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    return found


def test_a_child_keeps_no_descriptor_of_its_parents_files(tmp_path: Path) -> None:
    """Neither of a reader that it uses, nor of one that it does not; one that was reading may be closed."""
    storage = make_stream(tmp_path, [9, 3], read_interface=PosixPreadIO())
    statuses = []
    with storage.sync_reader() as reader, storage.sync_reader() as other:
        read_first(reader)
        read_first(other)
        assert data_files_open(tmp_path) == 2

        def use_and_close() -> None:
            assert data_files_open(tmp_path) == 0
            read_first(reader)
            assert data_files_open(tmp_path) == 1
            reader.close()
            assert data_files_open(tmp_path) == 0

        def close() -> None:
            reader.close()
            assert data_files_open(tmp_path) == 0

        for act in (use_and_close, close):
            while_held_up(
                reader.opened[1],
                "_gather",
                lambda: read_first(reader),
                lambda act=act: statuses.append(status_of_child(act)),  # type: ignore[misc]
            )
        assert data_files_open(tmp_path) == 2
        read_first(other)
    assert statuses == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_reads_of_a_child_may_be_several_at_once(tmp_path: Path, backend: str) -> None:
    """Also where a thread of the parent was opening a file, and held the lock for that."""
    statuses = []
    with make_stream(tmp_path, [9], read_interface=BACKENDS[backend]()).sync_reader() as reader:

        def read() -> None:
            with ThreadPoolExecutor(3) as threads:
                for reading in [threads.submit(read_first, reader) for _ in range(3)]:
                    reading.result()

        while_held_up(
            reader.opened[1],
            "_open_one",
            lambda: read_first(reader),
            lambda: statuses.append(status_of_child(read)),
        )
    assert statuses == [0]
