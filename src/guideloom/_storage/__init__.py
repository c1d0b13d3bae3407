"""Shards on disk: records, manifest, commit, writers."""
