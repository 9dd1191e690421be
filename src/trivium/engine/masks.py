"""Masks of the rows that are drawn under a grammar.

::

    rows of a step        scored  draw   draw   draw          answers under a grammar: the 2nd and the 4th row's
    step.mask_row          -1      0     -1      1            row of `masks`, or none
    masks                  [ allowed tokens of the 1st | of the 2nd ]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import TriviumError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trivium.engine.admit import Answer
    from trivium.schedule.decision import ScheduledStep

_ALL = np.uint32(0xFFFFFFFF)


class Masks:
    """Memory for the masks of one step at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._words = (vocab_size + 31) // 32
        self._masks: NDArray[np.uint32] = np.empty((0, self._words), np.uint32)
        self._rows: list[tuple[int, Answer]] = []

    def point(self, scheduled: ScheduledStep, answers: Sequence[Answer]) -> None:
        """Give each row that is drawn under a grammar a mask, before the step is handed to an executor."""
        self._rows = [
            (entry.first_row + entry.num_rows - 1, answer)
            for entry, answer in zip(scheduled.entries, answers, strict=True)
            if entry.draws and answer.automaton.is_constrained
        ]
        mask_row = scheduled.step.mask_row
        mask_row[:] = -1
        for idx, (row, _) in enumerate(self._rows):
            mask_row[row] = idx

    def fill(self) -> tuple[NDArray[np.uint32] | None, dict[int, TriviumError]]:
        """Ask the answers what may come next.

        Returns:
            The masks, [masks, ceil(V / 32)], and by row what went wrong with one: its mask allows all then.
        """
        if not self._rows:
            return None, {}
        if len(self._masks) < len(self._rows):
            self._masks = np.empty((len(self._rows), self._words), np.uint32)
        masks = self._masks[: len(self._rows)]
        errors: dict[int, TriviumError] = {}
        for mask, (row, answer) in zip(masks, self._rows, strict=True):
            try:
                answer.automaton.fill_mask(mask)
            except TriviumError as error:
                mask[:] = _ALL
                errors[row] = error
        return masks, errors
