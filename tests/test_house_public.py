"""The public surface: names, docstrings, and the drawing of the error tree, each against what is really there."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import guideloom
from guideloom import errors

MODULES = ("guideloom", "guideloom.io", "guideloom.types", "guideloom.errors", "guideloom.testing")

# What programs written for the published releases may rely on. Names may be added, never removed.
PUBLISHED = {
    "guideloom": """StreamStorage StreamWithMetaStorage DocumentStorage StreamNumpyFormat DocumentPickleFormat
        StreamDataset DocumentDataset StatefulDataLoader io types __version__""",
    "guideloom.io": "SeekIO PosixPreadIO MmapIO",
    "guideloom.types": """StreamStorageFormat StreamWithMetaStorageFormat DocumentStorageFormat StorageFormat
        IOReaderAbstract IOSyncReaderAbstract IOAsyncReaderAbstract
        DatasetAbstract DatasetSyncReaderAbstract DatasetAsyncReaderAbstract
        StreamStorageAbstract StreamStorageSyncWriterAbstract StreamStorageSyncReaderAbstract
        StreamStorageAsyncReaderAbstract
        DocumentStorageAbstract DocumentStorageSyncWriterAbstract DocumentStorageSyncReaderAbstract
        DocumentStorageAsyncReaderAbstract
        SyncContextManager AsyncContextManager StatefulDataLoaderStateDict Vector UserBufferTypes StorageBufferTypes""",
}


def own_names(module: ModuleType) -> set[str]:
    """Names that a reader of the module would take for public: no private ones, modules, or imports from outside."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and (getattr(value, "__module__", None) or "guideloom").startswith("guideloom")
        and name not in ("annotations", "Any", "TYPE_CHECKING")
    }


@pytest.mark.parametrize("name", MODULES)
def test_every_name_of_all_is_there(name: str) -> None:
    module = import_module(name)
    for member in module.__all__:
        assert hasattr(module, member), f"{name}.__all__ names {member}, which does not exist"
    assert len(module.__all__) == len(set(module.__all__))


@pytest.mark.parametrize("name", MODULES)
def test_all_names_everything_public(name: str) -> None:
    module = import_module(name)
    assert own_names(module) <= set(module.__all__)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_names_are_kept(name: str) -> None:
    assert set(PUBLISHED[name].split()) <= set(import_module(name).__all__)


def test_dir_of_the_package_is_its_public_names() -> None:
    assert dir(guideloom) == sorted(guideloom.__all__)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        guideloom.nothing_like_this  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", ["StreamStorageFormat", "StreamWithMetaStorageFormat", "DocumentStorageFormat"])
def test_format_protocols_can_be_asked_at_run_time(name: str) -> None:
    assert not isinstance(object(), getattr(guideloom.types, name))
    assert isinstance(guideloom.DocumentPickleFormat(), guideloom.types.DocumentStorageFormat)


@pytest.mark.parametrize(
    ("module", "member"),
    [(module, member) for module in MODULES for member in import_module(module).__all__ if member != "__version__"],
)
def test_everything_public_is_documented(module: str, member: str) -> None:
    value = getattr(import_module(module), member)
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return  # a type alias: Python keeps no docstring for it
    undocumented = [] if (value.__doc__ or "").strip() else [member]
    for name in dir(value) if inspect.isclass(value) else ():
        home = next((base for base in value.__mro__ if name in vars(base)), object)
        attribute = inspect.getattr_static(value, name)
        method = isinstance(attribute, staticmethod | classmethod | property) or inspect.isfunction(attribute)
        if method and home.__module__.startswith("guideloom") and not name.startswith("_"):
            undocumented += [] if inspect.getdoc(getattr(value, name)) else [f"{member}.{name}"]
    assert not undocumented


# --- the drawing of the error tree ---


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name -> (parent in the drawing, builtin beside it), from the docstring of the errors module."""
    import guideloom._base.errors as home

    drawn: dict[str, tuple[str | None, str | None]] = {}
    parents: list[str] = []
    for line in (home.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─\s]*)(\w+Error)\b(?:\s{2,}(\w+Error)\b)?", line)
        if match:
            depth = len(match[1]) // 4
            parents = parents[:depth]
            drawn[match[2]] = (parents[-1] if parents else None, match[3])
            parents.append(match[2])
    return drawn


def test_the_drawing_shows_every_error_and_no_other() -> None:
    assert sorted(drawn_tree()) == sorted(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_the_drawing_is_true(name: str) -> None:
    parent, builtin = drawn_tree()[name]
    cls = getattr(errors, name)
    assert cls.__bases__[0].__name__ == (parent or "Exception")
    if builtin is not None:
        assert issubclass(cls, getattr(builtins, builtin))


# --- parameters: the docstring knows each, and no other ---


def documented(doc: str) -> tuple[set[str], set[str]]:
    """Names in the Parameters section of a docstring, and all names that it mentions as code."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", doc, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^(\S[^:\n]*)", section[1] if section else "", flags=re.MULTILINE)
    listed = {name.strip().lstrip("*") for head in heads for name in head.split(",")} - {""}
    return listed, set(re.findall(r"(?<=``)\*{0,2}(\w+)(?=``)", doc))


def parameters(function: Any) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name not in ("self", "cls")}


def documents(label: str, function: Any, doc: str) -> list[str]:
    """What is wrong with a docstring; a reference ``see :meth:`Class.method` `` lends the other's names."""
    listed, mentioned = documented(doc)
    if "As for the class" in doc:
        mentioned |= documented(inspect.getdoc(function.__self__) or "")[0]
    for reference in re.findall(r":meth:`~?([\w.]+)`", doc):
        owner, _, method = reference.rpartition(".")
        other = next((value for value in CLASSES if value.__name__ == owner.rpartition(".")[2]), None)
        mentioned |= documented(inspect.getdoc(getattr(other, method)) or "")[0] if other else set()
    wanted = parameters(function)
    return [f"{label} says nothing of its parameter {name!r}" for name in sorted(wanted - listed - mentioned)] + [
        f"{label} has no parameter {name!r}" for name in sorted(listed - wanted)
    ]


CLASSES = {
    base
    for module in map(import_module, MODULES)
    for member in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(member)
    for base in member.__mro__
    if base.__module__.startswith("guideloom")
}


def documented_callables() -> Iterator[tuple[str, Any, str]]:
    """Every public function, class and method of ours that takes arguments, with the docstring that is to name them."""
    for cls in sorted(CLASSES, key=lambda cls: cls.__qualname__):
        own = {} if cls.__name__.startswith("_") else vars(cls)
        if "__init__" in own and not getattr(cls, "_is_protocol", False):
            yield cls.__name__, cls, inspect.getdoc(cls) or ""
        for name, value in own.items():
            # The methods of a test class take fixtures.
            if name.startswith(("_", "test_")) or not (
                inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
            ):
                continue
            yield f"{cls.__name__}.{name}", getattr(cls, name), inspect.getdoc(getattr(cls, name)) or ""
    for module in MODULES:
        home = import_module(module)
        for name in home.__all__:
            if inspect.isfunction(getattr(home, name)):
                yield name, getattr(home, name), inspect.getdoc(getattr(home, name)) or ""


def test_every_parameter_is_documented_and_nothing_that_is_none() -> None:
    found = [problem for entry in documented_callables() for problem in documents(*entry)]
    assert not found, "\n".join(found)


def test_the_check_of_parameters_can_fail() -> None:
    def function(here: int, gone: int, named: int) -> None:
        """Do it with ``named``.

        Parameters
        ----------
        here, other : int
        """

    assert documents("f", function, inspect.getdoc(function) or "") == [
        "f says nothing of its parameter 'gone'",
        "f has no parameter 'other'",
    ]


def test_errors_name_the_module_that_users_import_from() -> None:
    for name in errors.__all__:
        assert getattr(errors, name).__module__ == "guideloom.errors"
    found = pickle.loads(pickle.dumps(errors.ArgumentError("what", path="a")))
    assert type(found) is errors.ArgumentError
