"""The only way to numba: compiles a kernel on its first call, without the GIL, cached on disk where possible."""

from __future__ import annotations

import functools
import hashlib
import logging
import operator
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from guideloom._base.interrupts import interrupts_later

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


_logger = logging.getLogger(__name__)

# What numba raises when the cache is at fault: no folder can be written (RuntimeError), a folder went away or the disk
# is full (OSError), a file was torn by a crash (whatever unpickling raises). numba's own errors are not among them.
_CACHE_ERRORS = (
    RuntimeError,
    OSError,
    EOFError,
    pickle.PickleError,
    ValueError,
    LookupError,
    AttributeError,
    ImportError,
    TypeError,
)


_TRIED_RELEASES = range(61, 69)
"""Releases 0.61 to 0.68 of numba: those with which ``_load`` was tried."""


# Held while a kernel is compiled or loaded from the cache. A fork waits for it, and for numba's own, which a user's
# functions may hold: a child would wait for ever on what a thread that it does not have held at that moment, the locks
# of half-done imports included. Reentrant, as numba's is: what compiles may fork.
_compiling = threading.RLock()
_releases: list[Callable[[], None]] = []


def _hold_numbas() -> None:
    _releases.clear()
    lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    if lock is not None:
        lock = getattr(lock, "_lock", lock)  # The methods of the lock around it are Python's again.
        _releases.append(lock.release)
        lock.acquire()


# Calls the one release, if there is one, and all of that in C: a signal handler that raises could end a function of
# ours before it has done anything.
_give_back_numbas = functools.partial(max, _releases, key=operator.call, default=None)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_numbas, after_in_parent=_give_back_numbas, after_in_child=_give_back_numbas)
    # What is registered last is called first before a fork, and last after it.
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )


def _is_on(variable: str, default: str = "0") -> bool:
    return os.environ.get(variable, default) not in ("", "0")


def jit_disabled() -> bool:
    """Whether ``NUMBA_DISABLE_JIT=1`` asks for plain Python."""
    return _is_on("NUMBA_DISABLE_JIT")


def cache_enabled() -> bool:
    """Whether compiled kernels may be kept on disk: unless ``GUIDELOOM_KERNEL_CACHE=0``, or ``NUMBA_BOUNDSCHECK=1``."""
    # numba's cache does not know whether an entry was compiled with bounds checks, and would serve the one without.
    return _is_on("GUIDELOOM_KERNEL_CACHE", "1") and not _is_on("NUMBA_BOUNDSCHECK")


@functools.cache
def _origin() -> str:
    """Name this version of all kernels' sources, and what machine code is made for.

    numba looks at the one file of a kernel, and serves it from the cache though what it uses of another file has
    changed since, or no longer agrees with a kernel beside it. It also does not know that a kernel holds the size of
    the system's pages as a constant. And where hosts of several kinds share a folder, two that compile at once could
    each give their code the same file name, and one host would then run the code of the other.
    """
    import mmap
    import platform

    import numba
    from llvmlite import binding  # type: ignore[import-untyped]

    found = hashlib.blake2b(digest_size=4)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    made_for = [numba.__version__, sys.platform, platform.machine(), mmap.PAGESIZE, binding.get_host_cpu_name()]
    with suppress(RuntimeError):  # LLVM cannot tell it of each kind of processor.
        made_for.append(binding.get_host_cpu_features().flatten())
    found.update(repr(made_for).encode())
    return found.hexdigest()


def _load(function: Callable[..., Any], signature: str) -> Any:
    """Return the compiled function if it is in the cache, else None; ready in half the time that numba takes.

    What numba does before it looks into its cache is to start its compiler, which takes longer than to load all kernels
    of a loader. Of that only the runtime's symbols are needed here. Should others be missing, LLVM would end the
    process: so with a release that was not tried with this, numba goes its own way.
    """
    import numba

    if numba.version_info.short not in [(0, minor) for minor in _TRIED_RELEASES]:
        return None
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.runtime.nrt import rtsys

    dispatcher: Any = numba.njit(nogil=True, cache=True)(function)
    with global_compiler_lock:
        context = dispatcher.targetctx
        rtsys.initialize(context)
        found = dispatcher._cache._load_overload(signature, context)
        if found is None:
            return None
        dispatcher._cache_hits[signature] += 1
        context.insert_user_function(found.entry_point, found.fndesc, [found.library])
        dispatcher.add_overload(found)
        dispatcher.disable_compile()
    return dispatcher


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
        What runs under ``NUMBA_DISABLE_JIT=1`` when the source cannot run as plain Python (it uses raw addresses, or
        wrapping 64-bit arithmetic); required with ``build``.

    Notes
    -----
    The compiled dispatcher replaces ``self.compiled`` once. ``run`` is a call, too, and after the first one the
    dispatcher itself: a third of a microsecond less.
    The cache on disk is numba's (``NUMBA_CACHE_DIR``, else beside the module, else the user's cache folder);
    ``GUIDELOOM_KERNEL_CACHE=0`` turns it off. A folder that cannot be written, a full disk or a torn file does so
    quietly: only a debug message of this module's logger says it.
    Processes may compile on one cache at once: numba writes each file under a temporary name and renames it.
    Hosts of other kinds (processor, page size, release of numba) may share the folder: each kind has files of its own.
    """

    def __init__(self, source: FunctionT, signature: str, twin: FunctionT | None, build: bool) -> None:
        self._source = source
        self._signature = signature
        self._twin = twin
        self._build = build
        self.compiled: FunctionT | None = None
        self.run: Callable[..., Any] = self._get_and_call
        self.__doc__ = source.__doc__
        self.__name__ = source.__name__

    def get(self) -> FunctionT:
        """Return the compiled function, compiling it when this is the first call."""
        if self.compiled is None:
            # Callbacks of the compiler would swallow a Ctrl-C.
            with interrupts_later(), _compiling:
                if self.compiled is None:
                    self.compiled = self._compile()
                    self.run = self.compiled
        return self.compiled

    def __call__(self, *args: Any) -> Any:
        return (self.compiled or self.get())(*args)

    def _get_and_call(self, *args: Any) -> Any:
        return self.get()(*args)

    def _compile(self) -> FunctionT:
        if jit_disabled():
            return self._twin or self._source
        import numba
        import numpy.ma  # noqa: F401  # numba imports it in the first call, where no lock of ours is held

        function = self._source() if self._build else self._source
        if cache_enabled():
            try:
                function.__qualname__ = f"{function.__name__}_{_origin()}"  # which names its files in the cache
                found = _load(function, self._signature)
                return cast(FunctionT, found or numba.njit(self._signature, nogil=True, cache=True)(function))
            except _CACHE_ERRORS as error:
                # Not hidden: what is wrong with the kernel itself is raised again below.
                _logger.debug("kernel %s: compiling without the cache on disk: %r", self.__name__, error)
        return cast(FunctionT, numba.njit(self._signature, nogil=True)(function))


def kernel(
    signature: str, *, twin: Callable[..., Any] | None = None, build: bool = False
) -> Callable[[FunctionT], Kernel[FunctionT]]:
    """Declare a kernel; see :class:`Kernel`."""
    if build and twin is None:
        raise TypeError("a kernel that is built has no plain Python form: give it a twin")

    def declare(source: FunctionT) -> Kernel[FunctionT]:
        return Kernel(source, signature, cast("FunctionT | None", twin), build)

    return declare
