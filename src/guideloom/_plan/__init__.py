"""Order, partition, windows to byte ranges: pure functions, no I/O, no clock, no threads."""
