"""What a demo run leaves behind: a table, ``summary.json`` and ``loss.png``."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.compare import Verdict
from demo.process import Outcome
from demo.settings import Layout, Settings
from demo.storage import ShardReport


@dataclass(frozen=True, slots=True)
class Results:
    """All that a demo run found out."""

    settings: Settings
    shards: list[ShardReport]
    disk_bytes: int
    reference: Outcome
    killed: Outcome
    resumed: Outcome
    verdict: Verdict


def folder_bytes(folder: Path) -> int:
    """Return the size of all files directly in ``folder``."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def summarise(results: Results, phases_s: dict[str, float]) -> dict[str, Any]:
    """Return the figures of a run, ready for JSON."""
    settings = results.settings
    num_tokens = sum(shard.num_tokens for shard in results.shards)
    text_bytes = sum(shard.text_bytes for shard in results.shards)
    steps = results.reference.steps
    waited_s, took_s = sum(step.wait_s for step in steps), sum(step.step_s for step in steps)
    last = statistics.fmean(step.loss for step in steps[-10:])
    started, resumed = results.reference.started, results.resumed.started
    return {
        "passed": results.verdict.passed,
        "problems": results.verdict.problems,
        "documents": sum(shard.num_documents for shard in results.shards),
        "shards": len(results.shards),
        "text_bytes": text_bytes,
        "tokens": num_tokens,
        "text_bytes_per_token": text_bytes / num_tokens,
        "disk_bytes_per_token": results.disk_bytes / num_tokens,
        "parameters": started.parameters if started is not None else None,
        "steps": len(steps),
        "tokens_per_step": settings.batch_size * settings.sequence_length,
        "tokens_per_s": settings.batch_size * settings.sequence_length * len(steps) / took_s,
        "first_loss": steps[0].loss,
        "last_loss": last,
        "last_bits_per_byte": last / math.log(2) * num_tokens / text_bytes,
        "loader_share_of_step_time": waited_s / took_s,
        "loader_share_after_first_batch": (waited_s - steps[0].wait_s) / (took_s - steps[0].step_s),
        "loader_wait_median_s": statistics.median(step.wait_s for step in steps),
        "loader_first_wait_s": steps[0].wait_s,
        "step_median_s": statistics.median(step.step_s for step in steps),
        "killed_after_step": results.killed.steps[-1].step,
        "resumed_after_step": resumed.step if resumed is not None else None,
        "steps_redone": results.verdict.redone,
        "steps_compared": results.verdict.compared_steps,
        "phases_s": phases_s,
    }


def table(summary: dict[str, Any]) -> str:
    """Return the figures as text for a person."""
    speed = f"{summary['tokens_per_s']:,.0f} tokens/s"
    bits = f"{summary['last_bits_per_byte']:.2f} bits a byte"
    wait_us, first_ms = summary["loader_wait_median_s"] * 1e6, summary["loader_first_wait_s"] * 1e3
    with_first = f" ({summary['loader_share_of_step_time']:.3%} with it)"
    rows = [
        ("text", f"{summary['text_bytes'] / 1e6:.1f} MB in {summary['documents']:,} files"),
        ("tokens", f"{summary['tokens']:,} in {summary['shards']} shards"),
        ("text bytes per token", f"{summary['text_bytes_per_token']:.2f}"),
        ("disk bytes per token", f"{summary['disk_bytes_per_token']:.3f}, of which 2 are the token"),
        ("model", f"{summary['parameters']:,} parameters"),
        ("training", f"{summary['steps']} steps of {summary['tokens_per_step']:,} tokens, {speed}"),
        ("loss", f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f} nats a token, {bits}"),
        ("step", f"{summary['step_median_s'] * 1e3:,.0f} ms (median)"),
        ("waited for data", f"{wait_us:,.0f} µs a step (median)"),
        (
            "first batch",
            f"{first_ms:,.0f} ms, in which kernels are loaded, or compiled when that was never done before",
        ),
        (
            "data loader's share",
            f"{summary['loader_share_after_first_batch']:.3%} of the step time after the first batch{with_first}",
        ),
        *((f"time: {name}", f"{seconds:.1f} s") for name, seconds in summary["phases_s"].items()),
        ("time: all", f"{sum(summary['phases_s'].values()):.1f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def describe_sources(sources: list[list[str]], most: int = 16) -> str:
    """Return which files each sample of a batch came from, a line a sample."""
    lines = [f"  sample {sample:>2}: {' + '.join(names)}" for sample, names in enumerate(sources[:most])]
    if len(sources) > most:
        lines.append(f"  and {len(sources) - most} more")
    return "\n".join(lines)


def save_summary(summary: dict[str, Any], layout: Layout) -> None:
    """Write ``summary.json``."""
    layout.summary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
