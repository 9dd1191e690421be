"""How many more tokens an answer will have, learned from those that ended.

Lengths are counted in classes a quarter of an octave wide, and old answers fade. What a running answer will still
draw is the mean of the ended answers that got as long as it is now, less its length::

    ended answers    . . : : . |  . : : : .      .        length ->
                     now ------^  mean of these  -  now  =  what is still to come

An answer that ended for its limit says only that it would have been longer; it is counted at the limit, so that a
server whose users ask for few tokens expects few.
"""

from __future__ import annotations

import math
from itertools import accumulate

_CLASSES_PER_OCTAVE = 4
_NUM_CLASSES = 80
_FADE = 0.999
"""Weight of an ended answer after one more has ended: the last thousand count."""
_FEWEST = 8
"""Ended answers below which nothing is claimed."""


class OutputEstimate:
    """Output lengths of ended answers, and what follows for running ones."""

    def __init__(self) -> None:
        self._weights = [0.0] * _NUM_CLASSES
        self._sums = [0.0] * _NUM_CLASSES
        self._unit = 1.0
        self._seen = 0
        self._error_sum = 0.0
        self._means: list[float] = []
        """By class, the mean length of ended answers of it and of longer ones; empty when it must be derived anew."""

    def learn(self, output_len: int) -> None:
        """Take an answer that has ended after `output_len` tokens.

        Cost: constant.
        """
        expected = self.expected_len(0)
        if expected is not None:
            self._error_sum += abs(expected - output_len)
        self._unit /= _FADE  # newer ones weigh more: the same as fading all others
        at = _class_of(output_len)
        self._weights[at] += self._unit
        self._sums[at] += self._unit * output_len
        self._seen += 1
        self._means = []
        if self._unit > 1e12:  # noqa: PLR2004 - long before it could overflow
            self._weights = [weight / self._unit for weight in self._weights]
            self._sums = [total / self._unit for total in self._sums]
            self._unit = 1.0

    def expected_len(self, output_len: int) -> float | None:
        """Return the mean length of ended answers longer than `output_len`; `None` when too few have ended.

        Cost: constant, O(classes) after an answer has ended.
        """
        if self._seen < _FEWEST:
            return None
        if not self._means:
            weights = accumulate(reversed(self._weights))
            sums = accumulate(reversed(self._sums))
            means = [total / weight if weight else 0.0 for weight, total in zip(weights, sums, strict=True)]
            self._means = means[::-1]
        return max(self._means[_class_of(output_len + 1)], output_len + 1.0)

    @property
    def mean_len(self) -> float:
        """Mean output length of the answers that ended lately; 0 before any has."""
        weight = sum(self._weights)
        return sum(self._sums) / weight if weight else 0.0

    @property
    def mean_error(self) -> float:
        """Mean distance in tokens between what was expected of an answer at its start and what it drew; 0 before."""
        counted = self._seen - _FEWEST
        return self._error_sum / counted if counted > 0 else 0.0


def _class_of(length: int) -> int:
    return min(round(_CLASSES_PER_OCTAVE * math.log2(length + 1)), _NUM_CLASSES - 1)
