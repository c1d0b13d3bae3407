"""The one door to numba: compiles a kernel on its first call, without the GIL, cached on disk where that is possible."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def jit_disabled() -> bool:
    """Whether ``NUMBA_DISABLE_JIT=1`` asks for plain Python."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


class Kernel(Generic[FunctionT]):
    """A function compiled on its first call.

    Parameters
    ----------
    source : callable
        The kernel; or, with ``build``, a function without arguments that returns it (it may then import numba's
        ``types`` and intrinsics lazily).
    signature : str
        Eager numba signature.
    twin : callable, optional
        What runs under ``NUMBA_DISABLE_JIT=1`` when the source cannot run as plain Python (it uses raw addresses).

    Notes
    -----
    The compiled dispatcher replaces ``self.compiled`` once; calls after that cost one attribute look-up more than numba's
    own. The cache on disk is numba's (beside the module, else the user's cache folder); ``GUIDELOOM_KERNEL_CACHE=0``
    turns it off, and a folder that cannot be written does so quietly.
    """

    def __init__(self, source: FunctionT, signature: str, twin: FunctionT | None, build: bool) -> None:
        self._source = source
        self._signature = signature
        self._twin = twin
        self._build = build
        self._lock = threading.Lock()
        self.compiled: FunctionT | None = None
        self.__doc__ = source.__doc__
        self.__name__ = source.__name__

    def get(self) -> FunctionT:
        """Return the compiled function, compiling it when this is the first call."""
        if self.compiled is None:
            with self._lock:
                if self.compiled is None:
                    self.compiled = self._compile()
        return self.compiled

    def __call__(self, *args: Any) -> Any:
        return (self.compiled or self.get())(*args)

    def _compile(self) -> FunctionT:
        if jit_disabled() and self._twin is not None:
            return self._twin
        import numba

        function = self._source() if self._build else self._source
        use_cache = os.environ.get("GUIDELOOM_KERNEL_CACHE", "1") != "0"
        if use_cache:
            try:
                return cast(FunctionT, numba.njit(self._signature, nogil=True, cache=True)(function))
            except (RuntimeError, OSError):
                # numba: "cannot cache function: no locator available", or a cache folder that went away or is full.
                pass
        return cast(FunctionT, numba.njit(self._signature, nogil=True)(function))


def kernel(
    signature: str, *, twin: Callable[..., Any] | None = None, build: bool = False
) -> Callable[[FunctionT], Kernel[FunctionT]]:
    """Declare a kernel; see :class:`Kernel`."""

    def declare(source: FunctionT) -> Kernel[FunctionT]:
        return Kernel(source, signature, cast("FunctionT | None", twin), build)

    return declare
