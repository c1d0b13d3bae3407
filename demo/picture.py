"""The loss curve as a picture, with the kill, and the time waited for data below."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from demo.records import Step
from demo.report import Results
from demo.settings import Layout

_GREY, _BLUE, _ORANGE, _RED = "#b8bec7", "#1f6fb2", "#e07b00", "#c0262d"


def draw(results: Results, layout: Layout) -> None:
    """Write ``loss.png``."""
    figure, (losses, waits) = plt.subplots(
        2, 1, figsize=(10, 6.4), sharex=True, height_ratios=(3, 1.15), layout="constrained"
    )
    _draw_losses(losses, results)
    _draw_waits(waits, results)
    figure.savefig(layout.picture, dpi=80)
    plt.close(figure)


def _draw_losses(axes: Axes, results: Results) -> None:
    killed_at = results.killed.steps[-1].step
    resumed_at = results.resumed.steps[0].step - 1
    axes.axvspan(resumed_at, killed_at, color=_RED, alpha=0.08, linewidth=0)
    axes.plot(
        *_losses(results.reference.steps), color=_GREY, linewidth=8, solid_capstyle="round", label="uninterrupted run"
    )
    axes.plot(*_losses(results.killed.steps), color=_BLUE, linewidth=3, label=f"killed after step {killed_at}")
    axes.plot(
        *_losses(results.resumed.steps),
        color=_ORANGE,
        linewidth=1.2,
        label=f"resumed from the checkpoint of step {resumed_at}",
    )
    axes.axvline(killed_at, color=_RED, linewidth=1.2, linestyle="--")
    top = axes.get_ylim()[1]
    axes.annotate(
        "SIGKILL", (killed_at, top), xytext=(6, -6), textcoords="offset points", color=_RED, va="top", fontweight="bold"
    )
    axes.annotate(
        f"{results.verdict.redone} steps\ndone again",
        ((resumed_at + killed_at) / 2, top),
        xytext=(0, -6),
        textcoords="offset points",
        color=_RED,
        ha="center",
        va="top",
        fontsize=8,
    )
    verdict = "bit for bit the same" if results.verdict.passed else "NOT the same"
    axes.set_title(
        f"Killed, resumed and uninterrupted training: losses and batches are {verdict}", loc="left", fontweight="bold"
    )
    axes.set_ylabel("loss (nats a token)")
    axes.legend(frameon=False, loc="lower left")
    _tidy(axes)


def _draw_waits(axes: Axes, results: Results) -> None:
    steps = results.reference.steps
    # The first batch waits for kernels to be loaded and for files to be opened, once a process: it is told apart.
    after_first = sum(step.wait_s for step in steps[1:]) / sum(step.step_s for step in steps[1:])
    for run, color in ((steps, _GREY), (results.killed.steps, _BLUE), (results.resumed.steps, _ORANGE)):
        axes.plot(
            [step.step for step in run],
            [100 * step.wait_s / step.step_s for step in run],
            ".",
            color=color,
            markersize=3,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))
    axes.set_title(
        f"Time waited for data: {after_first:.3%} of the step time after the first batch, "
        f"which took {steps[0].wait_s * 1e3:,.0f} ms (uninterrupted run)",
        loc="left",
        fontsize=10,
    )
    axes.set_ylabel("share of the step")
    axes.set_xlabel("step")
    axes.set_xlim(0, steps[-1].step)
    _tidy(axes)


def _losses(steps: list[Step]) -> tuple[list[int], list[float]]:
    return [step.step for step in steps], [step.loss for step in steps]


def _tidy(axes: Axes) -> None:
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
