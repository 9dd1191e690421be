"""Filters that shorten the list of candidates, in the order of the sampling contract.

::

    rank order          r1      r2      r3      r4      r5 ...
    running weight      w1      w1+w2   ...
    top-p keeps rank j while the running weight *before* it is below p * total, so rank 1 always stays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trivium.sampling.candidates import nth_greatest
from trivium.sampling.softmax import running_total, scale, weights_of

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams
    from trivium.sampling.candidates import Candidates
    from trivium.sampling.softmax import Softmax

_DEPTHS = (6.0, 16.0, math.inf)
"""How far below the greatest scaled logit top-p looks, in turn, before it sorts everything."""
_FIRST_TYPICAL = 1024
"""How many tokens typical sorts at first."""


def keep_top_k(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the k first in rank order."""
    if params.top_k < len(candidates):
        candidates.keep_leading(params.top_k, nth_greatest(candidates.logits, params.top_k))


def keep_top_p(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the shortest run of rank order that reaches p of the weight."""
    for soft in candidates.weighings():
        if _is_cut_at_top_p(candidates, params.top_p, soft):
            return


def _is_cut_at_top_p(candidates: Candidates, top_p: float, soft: Softmax) -> bool:
    """Cut, unless `soft` is too vague to say where.

    Every depth yields a whole beginning of rank order, and sums run along it, so the first depth that reaches the
    goal finds the cut that sorting all candidates would find.
    """
    goal, margin = top_p * soft.total, soft.slack * soft.total
    logits = candidates.logits
    for depth in _DEPTHS:
        lowest = candidates.greatest - depth * candidates.temperature
        near = logits[logits >= lowest]
        near.sort()
        ranked = near[::-1]
        running = running_total(soft.weigh(scale(ranked, candidates.greatest, candidates.temperature)))
        if running[-1] < goal:
            continue
        count = int(np.count_nonzero(running < goal)) + 1
        if margin and np.abs(running[max(count - 2, 0) : count] - goal).min() <= margin:
            return False
        candidates.keep_leading(count, float(ranked[count - 1]))
        return True
    return not margin


def keep_min_p(candidates: Candidates, params: SamplingParams) -> None:
    """Keep tokens that weigh at least p times the most likely one, whose weight is 1."""
    soft = next(candidates.weighings())
    places = np.flatnonzero(soft.weights >= params.min_p * (1.0 - soft.slack))
    if soft.slack:
        places = places[weights_of(soft.scaled[places]) >= params.min_p]
    candidates.keep(places)


def keep_typical(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the tokens whose surprise is nearest to the expected surprise, until they reach p of the weight.

    Source: Meister et al. 2022, "Locally typical sampling", section 3.
    """
    soft = candidates.softmax
    log_probs = soft.scaled - math.log(soft.total)
    terms = np.multiply(soft.weights / soft.total, log_probs, out=np.zeros_like(log_probs), where=soft.weights > 0)
    distance = np.abs(log_probs - running_total(terms)[-1])
    goal = params.typical_p * soft.total
    size = _FIRST_TYPICAL
    while True:
        # Everything up to a distance is a whole beginning of the order, like the depths above.
        places = np.arange(len(distance))
        if size < len(distance):
            places = np.flatnonzero(distance <= np.partition(distance, size)[size])
        ranked = places[np.argsort(distance[places], kind="stable")]
        running = running_total(soft.weights[ranked])
        if running[-1] >= goal or len(places) == len(distance):
            break
        size *= 8
    count = int(np.count_nonzero(running < goal)) + 1
    candidates.keep(np.sort(ranked[:count]))
