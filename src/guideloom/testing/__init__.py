"""What a test of a backend, a data set or a training loop needs; GuideLoom's own tests are its first user.

It needs neither pytest nor torch. The hypothesis strategies are in :mod:`guideloom.testing.strategies`, which needs
hypothesis and is therefore not imported here.
"""

from __future__ import annotations

from guideloom.testing.backends import (
    BackendWrapper,
    CountingBackend,
    FileCounts,
    MinimalBackend,
)
from guideloom.testing.conformance import BackendConformance
from guideloom.testing.oracles import (
    naive_batches,
    naive_runs,
    naive_span_window,
    naive_window,
)
from guideloom.testing.records import (
    DocumentIds,
    IdDocumentFormat,
    IdSpanFormat,
    IdStreamFormat,
    Span,
    SpanIds,
    StreamIds,
    make_documents,
    make_spans,
    make_stream,
    record_values,
)
from guideloom.testing.resume import check_resume, check_worlds, plain, reference
from guideloom.testing.sparse import make_sparse_document, make_sparse_stream
from guideloom.testing.trouble import Fault, FaultBackend, LatencyBackend

__all__ = [
    "BackendConformance",
    "BackendWrapper",
    "CountingBackend",
    "DocumentIds",
    "Fault",
    "FaultBackend",
    "FileCounts",
    "IdDocumentFormat",
    "IdSpanFormat",
    "IdStreamFormat",
    "LatencyBackend",
    "MinimalBackend",
    "Span",
    "SpanIds",
    "StreamIds",
    "check_resume",
    "check_worlds",
    "make_documents",
    "make_spans",
    "make_sparse_document",
    "make_sparse_stream",
    "make_stream",
    "naive_batches",
    "naive_runs",
    "naive_span_window",
    "naive_window",
    "plain",
    "record_values",
    "reference",
]
