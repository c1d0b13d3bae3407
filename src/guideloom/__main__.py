"""``python -m guideloom``, and the command ``guideloom``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; Ctrl-C is no error from the first moment on, also while the command itself is imported."""
    try:
        from guideloom.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("\nguideloom: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
