"""Compiled kernels behind one door, each beside a plain NumPy twin."""
