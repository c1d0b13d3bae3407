"""Locks for ``with``, which the handler of a signal that raises cannot leave locked."""

from __future__ import annotations

import sys
import threading
from operator import methodcaller
from typing import Any, cast

# Python 3.14 runs handlers between the call of ``__enter__`` and the block, where nothing calls ``__exit__``
# (https://github.com/python/cpython/issues/148874): one in a few interrupts of a loop over batches would leave a lock
# locked for ever. Earlier and later releases do not.
_LOSES_LOCKS = sys.version_info[:2] == (3, 14)


class _Lock:
    """A lock whose ``with`` is whole there, too.

    Handlers run where a function of Python begins, and where one of C has returned to Python: not when an attribute was
    looked up, and not when a function of Python returns. ``__exit__`` is the lock's own, in C.
    """

    __slots__ = ("__exit__", "acquire", "locked", "release")

    def __init__(self, lock: Any) -> None:
        self.__exit__ = lock.__exit__
        self.acquire = lock.acquire
        self.locked = lock.locked
        self.release = lock.release

    _taken = property(methodcaller("acquire"))

    def __enter__(self) -> Any:
        return self._taken


def new_lock() -> threading.Lock:
    """Return a lock to be used by ``with``, in a thread that may be interrupted."""
    lock = threading.Lock()
    return cast(threading.Lock, _Lock(lock) if _LOSES_LOCKS else lock)


def new_rlock() -> threading._RLock:
    """Return a re-entrant lock to be used by ``with``, in a thread that may be interrupted."""
    lock = threading.RLock()
    return cast("threading._RLock", _Lock(lock) if _LOSES_LOCKS else lock)
