"""Errors, fingerprints and array checks: the standard library and NumPy only."""
