"""What a check of a data set says: one entry for each thing that is not as it must be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Severity: TypeAlias = Literal["error", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing, and where.

    Parameters
    ----------
    severity : {"error", "note"}
        A note is no damage: leftovers, a manifest that is not there.
    what : str
        A word for machines: "record", "manifest", "hole", "missing", "size", "unreadable", "checksum", "offsets",
        "spans", "kind", "symlink", "leftover".
    path : str
        File or folder.
    shard, part : int or None
        None where the file belongs to none.
    begin, end : int or None
        Half-open range of bytes in the file, None where no range can be named.
    expected, found : str
    remedy : str
        What to do about it.
    """

    severity: Severity
    what: str
    path: str
    shard: int | None
    part: int | None
    begin: int | None
    end: int | None
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        place = (
            "" if self.shard is None else f", shard {self.shard}" + ("" if self.part is None else f" part {self.part}")
        )
        where = "" if self.begin is None else f", bytes [{self.begin}, {self.end})"
        return (
            f"{self.severity}: {self.path}{place}{where}: {self.what}: expected {self.expected}, found {self.found}; "
            f"{self.remedy}"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of one data set found.

    Parameters
    ----------
    path : str
        The folder.
    layout : {"current", "published-1"}
    kind : str or None
        None when no record can be read.
    quick : bool
        Whether only records and sizes were checked.
    num_shards, num_parts, num_files : int
        What was looked at; parts that were replaced are not counted.
    bytes_checked : int
        Bytes of data files that were read.
    findings : tuple of Finding
        In order of shard, part and place.
    """

    path: str
    layout: str
    kind: str | None
    quick: bool
    num_shards: int
    num_parts: int
    num_files: int
    bytes_checked: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are damage."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.errors

    def as_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {**asdict(self), "findings": [asdict(finding) for finding in self.findings], "sound": self.is_sound}
