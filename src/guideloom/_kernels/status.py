"""Numbers that kernels and their callers share: where a gather stopped and why, and how a field is copied."""

from __future__ import annotations

DONE = -1
"""What a gather kernel returns when every run was done; below 0 only then, else the run it stopped at."""

NOT_OPEN, SHORT, FAILED, BAD_RANGE = 1, 2, 3, 4
"""``status[0]``: the file has no handle; it ended early; errno is in ``status[1]``; outside file or buffer."""

BLOCKS, WAITS = 3, 4
"""``status[BLOCKS]``, ``status[WAITS]``: what the call read from devices, and how often it waited; 0 where unknown."""

WAITED = -2
"""As ``DONE``, and ``status[BLOCKS]`` or ``status[WAITS]`` is not 0."""

UNMEASURED = 5
"""``status[UNMEASURED]``: 1 before the call spares the kernel two calls of the system; BLOCKS and WAITS then count
only what threads that helped say of themselves."""

USAGE, USAGE_WORDS = 6, 18
"""Where in ``status`` a kernel has the system write what the thread used, and how many words that takes."""

STATUS_SIZE = USAGE + USAGE_WORDS

OPEN, NEXT, ACTIVE, WATCHERS, BUSY = 0, 8, 16, 24, 32
"""Words of a desk that several threads write, each in a cache line of its own: whether a gather lies there, its next
run, who works on it, who waits at the desk, whether the desk is taken."""

(
    FAULTS, HELP_BLOCKS, HELP_WAITS, REST, IS_MAPPED, HANDLES, NUM_FILES, SIZES, FILE, SRC, DST, NBYTES, NUM_RUNS, END,
    STEP, OUT, ROOM, SHIFT, DESK_SIZE,
) = range(40, 59)  # fmt: skip
"""The other words of a desk: what became of the gather, and the gather itself, its arrays as addresses."""

COPY_1, COPY_2, COPY_4, COPY_8, COPY_ANY, U1_TO_I4, U2_TO_I4, U1_TO_I8, U2_TO_I8, U4_TO_I8, I4_TO_I8 = range(11)
"""How a field goes from rows to its column: bytes as they are (1, 2, 4, 8, any number of them), or widened."""
