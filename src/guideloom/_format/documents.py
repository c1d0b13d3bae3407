"""Documents as bytes: pickle, JSON, MessagePack, and (from its own module) named NumPy arrays."""

from __future__ import annotations

import json
import pickle
from typing import Any, NoReturn

from guideloom._base.errors import ArgumentError, CorruptDataError, PackError
from guideloom._base.protocols import StorageBufferTypes
from guideloom._format.document_numpy import DocumentNumpyFormat
from guideloom._format.naming import NamedFormat

__all__ = ["DocumentJsonFormat", "DocumentMsgpackFormat", "DocumentNumpyFormat", "DocumentPickleFormat"]


class DocumentPickleFormat(NamedFormat):
    """NOT safe on data from strangers: unpickling a document runs whatever code its writer put into it.

    Documents are any Python objects that :mod:`pickle` takes. Good for a start and for data of your own.

    Notes
    -----
    Cost: everything is copied, and only Python with the same classes reads it; a change to a class can make old
    documents unreadable. Documents are pickled with protocol 5, whatever the running Python prefers, so that every
    supported Python reads them.
    """

    def pack(self, data: Any) -> bytes:
        """Encode one document; ``data`` that cannot be pickled is a ``PackError``."""
        try:
            return pickle.dumps(data, protocol=5)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise PackError(f"expected a document that can be pickled, got {type(data).__name__}: {error}") from error

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> Any:
        """Decode one document.

        Parameters
        ----------
        encoded : bytearray or memoryview
        shard : int
            For the errors.

        Raises
        ------
        CorruptDataError
            The bytes are no pickle.
        ImportError, AttributeError
            A class of the document cannot be found here (or its name is damaged); a note on the error says so.
        """
        try:
            return pickle.loads(encoded)
        except (ImportError, AttributeError) as error:
            error.add_note(
                f"while unpickling a document of shard {shard}: its class must be importable here, under the name "
                "that it was written with"
            )
            raise
        except (
            pickle.UnpicklingError,
            EOFError,
            LookupError,
            TypeError,
            ValueError,
            OverflowError,
            MemoryError,
            RecursionError,
        ) as error:
            _refuse(error, "a pickle", encoded, shard)

    def __repr__(self) -> str:
        return "DocumentPickleFormat()"


class DocumentJsonFormat(NamedFormat):
    """Documents as JSON: dicts with string keys, lists, strings, numbers, booleans, None. Safe on data from strangers.

    Notes
    -----
    Cost: text, so the largest and, for numbers, the slowest to decode; every language reads it. UTF-8, no spaces.
    Nothing is zero-copy. Tuples come back as lists. Integers have any size and floats keep every bit.
    """

    def pack(self, data: Any) -> bytes:
        """Encode one document.

        Parameters
        ----------
        data : dict, list, str, number, bool or None

        Raises
        ------
        PackError
            NaN and infinities, which JSON has no words for; keys that are no strings, which would come back as strings;
            objects that JSON does not know (NumPy arrays: use ``.tolist()``); lone surrogates; circular or too deeply
            nested data.
        """
        try:
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            encoded = text.encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise PackError(
                f"expected a document of plain JSON values, got {type(data).__name__}: {error} (NaN and infinities "
                "have no JSON form; arrays need .tolist())"
            ) from error
        _check_keys(data)
        return encoded

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> Any:
        """Decode ``encoded``; bytes that are not JSON in UTF-8 are a ``CorruptDataError`` that names ``shard``."""
        try:
            return _DECODER.decode(str(encoded, "utf-8"))
        except (ValueError, RecursionError) as error:
            _refuse(error, "JSON in UTF-8", encoded, shard)

    def __repr__(self) -> str:
        return "DocumentJsonFormat()"


class DocumentMsgpackFormat(NamedFormat):
    """Documents as MessagePack with a typed schema, checked at both ends. Safe on data from strangers.

    Needs msgspec, which the extra ``msgpack`` brings: ``pip install msgspec``.

    Parameters
    ----------
    schema : type
        A ``msgspec.Struct``, a dataclass, a ``TypedDict``, or a type of built-ins such as ``dict[str, list[int]]``.
        Process workers pickle it, so define it at the top of a module.
    verify : bool
        Decode each document once when it is packed, so that one which could not be read is refused before it is
        written. Decoding takes about as long as encoding.

    Raises
    ------
    ArgumentError
        msgspec is not installed, or does not know ``schema``.

    Notes
    -----
    Cost: compact, and the quickest to decode into objects. A field annotated ``memoryview`` is a view on the read
    buffer (``np.frombuffer`` then makes no copy), one annotated ``bytes`` a copy. Other languages read it.
    """

    def __init__(self, schema: Any, *, verify: bool = True) -> None:
        try:
            from msgspec import DecodeError, msgpack
        except ImportError as error:
            raise ArgumentError(
                "DocumentMsgpackFormat needs the package msgspec, which is not installed: pip install msgspec"
            ) from error
        try:
            self._decoder: Any = msgpack.Decoder(schema)
        except (TypeError, NameError) as error:
            raise ArgumentError(f"expected a schema that msgspec can decode, got {schema!r:.200}: {error}") from error
        self._encoder = msgpack.Encoder()
        self._decode_error = DecodeError
        self.schema = schema
        self.verify = verify

    def pack(self, data: Any) -> bytes:
        """Encode ``data``; what msgspec cannot encode, or the schema refuses (``verify``), is a ``PackError``."""
        try:
            encoded = self._encoder.encode(data)
            if self.verify:
                self._decoder.decode(encoded)
        except (TypeError, ValueError, OverflowError, RecursionError, self._decode_error) as error:
            raise PackError(
                f"expected a document of the schema {self._schema_name()}, got {type(data).__name__}: {error}"
            ) from error
        return encoded

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> Any:
        """Decode one document.

        Parameters
        ----------
        encoded : bytearray or memoryview
        shard : int
            For the error.

        Raises
        ------
        CorruptDataError
            The bytes are no MessagePack, or not of the schema.
        """
        try:
            return self._decoder.decode(encoded)
        except (self._decode_error, ValueError, RecursionError) as error:
            _refuse(error, f"MessagePack of the schema {self._schema_name()}", encoded, shard)

    def _schema_name(self) -> str:
        schema = self.schema
        return schema.__qualname__ if isinstance(schema, type) else str(schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_msgpack, (self.schema, self.verify)

    def __repr__(self) -> str:
        return f"DocumentMsgpackFormat({self._schema_name()}{'' if self.verify else ', verify=False'})"


def _rebuild_msgpack(schema: Any, verify: bool) -> DocumentMsgpackFormat:
    return DocumentMsgpackFormat(schema, verify=verify)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


_CONTAINERS = (dict, list, tuple)  # a union here would make the check three times as slow


def _check_keys(data: Any) -> None:
    """Raise for keys that JSON turns into strings, and so may merge. ``data`` is known to be a finite tree."""
    waiting = [data] if isinstance(data, _CONTAINERS) else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise PackError(f"expected only strings as keys, got {type(key).__name__} {key!r:.60}: convert it")
        inside = value.values() if isinstance(value, dict) else value
        waiting.extend([item for item in inside if isinstance(item, _CONTAINERS)])


def _refuse(error: BaseException, what: str, encoded: StorageBufferTypes, shard: int) -> NoReturn:
    why = f"{type(error).__name__}: {error}"
    raise CorruptDataError(
        f"expected a document that is {what}, found {len(encoded)} bytes that are not ({why}): was it written with "
        "this format? If it was, restore the file or write the shard anew",
        shard=shard,
    ) from error
