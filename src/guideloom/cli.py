"""The command ``guideloom``: look at a data set without writing a program.

It needs no format: kind and dtype come from the data set (or, for the published 1.x layout, from ``--dtype``).
Nothing is unpickled. An error of ours is one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._base.checks import descr_of
from guideloom._base.errors import ArgumentError, CorruptDataError, GuideLoomError, OutOfRangeError
from guideloom._bench import command as bench_command
from guideloom._commands import clean, manifest, repair, upgrade, verify
from guideloom._dataset.storages import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._format.document_numpy import DocumentNumpyFormat
from guideloom._format.reading import ReadingFormat, ReadingStreamFormat
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.identity import identify_published
from guideloom._storage.local import LocalFolder, drive
from guideloom._storage.names import RECORD_LIMIT_BYTES, parse_record_name
from guideloom._storage.opening import open_catalog
from guideloom._storage.published import is_published_name
from guideloom._storage.record import decode_record
from guideloom._storage.requests import ListFolder, ReadFile
from guideloom._version import __version__

MAX_ROWS = 20
"""Shards that ``info`` prints; ``--json`` gives all."""

_NO_DTYPE = "the published 1.x layout does not say its dtype: give it with --dtype"
_UNITS: dict[Kind, str] = {"stream": "elements", "document": "documents", "stream_with_meta": "elements"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, 1 when something is damaged, was left as it was, or the reader of the output went away, 2 for an
        error that was reported, 130 after Ctrl-C.
    """
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # By itself argparse would answer with the usage of `guideloom`, which says nothing of the command's options.
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help()
        return 0
    try:
        result: str | tuple[str, int] = options.command(options)
        text, status = (result, 0) if isinstance(result, str) else result
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Without this the interpreter complains once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\nguideloom: interrupted", file=sys.stderr)
        return 130
    except (GuideLoomError, OSError) as error:
        print(f"guideloom: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="guideloom", description="Look at GuideLoom data sets, check and mend them.")
    parser.add_argument("--version", action="version", version=f"guideloom {__version__}")
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("directory", metavar="DIR", type=Path, help="the data set's folder")
    common.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_argument(
        "--dtype", type=_dtype, help="element dtype, for the published 1.x layout: '<u2', or '[[\"token\", \"<u2\"]]'"
    )
    info = commands.add_parser(
        "info", parents=[common], help="what a data set is: kind, dtype, shards, counts, bytes, identity"
    )
    info.set_defaults(command=_info)
    show = commands.add_parser("show", parents=[common], help="elements with their payloads, or one document")
    show.set_defaults(command=_show)
    show.add_argument("index", metavar="INDEX", type=int, help="element (streams) or document, counted from 0")
    show.add_argument("--shard", type=int, help="count INDEX from the first of this shard")
    show.add_argument(
        "--length", type=int, default=16, help="elements, or values of each array, to show (default: %(default)s)"
    )
    show.add_argument("--bytes", type=int, default=400, help="bytes of each payload to show (default: %(default)s)")
    verify.add(commands, _dtype)
    repair.add(commands)
    clean.add(commands)
    manifest.add(commands)
    upgrade.add(commands, _dtype)
    bench = commands.add_parser("bench", parents=[common], help=bench_command.HELP)
    bench_command.add_options(bench)
    bench.set_defaults(command=_bench)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _bench(options: argparse.Namespace) -> str:
    return bench_command.run(options, open_any(options.directory, options.dtype))


def _dtype(text: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(_fields(ast.literal_eval(text)) if text.lstrip().startswith("[") else text)
    except (TypeError, ValueError, SyntaxError) as error:
        form = """'<u2', or a list of fields as info prints it: '[["token", "<u2"]]'"""
        raise argparse.ArgumentTypeError(f"expected a dtype ({form}), found {text!r} ({error})") from None
    return dtype


def _fields(descr: Any) -> Any:
    """Make NumPy's tuples out of the lists that JSON has, so that what ``info`` prints can be given back."""
    if not isinstance(descr, list) or not all(isinstance(field, list) and len(field) in (2, 3) for field in descr):
        return descr
    return [(name, _fields(of), *(tuple(extents) for extents in shape)) for name, of, *shape in descr]


def open_any(directory: Path, dtype: np.dtype[Any] | None = None) -> Catalog:
    """Open a data set of any kind, asking it what it is.

    Parameters
    ----------
    directory : pathlib.Path
    dtype : dtype, optional
        Element dtype, for streams in the published 1.x layout; without it their counts are 0.

    Raises
    ------
    DataSetError
        Not there, foreign, newer, with holes, or damaged.
    ArgumentError
        ``dtype`` for a data set that says itself what it holds, and another one.
    """
    folder = LocalFolder(directory)
    listing: dict[str, int] = folder.answer(ListFolder())
    kind: Kind = "stream"
    records = sorted(name for name in listing if parse_record_name(name) is not None)
    data: bytes | None = folder.answer(ReadFile(records[0], RECORD_LIMIT_BYTES)) if records else None
    if data is not None:
        record = decode_record(data, records[0], str(directory))
        kind = record.kind
        if dtype is None:
            dtype = record.dtype
    else:
        suffixes = {name.partition(".")[2].partition(".")[0] for name in listing if is_published_name(name)}
        if "out_of_band" in suffixes:
            kind = "stream_with_meta" if "in_band" in suffixes else "document"
    if kind == "document" and dtype is not None:
        raise ArgumentError("documents have no dtype: leave --dtype out", path=directory)
    return drive(open_catalog(kind, dtype, "", folder=str(directory)), folder.answer)


# --- info ---


def _info(options: argparse.Namespace) -> str:
    catalog = open_any(options.directory, options.dtype)
    identity = catalog.identity
    if identity is None:
        identity = drive(identify_published(catalog), LocalFolder(options.directory).answer)
    known = catalog.kind == "document" or catalog.dtype is not None
    facts: dict[str, Any] = {
        "path": str(options.directory),
        "kind": catalog.kind,
        "layout": catalog.layout,
        "format": catalog.format_name or None,
        "dtype": None if catalog.dtype is None else descr_of(catalog.dtype),
        "identity": identity,
        "num_shards": catalog.num_shards,
        "num_parts": int(catalog.shard.size),
        "count": catalog.total if known else None,
        "spans": int(catalog.spans.sum()) if catalog.kind == "stream_with_meta" else None,
        "bytes": int(catalog.sizes.sum()),
        "metadata": dict(catalog.metadata),
    }
    shards = _shard_rows(catalog, known)
    if options.json:
        return json.dumps({**facts, "shards": shards}, indent=2)
    unit = _UNITS[catalog.kind]
    lines = [
        (key.removeprefix("num_") if key != "count" else unit, _words(value))
        for key, value in facts.items()
        if value not in (None, {}) or key == "count"
    ]
    if not known:
        lines.append(("note", _NO_DTYPE))
    width = max(len(name) for name, _ in lines)
    head = "\n".join(f"{name:<{width}}  {text}" for name, text in lines)
    columns = ["shard", "parts", unit, *(["spans"] if facts["spans"] is not None else []), "bytes"]
    rows = [
        [
            _words(row[key])
            for key in ("shard", "parts", "count", "spans", "bytes")
            if key != "spans" or "spans" in columns
        ]
        for row in shards[:MAX_ROWS]
    ]
    more = f"\n... {len(shards) - MAX_ROWS:,} more shards: --json lists them all" if len(shards) > MAX_ROWS else ""
    return f"{head}\n\n{_table(columns, rows)}{more}"


def _shard_rows(catalog: Catalog, known: bool) -> list[dict[str, int | None]]:
    num_shards = catalog.num_shards
    parts = np.bincount(catalog.shard, minlength=num_shards)
    spans, sizes = np.zeros((2, num_shards), np.int64)
    np.add.at(spans, catalog.shard, catalog.spans)
    for column in (catalog.elements_file, catalog.offsets_file, catalog.payload_file, catalog.table_file):
        there = column >= 0
        np.add.at(sizes, catalog.shard[there], catalog.sizes[column[there]])
    return [
        {
            "shard": shard,
            "parts": int(parts[shard]),
            "count": int(catalog.shard_counts[shard]) if known else None,
            "spans": int(spans[shard]) if catalog.kind == "stream_with_meta" else None,
            "bytes": int(sizes[shard]),
        }
        for shard in range(num_shards)
    ]


# --- show ---


class _RawStream(ReadingStreamFormat):
    """Gives a window as it is."""

    def unpack(self, stream: Any, *rest: Any) -> tuple[Any, ...]:
        return (stream, *rest)


class _RawDocument(ReadingFormat):
    """Gives a document's bytes."""

    def unpack(self, encoded: Any, shard: int) -> tuple[memoryview, int]:
        return memoryview(encoded), shard


def _show(options: argparse.Namespace) -> str:
    directory: Path = options.directory
    for name in ("length", "bytes"):
        if getattr(options, name) < 0:
            raise ArgumentError(f"--{name} must be at least 0, got {getattr(options, name)}")
    catalog = open_any(directory, options.dtype)
    if catalog.kind == "document":
        numpy_format = DocumentNumpyFormat.from_format_name(catalog.format_name)
        facts = _document_facts(
            directory, _global_index(catalog, options), options.bytes, numpy_format, length=options.length
        )
    elif catalog.dtype is None:
        raise ArgumentError(_NO_DTYPE, path=directory)
    else:
        index = _global_index(catalog, options)
        length = min(options.length, catalog.total - index)
        read = _stream_facts if catalog.kind == "stream" else _span_facts
        facts = read(directory, catalog.dtype, index, length, options.bytes)
    return json.dumps(facts, indent=2) if options.json else _show_text(facts)


def _global_index(catalog: Catalog, options: argparse.Namespace) -> int:
    first, count, where = 0, catalog.total, "the data set"
    if options.shard is not None:
        if not 0 <= options.shard < catalog.num_shards:
            raise OutOfRangeError(f"shard {options.shard} is outside [0, {catalog.num_shards})", path=options.directory)
        first, count = int(catalog.shard_counts[: options.shard].sum()), int(catalog.shard_counts[options.shard])
        where = f"shard {options.shard}"
    if not 0 <= options.index < count:
        raise OutOfRangeError(
            f"index {options.index} is outside [0, {count}), the {_UNITS[catalog.kind]} of {where}",
            path=options.directory,
        )
    return first + int(options.index)


def _document_facts(
    directory: Path, index: int, limit_bytes: int, numpy_format: DocumentNumpyFormat | None, length: int
) -> dict[str, Any]:
    with DocumentStorage(directory, _RawDocument()).sync_reader() as reader:
        encoded, shard = reader.read(index)
        facts: dict[str, Any] = {"index": index, "shard": shard}
        if numpy_format is not None:
            # A shard may hold parts of several formats, and the name is that of the last: bytes are always true.
            try:
                arrays = numpy_format.unpack(encoded, shard)
            except CorruptDataError as error:
                facts["problem"] = str(error)
            else:
                shown = {name: _array_facts(array, length) for name, array in arrays.items()}
                return {**facts, "bytes": encoded.nbytes, "arrays": shown}
        return {**facts, **_preview(encoded, limit_bytes)}


def _array_facts(array: np.ndarray[Any, Any], length: int) -> dict[str, Any]:
    return {
        "dtype": descr_of(array.dtype),
        "shape": list(array.shape),
        "values": [_plain(value) for value in array.reshape(-1)[:length].tolist()],
    }


def _stream_facts(directory: Path, dtype: np.dtype[Any], index: int, length: int, limit_bytes: int) -> dict[str, Any]:
    with StreamStorage(directory, _RawStream(dtype)).sync_reader() as reader:
        elements, lengths, shards = reader.read(index, length)
        runs = [{"shard": shard, "length": run} for run, shard in zip(lengths.tolist(), shards.tolist(), strict=True)]
        return {"index": index, "length": length, "shards": runs, "elements": _columns(elements)}


def _span_facts(directory: Path, dtype: np.dtype[Any], index: int, length: int, limit_bytes: int) -> dict[str, Any]:
    with StreamWithMetaStorage(directory, _RawStream(dtype)).sync_reader() as reader:
        elements, shards, payload_of, payloads = reader.read(index, length)
        shown = [
            {"shard": shard, **_preview(memoryview(payload), limit_bytes)}
            for shard, payload in zip(shards.tolist(), payloads, strict=True)
        ]
        columns = {**_columns(elements), "payload": payload_of.tolist()}
        return {"index": index, "length": length, "elements": columns, "payloads": shown}


def _columns(elements: np.ndarray[Any, Any]) -> dict[str, list[Any]]:
    names = elements.dtype.names
    fields = {"element": elements} if names is None else {name: elements[name] for name in names}
    return {name: [_plain(value) for value in values.tolist()] for name, values in fields.items()}


def _plain(value: Any) -> Any:
    """Return what JSON has for a NumPy value: numbers, booleans, strings, lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _preview(data: memoryview, limit_bytes: int) -> dict[str, Any]:
    """Size and head of a payload: text where its head is UTF-8 (but for a character that was cut), else hex digits."""
    head = bytes(data[:limit_bytes])
    facts: dict[str, Any] = {"bytes": data.nbytes, "shown": len(head)}
    try:
        facts["text"] = head.decode("utf-8")
    except UnicodeDecodeError as error:
        cut = data.nbytes > len(head) and len(head) - error.start < 4 and error.reason == "unexpected end of data"
        facts.update({"text": head[: error.start].decode("utf-8")} if cut else {"hex": head.hex(" ")})
    if "text" in facts and any(ord(letter) < 32 and letter not in "\t\n\r" for letter in facts["text"]):
        del facts["text"]
        facts["hex"] = head.hex(" ")
    return facts


def _show_text(facts: Mapping[str, Any]) -> str:
    if "elements" not in facts:
        head = f"document {facts['index']:,}, shard {facts['shard']}, "
        if "arrays" in facts:
            return "\n".join((f"{head}{facts['bytes']:,} bytes", *_array_lines(facts["arrays"])))
        problem = f"\n{facts['problem']}" if "problem" in facts else ""
        return head + _preview_text(facts) + problem
    index, columns = facts["index"], facts["elements"]
    rows = [[f"{index + place:,}", *map(str, row)] for place, row in enumerate(zip(*columns.values(), strict=True))]
    text = _table(["index", *columns], rows)
    for run in facts.get("shards", ()):
        text += f"\n{run['length']:,} elements from shard {run['shard']}"
    for place, payload in enumerate(facts.get("payloads", ())):
        text += f"\n\npayload {place}, shard {payload['shard']}, {_preview_text(payload)}"
    return text


def _array_lines(arrays: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, facts in arrays.items():
        more = ["..."] if math.prod(facts["shape"]) > len(facts["values"]) else []
        lines.append(
            f"{name}: {_words(facts['dtype'])} {facts['shape']}: {' '.join([*map(str, facts['values']), *more])}"
        )
    return lines


def _preview_text(facts: Mapping[str, Any]) -> str:
    head = f"{facts['bytes']:,} bytes" + (f", the first {facts['shown']:,}" if facts["shown"] < facts["bytes"] else "")
    return f"{head}\n{facts.get('text', facts.get('hex', ''))}"


# --- text ---


def _words(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def _table(columns: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(columns), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
