"""The name under which a format is written into commit records, and whether two names agree."""

from __future__ import annotations

BUILT_IN = frozenset(
    {
        "DocumentJsonFormat",
        "DocumentMsgpackFormat",
        "DocumentNumpyFormat",
        "DocumentPickleFormat",
        "SpanNumpyFormat",
        "StreamNumpyFormat",
    }
)


class NamedFormat:
    """A built-in format: its name in commit records is that of its class, so a subclass of a user's has its own."""

    @property
    def format_name(self) -> str:
        """Name for the commit record."""
        return type(self).__name__


def format_name(fmt: object) -> str:
    """Return the format's name for the commit record.

    Its attribute ``format_name`` when that is a str, else the name of its class: a user's format needs no such
    attribute.
    """
    name = getattr(fmt, "format_name", None)
    return name if isinstance(name, str) else type(fmt).__name__


def formats_agree(written: str, asked: str) -> bool:
    """Whether data written by the format named ``written`` may be read by the one named ``asked``.

    Only names of built-in formats are judged, since two classes of a user's may read the same bytes: those must be
    equal, with what stands in parentheses behind them (the fields of a :class:`~guideloom.DocumentNumpyFormat`).
    An unknown name (``""``) agrees with every other.
    """
    if written == asked:
        return True
    return not ({written.partition("(")[0], asked.partition("(")[0]} <= BUILT_IN)
