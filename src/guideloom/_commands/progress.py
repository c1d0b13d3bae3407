"""A progress bar on stderr when that is a terminal, and the question before something is changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from guideloom._base.errors import ArgumentError


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give what to call with (bytes done, all bytes); None when nobody watches, or tqdm is not installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc=text, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr, leave=False) as bar:

        def show(done: int, total: int) -> None:
            if bar.total != total:
                bar.total = total
                bar.refresh()
            bar.update(done - bar.n)

        yield show


def confirm(question: str, is_agreed: bool) -> bool:
    """Whether to go on: ``is_agreed`` (--yes), or the answer of whoever sits at the terminal.

    Raises
    ------
    ArgumentError
        Nobody can be asked.
    """
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise ArgumentError("nothing was changed: there is no terminal to ask at; to do it, add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
