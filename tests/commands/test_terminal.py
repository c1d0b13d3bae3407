"""The commands at a terminal, and away from one: bars, questions, and what goes into a pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import StreamNumpyFormat, StreamStorage

pytestmark = pytest.mark.slow
started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    yield
    while started:
        process = started.pop()
        process.kill()
        process.wait()


TOKENS = StreamNumpyFormat(np.dtype([("token", "<u2")]))


class Terminal:
    """Runs a command with a terminal for some of its streams, and a pipe for the others."""

    def __init__(self, *arguments: object, at_terminal: tuple[str, ...] = ("stdin", "stdout", "stderr")) -> None:
        self.keyboard, end = os.openpty()
        termios.tcsetwinsize(end, (24, 100))
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "guideloom", *map(str, arguments)],
            **{name: end if name in at_terminal else pipe for name, pipe in pipes.items()},
            start_new_session=True,
        )
        os.close(end)
        started.append(self.process)
        self.screen = ""

    def until(self, text: str = "") -> str:
        """Read the screen until ``text`` is on it, or until the command lets go of the terminal."""
        while not text or text not in self.screen:
            assert select.select([self.keyboard], [], [], 60)[0], self.screen
            try:
                data = os.read(self.keyboard, 4096)
            except OSError:  # how Linux says that nobody else has the terminal open
                break
            if not data:
                break
            self.screen += data.decode()
        assert text in self.screen, self.screen
        return self.screen

    def end(self) -> tuple[int, str, str]:
        """Exit status, and what came through the pipes."""
        self.until()
        out, err = self.process.communicate(timeout=60)
        os.close(self.keyboard)
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with StreamStorage(tmp_path / "data", TOKENS).sync_writer() as writer:
        for shard in range(2):
            writer.append(shard, {"token": np.arange(9)})
    return tmp_path / "data"


def damage(folder: Path) -> None:
    (last,) = folder.glob("0000001-0000.*.bin")
    last.write_bytes(b"?" * last.stat().st_size)


def test_a_bar_at_a_terminal_and_none_in_a_pipe(data: Path) -> None:
    watched = Terminal("verify", data, at_terminal=("stderr",))
    status, out, _ = watched.end()
    assert (status, out.count("\n")) == (0, 1) and "sound" in out
    assert "verify:" in watched.screen and "%" in watched.screen
    # The bar is gone when the verdict is printed.
    assert watched.screen.endswith("\r")
    piped = Terminal("verify", data, at_terminal=("stdin", "stdout"))
    assert piped.end() == (0, "", "")
    assert "sound" in piped.screen and "%" not in piped.screen


def test_json_is_one_object_whoever_watches(data: Path) -> None:
    damage(data)
    watched = Terminal("verify", data, "--json", at_terminal=("stderr",))
    status, out, _ = watched.end()
    assert status == 1 and json.loads(out)["sound"] is False
    assert "%" in watched.screen
    for arguments in (["info", data, "--json"], ["show", data, 0, "--json"]):
        status, out, _ = Terminal(*arguments, at_terminal=("stdin", "stderr")).end()
        assert status == 0 and json.loads(out)


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("y", True), ("YES", True), ("", False), ("n", False), ("\x04", False)]
)
@pytest.mark.parametrize("command", ["repair", "clean"])
def test_the_question_is_asked_and_heeded(data: Path, command: str, answer: str, goes_on: bool) -> None:
    damage(data)
    (data / ".tmp-left").write_bytes(b"123")
    before = sorted(data.iterdir())
    terminal = Terminal(command, data)
    said = terminal.until("[y/N] ")
    # What will be done is said before the question, and nothing is done before the answer.
    assert "?" in said and sorted(data.iterdir()) == before
    assert (".tmp-left" if command == "clean" else "move part 0 of shard 1 away") in said
    os.write(terminal.keyboard, answer.encode() if answer == "\x04" else answer.encode() + b"\n")
    status, _, _ = terminal.end()
    assert status == (0 if goes_on else 1)
    assert (sorted(data.iterdir()) == before) is not goes_on
    assert ("nothing was" in terminal.screen) is not goes_on


@pytest.mark.parametrize("command", ["repair", "clean"])
def test_nobody_to_ask(data: Path, command: str) -> None:
    damage(data)
    (data / ".tmp-left").write_bytes(b"123")
    before = sorted(data.iterdir())
    status, out, err = Terminal(command, data, at_terminal=()).end()
    assert status == 2 and "--yes" in err and out
    assert sorted(data.iterdir()) == before
    status, out, err = Terminal(command, data, "--yes", at_terminal=()).end()
    assert (status, err) == (0, "") and sorted(data.iterdir()) != before


@pytest.mark.parametrize("command", ["repair", "clean", "verify", "upgrade"])
def test_ctrl_c_is_one_line(data: Path, tmp_path: Path, command: str) -> None:
    damage(data)
    (data / ".tmp-left").write_bytes(b"123")
    arguments: list[Any] = [data]
    moment = "[y/N] "
    if command in ("verify", "upgrade"):
        # Holes, but enough of them that it is not done before the signal comes.
        moment = "%"
        old = tmp_path / "old"
        old.mkdir()
        for shard in range(200):
            (old / f"{shard:07d}.in_band.bin").touch()
            os.truncate(old / f"{shard:07d}.in_band.bin", 6 << 20)
            if command == "verify":
                (old / f"{shard:07d}.out_of_band.index").write_bytes(bytes(8))
                (old / f"{shard:07d}.out_of_band.bin").touch()
        arguments = [old, "--dtype", "<u2"] if command == "verify" else [old, tmp_path / "new", "--dtype", "<u2"]
    terminal = Terminal(command, *arguments)
    terminal.until(moment)
    terminal.process.send_signal(signal.SIGINT)
    status, _, _ = terminal.end()
    assert status == 130, terminal.screen
    assert "Traceback" not in terminal.screen and "interrupted" in terminal.screen.splitlines()[-1]
