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
from trivium.sampling.softmax import running_total, weights_of

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams
    from trivium.sampling.candidates import Candidates

_DEPTHS = (6.0, 16.0, math.inf)
"""How far below the greatest scaled logit top-p looks, in turn, before it sorts everything."""


def keep_top_k(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the k first in rank order."""
    if params.top_k < len(candidates):
        candidates.keep_leading(params.top_k, nth_greatest(candidates.logits, params.top_k))


def keep_top_p(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the shortest run of rank order that reaches p of the weight.

    Every depth yields a whole beginning of rank order, and sums run along it, so the first depth that reaches the
    goal finds the cut that sorting all candidates would find.
    """
    goal = params.top_p * candidates.softmax.total
    logits = candidates.logits
    for depth in _DEPTHS:
        lowest = candidates.greatest - depth * candidates.temperature
        ranked = np.sort(logits[logits >= lowest])[::-1]
        scaled = (ranked.astype(np.float64) - candidates.greatest) / candidates.temperature
        running = running_total(weights_of(scaled))
        if running[-1] >= goal:
            count = int(np.count_nonzero(running < goal)) + 1
            candidates.keep_leading(count, float(ranked[count - 1]))
            return


def keep_min_p(candidates: Candidates, params: SamplingParams) -> None:
    """Keep tokens that weigh at least p times the most likely one, whose weight is 1."""
    candidates.keep(np.flatnonzero(candidates.softmax.weights >= params.min_p))


def keep_typical(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the tokens whose surprise is nearest to the expected surprise, until they reach p of the weight.

    Source: Meister et al. 2022, "Locally typical sampling", section 3.
    """
    soft = candidates.softmax
    log_probs = soft.scaled - math.log(soft.total)
    terms = np.multiply(soft.weights / soft.total, log_probs, out=np.zeros_like(log_probs), where=soft.weights > 0)
    entropy = -running_total(terms)[-1]
    ranked = np.argsort(np.abs(log_probs + entropy), kind="stable")
    running = running_total(soft.weights[ranked])
    count = int(np.count_nonzero(running < params.typical_p * soft.total)) + 1
    candidates.keep(np.sort(ranked[:count]))
