"""Byte ranges from files: the backends."""
