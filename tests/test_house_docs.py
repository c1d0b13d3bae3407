"""Documents name only what exists, and the README's program runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import guideloom

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
CODE = re.compile(r"`([^`\n]+)`")


def spans(page: Path) -> list[str]:
    """Inline code of a page, fenced blocks left out."""
    return CODE.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def resolve(dotted: str) -> object:
    """The object a dotted name means: the longest importable prefix, then attributes."""
    parts = dotted.split(".")
    value: object = import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            import_module(".".join(parts[:number]))
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_exist(page: Path) -> None:
    missing = []
    for span in spans(page):
        for dotted in re.findall(r"\bguideloom(?:\.\w+)+", span):
            try:
                resolve(dotted)
            except (ImportError, AttributeError):
                missing.append(dotted)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_class_names_exist(page: Path) -> None:
    """A CamelCase word in code style is one of ours, or a builtin."""
    modules = (guideloom, guideloom.io, guideloom.types, guideloom.errors, guideloom.testing)
    known = {name for module in modules for name in module.__all__} | set(dir(__import__("builtins")))
    words = {word for span in spans(page) for word in re.findall(r"(?<![\w.])(?:[A-Z][a-z]+){2,}(?:IO)?\b", span)}
    assert words <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    places = (ROOT, ROOT / "src" / "guideloom", page.parent)
    tops = {path.name for place in places for path in place.iterdir()}
    missing = [
        span
        for span in spans(page)
        if re.fullmatch(r"[\w.-]+(?:/[\w.*-]+)*/?", span) and ("/" in span or span.endswith((".md", ".toml")))
        if span.partition("/")[0] in tops or span.endswith((".md", ".toml"))
        if not any(list(place.glob(span.rstrip("/"))) for place in places)
    ]
    missing += [
        link
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    named = re.findall(r"^make (\w+)", "\n".join((*blocks(page, "console"), *spans(page))), flags=re.MULTILINE)
    assert set(named) <= targets


def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "README.md", "python")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "[8, 129]" in result.stdout
    assert (tmp_path / "corpus").is_dir()


def test_the_changelog_begins_with_this_version() -> None:
    version = guideloom.__version__.partition(".dev")[0]
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert heading is not None
    assert version in heading[1]


def test_the_picture_of_the_layers_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    picture = re.search(r"^## Layers$.*?^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert picture is not None
    assert picture[1].splitlines() == layers
