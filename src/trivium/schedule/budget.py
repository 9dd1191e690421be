"""How many tokens of a step are for prefills: as many as are allowed, or as many as keep the targets.

A step's time is taken to be ``a + b * decoding requests + c * prefill tokens``; the three are learned online by
recursive least squares, old steps fading. From it, while requests decode::

    tokens for prefills  =  (tpot target - time of the decodes) / c          running streams keep their pace
                      max   what the prefill in front needs to meet its ttft target, given the time it has waited
                      max   FEWEST, so that prompts go on whatever the targets
                      min   max_num_batched_tokens

Without targets, and while nobody decodes, a step takes as many as are allowed.

Source: Plackett 1950, recursive least squares.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST = 16
"""Tokens that prefills get in every step."""
_FADE = 0.98
_UNSURE = 1e3
_MARGIN = 0.95
"""Share of the target that is planned for: steps vary."""
_SIZE = 3


class StepCost:
    """Seconds of a step by what is in it, learned from the steps that ran."""

    def __init__(self) -> None:
        self._weights = [1e-3, 0.0, 0.0]
        self._spread = [[_UNSURE if row == column else 0.0 for column in range(_SIZE)] for row in range(_SIZE)]

    def learn(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take a step that ran.

        Cost: constant, some tens of multiplications.
        """
        x = _features(num_decodes, num_prefill_tokens)
        reached = [sum(row[idx] * x[idx] for idx in range(_SIZE)) for row in self._spread]
        gain = _FADE + sum(x[idx] * reached[idx] for idx in range(_SIZE))
        miss = seconds - sum(self._weights[idx] * x[idx] for idx in range(_SIZE))
        for row in range(_SIZE):
            self._weights[row] += reached[row] / gain * miss
            for column in range(_SIZE):
                faded = (self._spread[row][column] - reached[row] * reached[column] / gain) / _FADE
                self._spread[row][column] = max(min(faded, _UNSURE), -_UNSURE)

    def seconds(self, num_decodes: int, num_prefill_tokens: int) -> float:
        """Return the expected seconds of a step, at least 0."""
        x = _features(num_decodes, num_prefill_tokens)
        return max(sum(self._weights[idx] * x[idx] for idx in range(_SIZE)), 0.0)

    @property
    def per_token_s(self) -> float:
        """Expected seconds of one more prefill token; greater than 0."""
        return max(self._weights[2] / _UNIT, 1e-9)


_UNIT = 100.0
"""Tokens in which prefills and decodes are counted, so that the features are of one size."""


def _features(num_decodes: int, num_prefill_tokens: int) -> tuple[float, float, float]:
    return 1.0, num_decodes / _UNIT, num_prefill_tokens / _UNIT


@dataclass(frozen=True, slots=True)
class Front:
    """The prefill in front: what is left of it, and how long it has waited for its first token."""

    num_tokens: int
    waited_s: float


class TokenBudget:
    """Tokens of a step for prefills."""

    def __init__(self, most: int, *, tpot_target_s: float | None, ttft_target_s: float | None) -> None:
        """Take over the targets.

        Args:
            most: Most tokens in one step, decodes included.
            tpot_target_s: Seconds between two tokens of a running stream; `None` is no target.
            ttft_target_s: Seconds from arrival to the first token; `None` is no target.
        """
        self._most = most
        self._tpot_s = tpot_target_s
        self._ttft_s = ttft_target_s
        self.cost = StepCost()

    @property
    def is_adaptive(self) -> bool:
        """Whether there is a target, so that steps must be learned from."""
        return self._tpot_s is not None

    def for_prefills(self, num_decodes: int, front: Front | None) -> int:
        """Return how many tokens prefills may have beside `num_decodes` decoding requests."""
        if self._tpot_s is None or num_decodes == 0:
            return self._most
        left_s = _MARGIN * self._tpot_s - self.cost.seconds(num_decodes, 0)
        tokens = max(int(left_s / self.cost.per_token_s), FEWEST)
        if self._ttft_s is not None and front is not None:
            tokens = max(tokens, self._to_be_in_time(num_decodes, front, self._ttft_s))
        return min(tokens, self._most)

    def _to_be_in_time(self, num_decodes: int, front: Front, target_s: float) -> int:
        """Return the chunk with which the prefill in front meets its target, or all when none does."""
        steps_s = _MARGIN * target_s - front.waited_s - front.num_tokens * self.cost.per_token_s
        if steps_s <= 0.0:
            return self._most
        return int(front.num_tokens * self.cost.seconds(num_decodes, 0) / steps_s) + 1
