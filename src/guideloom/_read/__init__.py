"""Carries out plans on a backend into buffers."""
