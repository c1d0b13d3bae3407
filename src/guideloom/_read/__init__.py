"""Executes plans on a backend, into buffers."""
