"""Whether a killed and resumed run did what an uninterrupted one did."""

from __future__ import annotations

from dataclasses import dataclass

from demo.process import Outcome
from demo.records import Step


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison.

    ``problems`` is empty when all agrees; ``redone`` are the steps that the kill cost, done twice.
    """

    problems: list[str]
    compared_steps: int
    redone: int

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return not self.problems


def compare(reference: Outcome, killed: Outcome, resumed: Outcome) -> Verdict:
    """Compare bit for bit: every batch and loss, those that the kill cost included, and the final weights."""
    problems: list[str] = []
    expected = {step.step: step for step in reference.steps}
    start = resumed.started.step if resumed.started is not None else 0
    # A kill can fall between a checkpoint and the line that tells of it: one later than the last told is right too.
    if not max(killed.saved, default=1) <= start <= killed.steps[-1].step:
        problems.append(
            f"the resumed run began after step {start}, but the killed run's checkpoints were {killed.saved}"
        )
    for name, outcome, first in (("killed", killed, 1), ("resumed", resumed, start + 1)):
        numbers = [step.step for step in outcome.steps]
        if numbers != list(range(first, first + len(numbers))):
            problems.append(f"the {name} run's steps are not {first}, {first + 1}, ...: {numbers}")
        for step in outcome.steps:
            problems += _differences(name, expected.get(step.step), step)
    if not resumed.steps or resumed.steps[-1].step != reference.steps[-1].step:
        problems.append("the resumed run did not reach the last step")
    if reference.finished is None or resumed.finished is None or reference.finished != resumed.finished:
        problems.append("the final weights, or the sources of the last batch, differ")
    redone = len([step for step in killed.steps if step.step > start])
    return Verdict(problems, len(killed.steps) + len(resumed.steps), redone)


def _differences(name: str, expected: Step | None, found: Step) -> list[str]:
    if expected is None:
        return [f"step {found.step} of the {name} run is not in the reference run"]
    pairs = (("batch", expected.digest, found.digest), ("loss", expected.loss.hex(), found.loss.hex()))
    return [
        f"step {found.step}, {what}: {want} in the reference run, {got} in the {name} run"
        for what, want, got in pairs
        if want != got
    ]
