"""A step from its launch until its draws are collected.

An executor whose device runs by itself returns from `forward` and `sample` at once and promises the draws. The loop
then launches the next step as soon as it knows the tokens of this one, and reads them out while that runs::

    loop     collect 1 · commit 1 · launch 2 │ read 1 · send 1 · admit others │ collect 2 · commit 2 · launch 3 │ read
    device   ═══ 1 ══╡                       ╞════════════════ 2 ═════════════╡                                 ╞═ 3 ═

An executor that computes in the loop's thread has the draws when `sample` returns: a device whose launch completes at
once. Its step is read out before the next one is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.engine.output import sample_rows
from trivium.sampling.batch import Sampled

if TYPE_CHECKING:
    from trivium.base.errors import TriviumError
    from trivium.engine.admit import Answer
    from trivium.engine.masks import Masks
    from trivium.runtime.executor import Executor
    from trivium.sampling.batch import Draws, SampleRow
    from trivium.schedule.decision import ScheduledStep


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step, and what it takes to read it."""

    scheduled: ScheduledStep
    """When the record is moved on to the next step, all but where its entries start stays: all that reading needs."""
    answers: Sequence[Answer]
    """One per entry."""
    rows: Sequence[SampleRow]
    """What was asked of the sampler."""
    draws: Draws
    errors: dict[int, TriviumError]
    """By row, why its answer ends whatever is drawn: its grammar has no mask for it, or does not know what was drawn;
    when it is collected, also what the sampler says."""

    @property
    def runs_by_itself(self) -> bool:
        """Whether its draws were promised, so that the device can run the next step while this one is read."""
        return not isinstance(self.draws, Sampled)


class Failed:
    """Draws that will never be."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> Sampled:
        """Raise what went wrong."""
        raise self._error


def launch(
    executor: Executor,
    scheduled: ScheduledStep,
    answers: Sequence[Answer],
    masks: Masks | None = None,
    *,
    is_forwarded: bool = False,
) -> Flight:
    """Have the executor run a step; what goes wrong with that is told by the draws.

    Args:
        executor: Runs no other step.
        scheduled: What to run.
        answers: One per entry.
        masks: Where some answer may be under a grammar: filled while a device runs the step, before it draws.
        is_forwarded: Whether its forward pass has been launched before; then each entry has the mask that it had.
    """
    rows: Sequence[SampleRow] = ()
    errors: dict[int, TriviumError] = {}
    try:
        if masks is not None:
            masks.point(scheduled, answers)
        if not is_forwarded:
            executor.forward(scheduled.step)
        rows = sample_rows(scheduled.entries, answers)
        if masks is None:
            draws: Draws = executor.sample(rows)
        else:
            filled, errors = masks.fill()
            draws = executor.sample(rows, filled)
    except Exception as error:
        draws = Failed(error)
    return Flight(scheduled, answers, rows, draws, errors)
