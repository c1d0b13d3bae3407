"""``guideloom bench``: which settings load one's own data fastest, here."""
