"""``python -m guideloom``."""

from __future__ import annotations

from guideloom.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
