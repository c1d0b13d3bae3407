"""``guideloom show``: some elements with their payloads, or one document. Nothing is unpickled."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._base.checks import descr_of
from guideloom._base.errors import ArgumentError, CorruptDataError, OutOfRangeError
from guideloom._commands.data_set import NO_DTYPE, UNITS, add_common, open_any
from guideloom._commands.text import table, words
from guideloom._dataset.storages import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._format.document_numpy import DocumentNumpyFormat
from guideloom._format.reading import ReadingFormat, ReadingStreamFormat
from guideloom._storage.catalog import Catalog


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("show", help="elements with their payloads, or one document")
    add_common(parser)
    parser.add_argument("index", metavar="INDEX", type=int, help="element (streams) or document, counted from 0")
    parser.add_argument("--shard", type=int, help="count INDEX from the first of this shard")
    parser.add_argument(
        "--length", type=int, default=16, help="elements, or values of each array, to show (default: %(default)s)"
    )
    parser.add_argument("--bytes", type=int, default=400, help="bytes of each payload to show (default: %(default)s)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> str:
    """Return what was asked for as text, or as JSON."""
    directory: Path = options.directory
    for name in ("length", "bytes"):
        if getattr(options, name) < 0:
            raise ArgumentError(f"--{name} must be at least 0, got {getattr(options, name)}")
    catalog = open_any(directory, options.dtype)
    if catalog.kind != "document" and catalog.dtype is None:
        raise ArgumentError(NO_DTYPE, path=directory)
    index = _global_index(catalog, options)
    if catalog.dtype is None:
        numpy_format = DocumentNumpyFormat.from_format_name(catalog.format_name)
        facts = _document_facts(directory, index, options.bytes, numpy_format, options.length)
    else:
        length = min(options.length, catalog.total - index)
        if catalog.kind == "stream":
            facts = _stream_facts(directory, catalog.dtype, index, length)
        else:
            facts = _span_facts(directory, catalog.dtype, index, length, options.bytes)
    return json.dumps(facts, indent=2) if options.json else _text(facts)


def _global_index(catalog: Catalog, options: argparse.Namespace) -> int:
    first, count, where = 0, catalog.total, "the data set"
    if options.shard is not None:
        if not 0 <= options.shard < catalog.num_shards:
            raise OutOfRangeError(f"shard {options.shard} is outside [0, {catalog.num_shards})", path=options.directory)
        first, count = int(catalog.shard_counts[: options.shard].sum()), int(catalog.shard_counts[options.shard])
        where = f"shard {options.shard}"
    if not 0 <= options.index < count:
        raise OutOfRangeError(
            f"index {options.index} is outside [0, {count}), the {UNITS[catalog.kind]} of {where}",
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


def _stream_facts(directory: Path, dtype: np.dtype[Any], index: int, length: int) -> dict[str, Any]:
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


def _text(facts: Mapping[str, Any]) -> str:
    if "elements" not in facts:
        head = f"document {facts['index']:,}, shard {facts['shard']}, "
        if "arrays" in facts:
            return "\n".join((f"{head}{facts['bytes']:,} bytes", *_array_lines(facts["arrays"])))
        problem = f"\n{facts['problem']}" if "problem" in facts else ""
        return head + _preview_text(facts) + problem
    index, columns = facts["index"], facts["elements"]
    rows = [[f"{index + place:,}", *map(str, row)] for place, row in enumerate(zip(*columns.values(), strict=True))]
    text = table(["index", *columns], rows)
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
            f"{name}: {words(facts['dtype'])} {facts['shape']}: {' '.join([*map(str, facts['values']), *more])}"
        )
    return lines


def _preview_text(facts: Mapping[str, Any]) -> str:
    head = f"{facts['bytes']:,} bytes" + (f", the first {facts['shown']:,}" if facts["shown"] < facts["bytes"] else "")
    return f"{head}\n{facts.get('text', facts.get('hex', ''))}"


# --- formats ---


class _RawStream(ReadingStreamFormat):
    """Gives a window as it is."""

    def unpack(self, stream: Any, *rest: Any) -> tuple[Any, ...]:
        return (stream, *rest)


class _RawDocument(ReadingFormat):
    """Gives a document's bytes."""

    def unpack(self, encoded: Any, shard: int) -> tuple[memoryview, int]:
        return memoryview(encoded), shard
