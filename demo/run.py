"""The demo: ``python -m demo.run``.

Text that is on this machine becomes shards, a small transformer trains on them, is killed with SIGKILL, goes on from
its checkpoint, and is compared bit for bit with a run that nobody disturbed. Exit status 0: all agreed; 1: not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.compare import compare
from demo.corpus import collect
from demo.process import run_training
from demo.report import Results, describe_sources, folder_bytes, save_summary, summarise, table
from demo.settings import FULL, QUICK, Layout, Settings
from demo.storage import write_shards
from demo.tokenise import train_tokenizer

_MARKER = ".guideloom-demo"


def run(layout: Layout, settings: Settings) -> bool:
    """Run all phases into ``layout``; return whether the resumed run equals the uninterrupted one."""
    phases_s: dict[str, float] = {}

    @contextmanager
    def phase(name: str, title: str) -> Iterator[None]:
        say(f"\n[{len(phases_s) + 1}/6] {title}")
        began = time.perf_counter()
        yield
        phases_s[name] = time.perf_counter() - began

    settings.save(layout.settings)
    with phase("tokenizer", "Collect text of this Python installation and train a tokenizer"):
        files = collect(settings.corpus_bytes)
        say(
            f"  {len(files):,} files, {sum(file.num_bytes for file in files) / 1e6:.1f} MB, for example {files[0].name}"
        )
        train_tokenizer(files, layout.tokenizer, vocabulary=settings.vocabulary, limit_bytes=settings.tokenizer_bytes)
    with phase("shards", f"Write {settings.num_shards} shards from {settings.num_writers} processes at once"):
        shards = write_shards(
            files, layout.data, layout.tokenizer, num_shards=settings.num_shards, num_writers=settings.num_writers
        )
    with phase("reference run", f"Train {settings.steps} steps that nobody disturbs"):
        reference = run_training(layout, "reference")
    with phase("killed run", f"Train again, and send SIGKILL after step {settings.kill_after_step}"):
        killed = run_training(layout, "interrupted", kill_after_step=settings.kill_after_step)
    say(f"  killed after step {killed.steps[-1].step}; the last checkpoint is of step {killed.saved[-1]}")
    with phase("resumed run", "Go on from the checkpoint in a new process"):
        resumed = run_training(layout, "interrupted")
    results = Results(
        settings, shards, folder_bytes(layout.data), reference, killed, resumed, compare(reference, killed, resumed)
    )
    with phase("picture", "Draw the loss curve"):
        from demo.picture import draw  # here, because importing matplotlib takes a moment

        draw(results, layout)
    show(results, phases_s, layout)
    return results.verdict.passed


def show(results: Results, phases_s: dict[str, float], layout: Layout) -> None:
    """Print what a run found, and save its figures."""
    summary = summarise(results, phases_s)
    save_summary(summary, layout)
    if results.resumed.finished is not None:
        say(f"\nThe last batch came from\n{describe_sources(results.resumed.finished.sources)}")
    say(f"\nSummary\n{table(summary)}")
    say(f"\n  loss curve  {layout.picture}\n  figures     {layout.summary}\n")
    verdict = results.verdict
    for problem in verdict.problems[:10]:
        say(f"  DIFFERENT: {problem}")
    if verdict.passed:
        say(
            f"PASS: {verdict.compared_steps} steps of the killed and the resumed run ({verdict.redone} done twice)\n"
            f"      have the batches and losses of the uninterrupted run, bit for bit; so have the final weights."
        )
    else:
        say(f"FAIL: the resumed run is not the uninterrupted one ({len(verdict.problems)} differences).")


def prepare_folder(root: Path) -> Layout:
    """Return an empty folder's layout; only a folder that a demo made is emptied.

    Raises
    ------
    FileExistsError
        If ``root`` holds anything else.
    """
    if root.exists() and any(root.iterdir()):
        if not (root / _MARKER).exists():
            raise FileExistsError(f"{root} is not empty and not of an earlier demo; give another folder with --out")
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / _MARKER).touch()
    return Layout(root)


def say(text: str) -> None:
    """Print at once, so that the lines stand in order with the progress bars."""
    print(text, flush=True)


def main() -> int:
    """Parse the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where all files go (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny model on little text: seconds, not minutes")
    arguments = parser.parse_args()
    layout = prepare_folder(arguments.out.resolve())
    return 0 if run(layout, QUICK if arguments.quick else FULL) else 1


if __name__ == "__main__":
    sys.exit(main())
