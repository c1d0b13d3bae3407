"""Writers on a file system that is really full, and readers on one that is really read-only, in a mount of their own.

Needs ``unshare`` and a kernel that lets a user make a mount namespace; :func:`is_possible` says whether that is so.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from guideloom import DocumentStorage
from guideloom._storage.verify import verify
from guideloom.io import PosixPreadIO
from tests.storage.support import Raw

_SIZE_BYTES = 1 << 20
_SESSIONS = 40
_UNSHARE = ["unshare", "--map-root-user", "--mount"]


def is_possible() -> bool:
    """Whether this machine lets a user mount a file system of its own."""
    return (
        shutil.which("unshare") is not None and subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode == 0
    )


def run_case(seed: int, scratch: Path) -> int:
    """Run one case in a process with a mount of its own; return how many writers found no room."""
    command = [*_UNSHARE, sys.executable, "-m", "tests.soak.full", str(seed), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return int(done.stdout)


def _read(storage: DocumentStorage) -> list[bytes]:
    with storage.sync_reader() as reader:
        return [bytes(document) for document in reader.read_many(range(reader.total_length))]


def _write(storage: DocumentStorage, documents: list[bytes], fill: Path | None = None) -> int:
    """Append in one session, and fill the disk before its end if asked to; return an error's number, else 0."""
    try:
        with storage.sync_writer(mode="append") as writer:
            for document in documents:
                writer.append(0, document)
            if fill is not None:
                _fill(fill)
    except OSError as error:
        return error.errno or -1
    return 0


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _in_mount(seed: int, folder: Path) -> int:
    choose = random.Random(seed)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(folder)], check=True)
    storage = DocumentStorage(folder / "data", Raw(), PosixPreadIO())  # type: ignore[arg-type]
    expected = [b"first"]
    assert _write(storage, expected) == 0
    full = 0
    for _ in range(_SESSIONS):
        documents = [choose.randbytes(choose.choice((10, 1000, 100_000))) for _ in range(choose.randrange(1, 9))]
        filler = folder / "filler"
        number = _write(storage, documents, filler if choose.random() < 0.5 else None)
        assert number in (0, errno.ENOSPC), number
        full += number != 0
        found = _read(storage)
        assert found in (expected, expected + documents), "neither the old data nor the new"
        assert number or found != expected, "a writer said that all was well"
        expected = found
        filler.unlink(missing_ok=True)
        temporary = [name for name in os.listdir(folder / "data") if name.startswith(".tmp")]
        assert not temporary, temporary
        if sum(map(len, expected)) > _SIZE_BYTES // 2:
            shutil.rmtree(folder / "data")
            expected = [b"again"]
            assert _write(storage, expected) == 0
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    assert _read(storage) == expected
    assert verify(folder / "data").is_sound
    assert _write(storage, [b"refused"]) == errno.EROFS
    assert _read(storage) == expected
    return full


if __name__ == "__main__":
    print(_in_mount(int(sys.argv[1]), Path(sys.argv[2])))
