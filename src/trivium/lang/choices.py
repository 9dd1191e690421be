"""How `select` chooses: four measures over the logprobs of each choice's tokens.

A choice's tokens are those behind the last token boundary that the prompt shares with the prompt followed by any of
the choices. Where a choice merges with the prompt's end into one token, all choices are scored from before that token,
so that their probabilities are of the same event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import InvalidParameterError

TokenLogprob = tuple[float | None, int, str | None]
"""Logprob, token id, text; the very first token of a sequence has no logprob."""
Logprobs = list[list[TokenLogprob]]
"""Per choice, one entry per token."""


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What was chosen, and why."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """A measure of choices; subclass it for one of your own."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the choices are also scored without the prompt."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Choose.

        Args:
            choices: The texts.
            normalized_prompt_logprobs: Per choice, the mean logprob of its tokens.
            input_token_logprobs: Per choice, those of its tokens.
            output_token_logprobs: Per choice, nothing: choices are scored, not generated.
            unconditional_token_logprobs: Per choice, those of its tokens without the prompt, when they are required.
        """


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The choice with the highest mean logprob per token; favours long choices of predictable tokens."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Choose."""
        best = _first_best(normalized_prompt_logprobs)
        return ChoicesDecision(
            choices[best], _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        )


class JointProbability(ChoicesSamplingMethod):
    """The choice that the model would most likely write: the highest sum of logprobs."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Choose."""
        sums = [sum(_values(row)) for row in input_token_logprobs]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(choices[_first_best(sums)], meta | {"joint_logprobs": sums})


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token the most likely choices; one that ends earlier goes on with its own mean."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Choose."""
        rows = [_values(row) for row in input_token_logprobs]
        longest = max(map(len, rows))
        matrix = [
            row + [mean] * (longest - len(row)) for row, mean in zip(rows, normalized_prompt_logprobs, strict=True)
        ]
        left = list(range(len(choices)))
        for column in range(longest):
            best = max(matrix[idx][column] for idx in left)
            left = [idx for idx in left if matrix[idx][column] == best]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(choices[left[0]], meta | {"greedy_logprob_matrix": matrix})


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice that the prompt makes most likelier than it is by itself (Brown et al. 2020, section 2.4)."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """They are what is subtracted."""
        return True

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Choose.

        Raises:
            InvalidParameterError: The unconditional logprobs are missing.
        """
        if unconditional_token_logprobs is None:
            raise InvalidParameterError("unconditional_likelihood_normalized needs unconditional_token_logprobs")
        means = [
            _mean_difference(own, alone)
            for own, alone in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        more = {
            "unconditional_token_logprobs": unconditional_token_logprobs,
            "normalized_unconditional_prompt_logprobs": means,
        }
        return ChoicesDecision(choices[_first_best(means)], meta | more)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
joint_probability = JointProbability()

METHODS: Mapping[str, ChoicesSamplingMethod] = {
    "token_length_normalized": token_length_normalized,
    "greedy_token_selection": greedy_token_selection,
    "unconditional_likelihood_normalized": unconditional_likelihood_normalized,
    "joint_probability": joint_probability,
}


def method_of(given: object) -> ChoicesSamplingMethod:
    """Return the measure that is given itself, or by its name.

    Raises:
        InvalidParameterError: There is none of that name, or it cannot be called.
    """
    found: Any = METHODS.get(given) if isinstance(given, str) else given
    if not callable(found):
        raise InvalidParameterError(
            f"choices_method is {given!r}; it must be a method, or one of {', '.join(METHODS)}", param="choices_method"
        )
    method: ChoicesSamplingMethod = found
    return method


def mean_logprob(row: Sequence[TokenLogprob]) -> float:
    """Return the mean over the tokens that have a logprob.

    Raises:
        InvalidParameterError: None has one.
    """
    values = _values(row)
    if not values:
        raise InvalidParameterError(
            "select has nothing to score: a choice is the first token of all; write a text before it", param="choices"
        )
    return sum(values) / len(values)


def _values(row: Sequence[TokenLogprob]) -> list[float]:
    return [logprob for logprob, _, _ in row if logprob is not None]


def _mean_difference(own: Sequence[TokenLogprob], alone: Sequence[TokenLogprob]) -> float:
    """Return the mean of what the prompt adds; a token that has no logprob by itself counts as certain."""
    pairs = zip(own, alone, strict=True)
    terms = [ours[0] - (theirs[0] or 0.0) for ours, theirs in pairs if ours[0] is not None]
    return sum(terms) / len(terms)


def _first_best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _meta(means: list[float], rows: Logprobs, outputs: Logprobs) -> dict[str, Any]:
    return {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": rows,
        "output_token_logprobs": outputs,
    }
