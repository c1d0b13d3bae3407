"""Compiled kernels, and the only importer of numba; each stands beside a plain NumPy twin."""
