"""Records and manifests from strangers, guided by the lines they reach: ``python -m tests.soak.coverage SECONDS``.

Needs atheris, which has wheels for some versions of Python only; ``make soak`` installs it where it can. A failure
leaves the input that caused it in ``crash-<digest>``, in the current folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["guideloom._storage", "guideloom._base"]):
    from guideloom._storage import manifest, record  # noqa: F401 - instrumented before the tests import them

from tests.durability import test_fuzz as fuzz

NAMES = (fuzz.NAME, fuzz.MANIFEST)


def parse_one(data: bytes) -> None:
    """Parse a file: the bytes as they are, the same with a checksum that holds, or a good one with fields changed.

    The first byte says which, and which parser; without the third kind nearly all input ends at the JSON parser.
    """
    if not data:
        return
    name, body = NAMES[data[0] & 1], data[1:]
    if data[0] & 4:
        name, changed = _changed(body)
        body = b"" if changed is None else changed
    elif data[0] & 2:
        body = fuzz.resealed(body) or b""
    if body:
        fuzz.parse(name, body)


def _changed(data: bytes) -> tuple[str, bytes | None]:
    """A good file with up to four fields changed as the input says."""
    choose = atheris.FuzzedDataProvider(data)
    name, good = fuzz.seeds()[choose.ConsumeIntInRange(0, len(fuzz.seeds()) - 1)]
    value = json.loads(good)
    for _ in range(choose.ConsumeIntInRange(1, 4)):
        places = fuzz.places(value)
        if not places:
            break
        at = places[choose.ConsumeIntInRange(0, len(places) - 1)]
        match choose.ConsumeIntInRange(0, 4):
            case 0:
                new: Any = choose.ConsumeInt(9)
            case 1:
                new = choose.ConsumeUnicode(24)
            case 2:
                new = choose.ConsumeIntListInRange(4, -2, 1 << 40)
            case 3:
                new = (None, True, [], {}, 0.5, -1, 2**31, 2**62, 2**63, "|O", "<u2", "../x", "0" * 32)[
                    choose.ConsumeIntInRange(0, 12)
                ]
            case _:
                # Another value of the same file: what agrees with itself goes further than what is new.
                source: Any = value
                for key in places[choose.ConsumeIntInRange(0, len(places) - 1)]:
                    source = source[key]
                new = json.loads(json.dumps(source))
        fuzz.put(value, at, new)
    return name, fuzz.sealed(value)


def main() -> None:
    """Fuzz for the seconds given, beginning with the files of the golden data sets."""
    corpus = Path(tempfile.mkdtemp(prefix="guideloom-corpus-"))
    words = {b'"%s"' % key.encode() for _, data in fuzz.seeds() for key in json.loads(data)}
    words |= {b"null", b"true", b"-1", b"9223372036854775807", b"4611686018427387904", b'"<u2"', b'"|O"', b'"../x"'}
    (corpus / "words").write_text("".join('"{}"\n'.format(word.decode().replace('"', '\\"')) for word in sorted(words)))
    seeds = corpus / "seeds"
    seeds.mkdir()
    for place, (name, data) in enumerate(fuzz.seeds()):
        for kind in (0, 2):
            (seeds / f"{place}-{kind}").write_bytes(bytes([kind | (name == fuzz.MANIFEST)]) + data)
        (seeds / f"{place}-4").write_bytes(bytes([4, *range(place, place + 40)]))
    options = [
        f"-max_total_time={int(sys.argv[1])}",
        f"-dict={corpus / 'words'}",
        "-max_len=8192",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(seeds)], parse_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
