"""I/O backends: how bytes are read from the files of a data set."""

from guideloom._io.mapped import MmapIO
from guideloom._io.pread import PosixPreadIO
from guideloom._io.seek import SeekIO

__all__ = ["MmapIO", "PosixPreadIO", "SeekIO"]
