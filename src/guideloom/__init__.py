"""GuideLoom: dataset storage and a resumable loader for people who train large models.

Every name is loaded on first use: importing the package imports neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from guideloom._version import __version__

if TYPE_CHECKING:
    from guideloom import errors, io, testing, types
    from guideloom._dataset.documents import DocumentDataset
    from guideloom._dataset.storages import DocumentStorage, StreamStorage, StreamWithMetaStorage
    from guideloom._dataset.windows import StreamDataset
    from guideloom._format.documents import (
        DocumentJsonFormat,
        DocumentMsgpackFormat,
        DocumentNumpyFormat,
        DocumentPickleFormat,
    )
    from guideloom._format.span_numpy import SpanNumpyFormat
    from guideloom._format.stream_numpy import StreamNumpyFormat
    from guideloom._loader.draws import sample_seeds
    from guideloom._loader.loader import StatefulDataLoader

_HOMES = {
    "DocumentDataset": "guideloom._dataset.documents",
    "DocumentJsonFormat": "guideloom._format.documents",
    "DocumentMsgpackFormat": "guideloom._format.documents",
    "DocumentNumpyFormat": "guideloom._format.documents",
    "DocumentPickleFormat": "guideloom._format.documents",
    "DocumentStorage": "guideloom._dataset.storages",
    "SpanNumpyFormat": "guideloom._format.span_numpy",
    "StatefulDataLoader": "guideloom._loader.loader",
    "StreamDataset": "guideloom._dataset.windows",
    "StreamNumpyFormat": "guideloom._format.stream_numpy",
    "StreamStorage": "guideloom._dataset.storages",
    "StreamWithMetaStorage": "guideloom._dataset.storages",
    "sample_seeds": "guideloom._loader.draws",
}
_MODULES = ("errors", "io", "testing", "types")

__all__ = [
    "DocumentDataset",
    "DocumentJsonFormat",
    "DocumentMsgpackFormat",
    "DocumentNumpyFormat",
    "DocumentPickleFormat",
    "DocumentStorage",
    "SpanNumpyFormat",
    "StatefulDataLoader",
    "StreamDataset",
    "StreamNumpyFormat",
    "StreamStorage",
    "StreamWithMetaStorage",
    "__version__",
    "errors",
    "io",
    "sample_seeds",
    "testing",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"guideloom.{name}")
    else:
        raise AttributeError(f"module 'guideloom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    # ``help`` asks for every name that stands here.
    away = () if find_spec("torch") else ("StatefulDataLoader",)
    return sorted(set(__all__).difference(away))
