"""From real text to an exactly resumable training run: ``python -m demo.run``."""
