"""The compiler of kernels: every state of the cache gives the right answer, quietly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import guideloom
from guideloom._kernels.jit import kernel

SOURCES = Path(guideloom.__file__).parent

KERNEL_MODULE = '''
"""A kernel in a file of its own, so that its cache is too."""
import numpy as np
from guideloom._kernels.jit import kernel

@kernel("int64(int64[::1], int64)")
def reverse(values, add):
    n = values.size
    for i in range(n // 2):
        values[i], values[n - 1 - i] = values[n - 1 - i], values[i]
    return values[0] + add
'''

SCRIPT = """
import json, logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="LOG %(message)s")
logging.getLogger("numba").setLevel(logging.WARNING)
import numpy as np
from small_kernel import reverse
values = np.array([0, 7, 3], np.int64)
first = reverse(values, 1)
stats = getattr(reverse.get(), "stats", None)
print(json.dumps({"values": values.tolist(), "first": int(first),
                  "hits": sum(stats.cache_hits.values()) if stats else None,
                  "numba": "numba" in sys.modules,
                  "compiler": "numba.np.linalg" in sys.modules}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "small_kernel.py").write_text(KERNEL_MODULE)
    return folder


def environment(project: Path, **variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "GUIDELOOM_"))}
    return clean | {"PYTHONPATH": os.pathsep.join([str(project), str(SOURCES.parent)])} | variables


def run(env: Mapping[str, str], script: str = SCRIPT) -> tuple[dict, list[str]]:
    """Run the script with warnings as errors; return what it printed, and its log."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], env=env, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    *log, answer = result.stdout.splitlines()
    return json.loads(answer), log


def right(answer: dict) -> bool:
    return answer["values"] == [3, 7, 0] and answer["first"] == 4


def cache_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))


def test_second_process_takes_the_kernel_from_the_cache(project: Path, tmp_path: Path) -> None:
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    answers = [run(env)[0] for _ in range(2)]
    assert all(map(right, answers))
    assert [answer["hits"] for answer in answers] == [0, 1]


@pytest.mark.parametrize("tried", [True, False])
def test_the_compiler_starts_for_nothing_that_is_in_the_cache(project: Path, tmp_path: Path, tried: bool) -> None:
    """Its start takes longer than to load all kernels; only with an untried release of numba that has to be."""
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    first, _ = run(env)
    release = "" if tried else "from guideloom._kernels import jit\njit._TRIED_RELEASES = range(0)\n"
    second, _ = run(env, release + SCRIPT)
    assert right(first) and right(second)
    assert (first["hits"], first["compiler"]) == (0, True)
    assert (second["hits"], second["compiler"]) == (1, not tried)


ALL_KERNELS = """
import importlib, json, pkgutil, sys
import guideloom._kernels as package
from guideloom._kernels.jit import Kernel
hits = []
for info in pkgutil.iter_modules(package.__path__):
    for value in vars(importlib.import_module(f"{package.__name__}.{info.name}")).values():
        if isinstance(value, Kernel):
            hits.append(sum(value.get().stats.cache_hits.values()))
print(json.dumps({"kernels": len(hits), "hits": sum(hits), "compiler": "numba.np.linalg" in sys.modules}))
"""


def test_no_kernel_of_ours_asks_for_the_compiler_when_it_is_loaded(tmp_path: Path) -> None:
    """What a kernel calls of NumPy may: numba then imports what compiled it, which takes as long as all the rest."""
    env = environment(tmp_path)  # the cache of all tests: most kernels are there
    answer, _ = run(env, ALL_KERNELS)
    if answer["hits"] < answer["kernels"]:
        answer, _ = run(env, ALL_KERNELS)
    assert answer["kernels"] > 10
    assert (answer["hits"], answer["compiler"]) == (answer["kernels"], False)


COMPILED_LATER = """
import math, numba

@numba.njit
def of_the_user(values):
    names = {1: values.sum(), 2: math.gamma(values[4])}
    return names[1] + names[2] + reverse_compiled(values.astype(np.int64), 1)

@numba.njit("int64(int64)")
def eager(number):
    return number * 2

reverse_compiled = reverse.get()
print(json.dumps([of_the_user(np.arange(5.0)), int(eager(4)), int(reverse(values, 1))]))
"""


def test_what_users_compile_after_a_kernel_of_the_cache(project: Path, tmp_path: Path) -> None:
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert run(env)[0]["hits"] == 0
    answer, log = run(env, SCRIPT + COMPILED_LATER)
    assert json.loads(log[-1])["hits"] == 1
    assert answer == [10.0 + 6.0 + 5, 8, 1]


def test_a_change_of_any_kernel_source_misses_the_cache(project: Path, tmp_path: Path) -> None:
    """Of a kernel's sources numba knows one file, and serves what was compiled with another version of the rest."""
    cache = tmp_path / "cache"
    env = environment(project, NUMBA_CACHE_DIR=str(cache))
    change = """
from pathlib import Path
from guideloom._kernels import jit
read = Path.read_bytes
Path.read_bytes = lambda path: read(path) + b"# changed" * (path.name == "status.py")
"""
    hits = [run(env, script)[0]["hits"] for script in (SCRIPT, SCRIPT, change + SCRIPT, change + SCRIPT, SCRIPT)]
    assert hits == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        "import mmap\nmmap.PAGESIZE *= 16",
        "import platform\nplatform.machine = lambda: 'aarch64'",
        "from llvmlite import binding\nbinding.get_host_cpu_name = lambda: 'generic'",
    ],
)
def test_hosts_of_different_kinds_share_no_file_of_the_cache(project: Path, tmp_path: Path, change: str) -> None:
    """The size of pages is a constant of compiled kernels: one for larger pages would write beyond its buffer."""
    cache = tmp_path / "cache"
    env = environment(project, NUMBA_CACHE_DIR=str(cache))
    run(env)
    first = {path: path.read_bytes() for path in cache_files(cache)}
    hits = [run(env, script)[0]["hits"] for script in (f"{change}\n{SCRIPT}", f"{change}\n{SCRIPT}", SCRIPT)]
    assert hits == [0, 1, 1]
    assert len(cache_files(cache)) == 2 * len(first) == 4
    assert all(path.read_bytes() == content for path, content in first.items())


@pytest.mark.parametrize("variables", [{"GUIDELOOM_KERNEL_CACHE": "0"}, {"NUMBA_BOUNDSCHECK": "1"}])
def test_without_cache_nothing_is_written_nor_read(project: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    cache = tmp_path / "cache"
    env = environment(project, NUMBA_CACHE_DIR=str(cache))
    answer, _ = run(env | variables)
    assert right(answer)
    assert cache_files(tmp_path) == []
    run(env)
    assert len(cache_files(cache)) == 2
    answer, _ = run(env | variables)
    assert right(answer)
    assert answer["hits"] == 0


def test_disabled_jit_runs_plain_python_without_numba(project: Path, tmp_path: Path) -> None:
    answer, _ = run(environment(project, NUMBA_DISABLE_JIT="1", NUMBA_CACHE_DIR=str(tmp_path / "cache")))
    assert right(answer)
    assert (answer["hits"], answer["numba"]) == (None, False)


def test_no_folder_can_be_written(project: Path, tmp_path: Path) -> None:
    # Beside a module in a zip archive nothing can be written, and below a file no folder can be made, not even by root.
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "zip", project))
    file = tmp_path / "file"
    file.touch()
    below = {"HOME": str(file / "home"), "XDG_CACHE_HOME": str(file / "cache"), "NUMBA_CACHE_DIR": str(file / "numba")}
    answer, log = run(environment(archive, **below))
    assert right(answer)
    assert answer["hits"] == 0
    assert any("without the cache" in line for line in log)


def test_full_disk(project: Path, tmp_path: Path) -> None:
    # A limit of 0 bytes a file fails each write as a full disk does.
    script = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + SCRIPT
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
    answer, log = run(env, script)
    assert right(answer)
    assert any("without the cache" in line for line in log)
    assert cache_files(tmp_path / "cache") == []


@pytest.mark.parametrize(("suffix", "keep"), [(".nbi", 0), (".nbi", 40), (".nbc", 40)])
def test_torn_cache_file(project: Path, tmp_path: Path, suffix: str, keep: int) -> None:
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    run(env)
    (torn,) = (path for path in cache_files(tmp_path / "cache") if path.suffix == suffix)
    torn.write_bytes(torn.read_bytes()[:keep])
    answer, log = run(env)
    assert right(answer)
    assert any("without the cache" in line for line in log)


FORKS = """
import json, os, sys
import numba  # once, so that the children have nothing to do but compile
from guideloom._plan.order import FeistelOrder
ready, go = os.pipe()
answers = []
for number in range(8):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(go)
        os.read(ready, 1)  # ends for all of them at once, when the parent closes its end
        order = FeistelOrder(1000, 5, number)
        indexes = order.positions_to_indexes(0, 1, 1000)
        assert order.inverse(indexes).tolist() == list(range(1000))
        os.write(writer, json.dumps(indexes[:100].tolist()).encode())
        os._exit(0)
    os.close(writer)
    answers.append(reader)
os.close(go)
indexes = []
for reader in answers:
    with open(reader) as answer:
        indexes.append(json.load(answer))
assert all(os.wait()[1] == 0 for _ in range(8))
print(json.dumps(indexes))
"""


@pytest.mark.slow
def test_eight_processes_at_once_on_an_empty_cache(project: Path, tmp_path: Path) -> None:
    env = environment(project, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    together, _ = run(env, FORKS)
    plain, _ = run(env | {"NUMBA_DISABLE_JIT": "1"}, FORKS)
    assert together == plain
    assert len(set(map(tuple, together))) == 8
    assert [path.suffix for path in cache_files(tmp_path / "cache")] == [".nbc", ".nbi"]
    after, _ = run(env, FORKS)  # what the eight left behind is whole
    assert after == plain


def test_error_of_the_kernel_itself_reaches_the_caller() -> None:
    @kernel("int64(int64)")
    def wrong(value: int) -> int:
        return value.no_such_attribute  # type: ignore[attr-defined]

    with pytest.raises(Exception, match="no_such_attribute"):
        wrong(np.int64(1))


def test_ctrl_c_waits_for_the_end_of_a_compilation() -> None:
    """The compiler calls back from C, where Python would swallow it."""

    def build() -> object:
        os.kill(os.getpid(), signal.SIGINT)

        def double(value: int) -> int:
            return 2 * value

        return double

    kernel_of = kernel("int64(int64)", twin=lambda value: 2 * value, build=True)(build)
    with pytest.raises(KeyboardInterrupt):
        kernel_of(21)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert kernel_of.compiled is not None and kernel_of(21) == 42


def test_built_kernel_needs_a_twin() -> None:
    with pytest.raises(TypeError, match="twin"):
        kernel("int64(int64)", build=True)
