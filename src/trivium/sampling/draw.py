"""Where a random number falls in the running sum of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivium.sampling.softmax import running_total

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.sampling.candidates import Candidates
    from trivium.sampling.softmax import Softmax

_RUN = 256
"""Weights that an estimate sums before it looks where the number falls."""


def draw(candidates: Candidates, random: float) -> int:
    """Return the place of the token that `random`, in [0, 1), falls on.

    It is the first place whose running sum exceeds `random` times the last running sum; should rounding leave
    none, the last place that weighs anything.
    """
    for soft in candidates.weighings():
        if soft.slack and (place := _estimated_place(soft, random)) is not None:
            return place
    return _exact_place(candidates.softmax.weights, random)


def _exact_place(weights: NDArray[np.float64], random: float) -> int:
    running = running_total(weights)
    place = int(np.searchsorted(running, random * running[-1], side="right"))
    return place if place < len(running) else int(np.flatnonzero(weights)[-1])


def _estimated_place(soft: Softmax, random: float) -> int | None:
    """Find the place from sums of runs, or `None` when the exact sums might decide otherwise."""
    goal, margin = random * soft.total, soft.slack * soft.total
    runs = np.cumsum(np.add.reduceat(soft.weights, np.arange(0, len(soft.weights), _RUN)))
    run = int(np.searchsorted(runs, goal, side="right"))
    if run == len(runs):
        return None
    before = float(runs[run - 1]) if run else 0.0
    inside = before + np.cumsum(soft.weights[run * _RUN : (run + 1) * _RUN])
    offset = int(np.searchsorted(inside, goal, side="right"))
    if offset == len(inside):
        return None
    place = run * _RUN + offset
    below = float(inside[offset - 1]) if offset else before
    is_clear = inside[offset] - goal > margin and (place == 0 or goal - below > margin)
    return place if is_clear else None
