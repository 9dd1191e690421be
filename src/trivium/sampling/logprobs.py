"""Logprobs: of one token, its rank, and the most likely ones beside it.

`raw` is the log-softmax of the model's own float32 logits; `processed` that of the distribution drawn from, where a
token that cannot be drawn has no logprob and is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.ids import TokenId
from trivium.sampling.batch import TokenLogprobs
from trivium.sampling.candidates import leading, nth_greatest

if TYPE_CHECKING:
    from trivium.sampling.candidates import Candidates

IMPOSSIBLE = -9999.0
"""Reported for a token to which the model gives no probability at all: JSON has no infinity."""


def token_logprob(candidates: Candidates, place: int) -> float:
    """Return the log of the probability of the token at `place`, finite and at most 0."""
    soft = candidates.softmax
    value = min(float(soft.scaled[place]) - math.log(soft.total), 0.0)
    return value if math.isfinite(value) else IMPOSSIBLE


def describe_token(candidates: Candidates, place: int, num_alternatives: int) -> TokenLogprobs:
    """Report the token at `place` and the `num_alternatives` most likely tokens.

    Args:
        candidates: The distribution.
        place: Where the token stands among the candidates.
        num_alternatives: Most alternatives to report; fewer when fewer tokens have a probability.
    """
    logits = candidates.logits
    own = logits[place]
    ahead = np.count_nonzero(logits > own) + np.count_nonzero(logits[:place] == own)
    top = _most_likely(candidates, num_alternatives)
    return TokenLogprobs(
        token_id=TokenId(candidates.id_at(place)),
        logprob=token_logprob(candidates, place),
        rank=int(ahead) + 1,
        top_ids=tuple(TokenId(candidates.id_at(p)) for p in top),
        top_logprobs=tuple(token_logprob(candidates, p) for p in top),
    )


def certain(token_id: TokenId, num_alternatives: int) -> TokenLogprobs:
    """Report a token that was the only one that could be drawn."""
    alone = num_alternatives > 0
    return TokenLogprobs(token_id, 0.0, 1, (token_id,) if alone else (), (0.0,) if alone else ())


def _most_likely(candidates: Candidates, count: int) -> list[int]:
    count = min(count, len(candidates))
    if count == 0:
        return []
    logits = candidates.logits
    places = leading(logits, count, nth_greatest(logits, count))
    ranked = places[np.argsort(-logits[places], kind="stable")]
    return [int(place) for place in ranked if logits[place] > -np.inf]
