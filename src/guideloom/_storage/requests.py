"""What opening a data set asks of the outside world: it yields these, a driver answers them.

Written once as generators, opening runs unchanged over a synchronous backend, an asyncio backend, or a local folder.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListFolder:
    """Answer: ``dict[str, int]`` name -> size in bytes of each regular file, or None where listing is not possible.

    A local driver raises ``DataSetNotFoundError`` (no such folder), ``ForeignDataError`` (a file in place of the
    folder) or ``PermissionError`` itself.
    """


@dataclass(frozen=True, slots=True)
class ListDataSets:
    """Answer: ``list[str]``, sorted paths of some folders in the folder that hold data sets; none where unknown."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Answer: ``bytes`` of the whole file, or None when it does not exist.

    ``limit_bytes`` bounds the allocation: a larger file is a ``DamagedRecordError``, raised by the driver.
    """

    name: str
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class FileSize:
    """Answer: the file's size in bytes, or None when it does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Answer: what :class:`FileSize` answers for each name, as a list; a driver may ask for many at once."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Answer: exactly ``size_bytes`` bytes of the file from ``offset_bytes``."""

    name: str
    offset_bytes: int
    size_bytes: int


AboutFile = ReadFile | FileSize | ReadRange
Request = ListFolder | ListDataSets | FileSizes | AboutFile
