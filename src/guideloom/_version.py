"""The version, in one place."""

__version__ = "2.0.0.dev0"
