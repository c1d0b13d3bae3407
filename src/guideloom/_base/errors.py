"""Every error GuideLoom raises on purpose, as one tree.

    GuideLoomError                     fields: path, shard, offset (each may be None)
    ├── ArgumentError                  ValueError           a bad argument of the caller
    ├── OutOfRangeError                IndexError           an index outside what exists
    ├── NotOpenError                   RuntimeError         used before open() or after close()
    ├── InUseError                     RuntimeError         what would disturb what is open, live or under way
    ├── PackError                      ValueError           a record that the format cannot store
    ├── DataSetError
    │   ├── DataSetNotFoundError       FileNotFoundError    no data set at this path
    │   ├── ForeignDataError           ValueError           something is there, but it is not a data set of ours
    │   ├── WrongKindError             ValueError           another kind, dtype or format than asked for
    │   ├── NewerVersionError          ValueError           written by a newer GuideLoom
    │   ├── MissingShardError          FileNotFoundError    shard numbers with a hole, or a shard's file is gone
    │   └── CorruptDataError           ValueError           sizes, offsets or checksums that do not agree
    │       └── DamagedRecordError                          a commit record or manifest that cannot be trusted
    ├── CommitError
    │   ├── ShardExistsError           FileExistsError      mode="create" on a committed shard
    │   ├── ConcurrentCommitError      FileExistsError      another writer committed the shard first
    │   └── ReadOnlyLayoutError        PermissionError      a published-1.x directory cannot be written
    └── StateError                     ValueError
        ├── StateSchemaError                                 a state with missing, unknown or ill-typed keys
        └── StateMismatchError         fields: key, expected, found; a state of another run

Each is also the fitting builtin, so that ``except IndexError`` and the like keep working.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any, Self


class GuideLoomError(Exception):
    """Base of every error that GuideLoom raises on purpose.

    Parameters
    ----------
    message : str
        What was expected, what was found, and what to do, unless ``remedy`` says that.
    remedy : str, optional
        What to do; ``message`` ends with it, ``fault`` is without.
    path : str or os.PathLike, optional
        File or folder concerned.
    shard : int, optional
        Shard concerned.
    offset : int, optional
        Byte offset in ``path``.
    """

    path: str | None
    shard: int | None
    offset: int | None

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        path: str | os.PathLike[str] | None = None,
        shard: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.fault = message
        self.message = f"{message}; {remedy}" if remedy else message
        self.path = None if path is None else str(path)
        self.shard = shard
        self.offset = offset
        super().__init__(self._text())

    def _text(self) -> str:
        where = [
            text
            for value, text in (
                (self.path, f"path {self.path!r}"),
                (self.shard, f"shard {self.shard}"),
                (self.offset, f"byte offset {self.offset}"),
            )
            if value is not None
        ]
        return f"{self.message} [{', '.join(where)}]" if where else self.message

    def under(self, directory: PurePath) -> Self:
        """Say that the path lies in ``directory``, where only the name in it was known; returns the error itself."""
        if self.path is None or not PurePath(self.path).is_relative_to(directory):
            self.path = str(directory / (self.path or ""))
        self.args = (self._text(), *self.args[1:])
        return self

    def __str__(self) -> str:
        # KeyError and OSError subclasses would otherwise print a tuple or a repr.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries; the keyword-only fields must survive.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[GuideLoomError], args: tuple[Any, ...], state: dict[str, Any]) -> GuideLoomError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ArgumentError(GuideLoomError, ValueError):
    """A bad argument of the caller."""


class OutOfRangeError(GuideLoomError, IndexError):
    """An index outside what exists."""


class NotOpenError(GuideLoomError, RuntimeError):
    """Used before ``open()`` or after ``close()``."""


class InUseError(GuideLoomError, RuntimeError):
    """What cannot be done in the midst of something else.

    A second open; a second iterator, or a load of a state, while an iterator is live or starts; a batch that a signal's
    handler asks for while its thread takes one; a writer that a forked child uses.
    """


class PackError(GuideLoomError, ValueError):
    """A record that its format cannot store without loss."""


class DataSetError(GuideLoomError):
    """Base of what can be wrong with a data set on disk."""


class DataSetNotFoundError(DataSetError, FileNotFoundError):
    """No data set at this path."""


class ForeignDataError(DataSetError, ValueError):
    """Something is there, but it is not a data set of GuideLoom."""


class WrongKindError(DataSetError, ValueError):
    """The data set has another kind, dtype or format than the one asked for."""


class NewerVersionError(DataSetError, ValueError):
    """Written by a newer GuideLoom than this one."""


class MissingShardError(DataSetError, FileNotFoundError):
    """The shard numbers have a hole, or a file of a committed shard is gone."""


class CorruptDataError(DataSetError, ValueError):
    """Sizes, offsets or checksums that do not agree with the commit record."""


class DamagedRecordError(CorruptDataError):
    """A commit record or manifest that cannot be trusted."""


class CommitError(GuideLoomError):
    """Base of what can go wrong when a shard is committed."""


class ShardExistsError(CommitError, FileExistsError):
    """``mode="create"`` on a shard that is already committed."""


class ConcurrentCommitError(CommitError, FileExistsError):
    """Another writer committed this shard first; nothing of this writer's was kept."""


class ReadOnlyLayoutError(CommitError, PermissionError):
    """A directory in the published 1.x layout can be read, not written."""


class StateError(GuideLoomError, ValueError):
    """Base of what can be wrong with a loader state."""


class StateSchemaError(StateError):
    """A state with missing, unknown or ill-typed keys."""


class StateMismatchError(StateError):
    """A state that belongs to another run.

    Parameters
    ----------
    message : str
        As for every error.
    key : str
        The name of the state's entry, which is also the name of the override.
    expected, found
        This loader's value and the state's value.
    """

    def __init__(self, message: str, *, key: str, expected: object, found: object) -> None:
        super().__init__(message)
        self.key = key
        self.expected = expected
        self.found = found


for _class in [value for value in list(globals().values()) if isinstance(value, type) and value.__module__ == __name__]:
    # Tracebacks, and pickles, name the module that users import from.
    _class.__module__ = "guideloom.errors"
