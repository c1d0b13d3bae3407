"""Elements with named fields, and a payload for each span of them, for streams with metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, PackError
from guideloom._format.naming import NamedFormat
from guideloom._format.stream_numpy import StreamNumpyFormat

_LENGTHS, _PAYLOADS = "span_lengths", "span_payloads"


class SpanNumpyFormat(NamedFormat):
    """Tokens that know their document: named fields as in ``StreamNumpyFormat``, and a payload for each span.

    Parameters
    ----------
    stream_dtype : dtype-like
        Structured, e.g. ``[("token", "<u2")]``; no field's name may begin with ``span_``.

    Attributes
    ----------
    stream_dtype : dtype
        What is stored: the dtype asked for, little-endian and without gaps between fields.

    Raises
    ------
    ArgumentError
        ``stream_dtype`` is not structured, holds Python objects, or has a field of such a name.

    Notes
    -----
    Packing costs what it does in ``StreamNumpyFormat``, and no Python for each element; unpacking gives views. With
    ``collate_fn=None`` the loader calls nothing here, and gives spans as arrays. Safe on data from strangers: the bytes
    are numbers, and payloads are passed on as they are.

    Examples
    --------
    >>> fmt = SpanNumpyFormat([("token", "<u2")])
    >>> elements, lengths, payloads = fmt.pack_spans({"token": [5, 6, 7], "span_payloads": [b"page 1"]})
    >>> elements["token"].tolist(), lengths, payloads
    ([5, 6, 7], [3], [b'page 1'])
    """

    def __init__(self, stream_dtype: npt.DTypeLike) -> None:
        self._elements = StreamNumpyFormat(stream_dtype)
        self.stream_dtype: np.dtype[Any] = self._elements.stream_dtype
        taken = [name for name in self.stream_dtype.names or () if name.startswith("span_")]
        if taken:
            raise ArgumentError(
                f"expected fields whose names do not begin with span_, got {', '.join(taken)}: batches have the spans "
                "under such names, so give it another one"
            )

    def pack_spans(self, data: Any) -> tuple[npt.NDArray[Any], Any, Sequence[Any]]:
        """Encode a record: one document or many.

        Parameters
        ----------
        data : mapping
            The fields, each an array-like of shape (L, ...). ``"span_lengths"``: elements of each span, in order, each
            at least 1 and L in all; by default one span of all elements. ``"span_payloads"``: a sequence of buffers,
            one a span; by default empty ones.

        Returns
        -------
        elements : ndarray of ``stream_dtype``, shape (L,)
        lengths : sequence of S integers
        payloads : sequence of S buffers

        Raises
        ------
        PackError
            ``data`` is no mapping; or as in :meth:`StreamNumpyFormat.pack`. Lengths and payloads are checked by the
            writer.
        """
        if not isinstance(data, Mapping):
            raise PackError(f"expected a mapping of fields, {_LENGTHS!r} and {_PAYLOADS!r}, got {type(data).__name__}")
        elements = self._elements.pack({name: data[name] for name in data if name not in (_LENGTHS, _PAYLOADS)})
        lengths, payloads = data.get(_LENGTHS), data.get(_PAYLOADS)
        if lengths is None:
            lengths = [elements.size] if elements.size else []
        if payloads is None:
            payloads = [b""] * len(lengths)
        return elements, lengths, payloads

    def unpack(
        self,
        stream: npt.NDArray[Any],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[Any],
    ) -> dict[str, Any]:
        """Decode a window.

        Parameters
        ----------
        stream : structured ndarray, shape (L,)
        document_shard : int64[P]
            Not used.
        document_index : int32[L]
        document_data : sequence of P buffers

        Returns
        -------
        dict
            The fields, as views of shape (L, ...); ``"span_index"`` int32[L]: which span of the window each element
            lies in; ``"span_payloads"``: the payloads of the spans that the window touches, P buffers.
        """
        sample: dict[str, Any] = {name: stream[name] for name in self.stream_dtype.names or ()}
        sample["span_index"] = document_index
        sample[_PAYLOADS] = document_data
        return sample

    def __repr__(self) -> str:
        return f"SpanNumpyFormat({self.stream_dtype.descr})"
