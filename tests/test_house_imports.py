"""What importing costs, who may import what, and how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "guideloom"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(result.stdout.split())


def test_importing_the_package_imports_almost_nothing() -> None:
    assert loaded_after("import guideloom").isdisjoint({"torch", "numba", "numpy", "xxhash", "asyncio"})


@pytest.mark.parametrize(
    ("statement", "package"),
    [
        ("from guideloom import StatefulDataLoader", "torch"),
        ("import guideloom.testing.strategies", "hypothesis"),
    ],
)
def test_what_needs_an_extra_says_which(statement: str, package: str) -> None:
    code = f"import sys\nsys.modules[{package!r}] = None\n{statement}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: "), result.stderr
    assert f"not installed: pip install {package}" in last


def test_help_is_there_without_torch() -> None:
    code = "import sys\nsys.modules['torch'] = None\nimport pydoc, guideloom\n"
    code += "print(pydoc.render_doc(guideloom, renderer=pydoc.plaintext))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "class StreamStorage(" in result.stdout, result.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "from guideloom import StreamStorage, StreamWithMetaStorage, DocumentStorage",
        "from guideloom import StreamDataset, DocumentDataset, StreamNumpyFormat, DocumentPickleFormat",
        "import guideloom.io, guideloom.types, guideloom.errors",
        "import guideloom.testing",
        "import guideloom.cli",
    ],
)
def test_storage_data_sets_and_commands_need_neither_torch_nor_numba_to_import(statement: str) -> None:
    assert loaded_after(statement).isdisjoint({"torch", "numba", "msgspec", "hypothesis", "pytest"})


def imports(path: Path) -> Iterator[str]:
    """Every module that is imported anywhere in a source file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def importers_of(package: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        for name in imports(path)
        if name.partition(".")[0] == package
    }


def test_numba_is_imported_by_the_kernels_only() -> None:
    assert {name.partition("/")[0] for name in importers_of("numba")} == {"_kernels"}
    assert importers_of("llvmlite") == {"_kernels/jit.py", "_kernels/native.py", "_kernels/native_desk.py"}


def test_torch_is_imported_by_the_bridge_only() -> None:
    assert importers_of("torch") == {"_loader/bridge.py"}


def test_nothing_inside_uses_the_public_names() -> None:
    """They are the top of the layers: below, each name is imported from where it lives."""
    users = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in SOURCES
        if path.relative_to(PACKAGE).parts[0].startswith("_") and path.parent != PACKAGE
        for name in imports(path)
        if name == "guideloom"
    }
    assert users == set()


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
