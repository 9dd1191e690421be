"""What the sampler is asked and what it answers: the seam between scheduler, executors and sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trivium.base.ids import TokenId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.config.sampling import SamplingParams


@dataclass(slots=True, kw_only=True)
class SampleRow:
    """One wanted logits row: draw the next token, or score a known one.

    A record that comes again in the next step may have another `position`, other `held_back_ids`, and more `tokens`;
    all else is as it was.
    """

    params: SamplingParams
    """With `seed` and `logprobs_mode` filled in."""
    choice: int
    """Second half of the random key."""
    position: int
    """Index in the request of the token being drawn or scored; first half of the random counter."""
    tokens: Sequence[TokenId]
    """The request's known tokens, prompt then output; not to be mutated. Only `[:position]` precedes the draw."""
    prompt_len: int
    held_back_ids: Sequence[TokenId] = ()
    """End tokens that `min_tokens` forbids at this position."""
    bad_word_ids: Sequence[Sequence[TokenId]] = ()
    """Token spellings of `bad_words`."""
    target: TokenId | None = None
    """Token to score instead of drawing one (prompt logprobs); such rows report raw logprobs only."""
    num_logprobs: int | None = None
    """Alternatives to report besides the token's own logprob; `None` reports nothing."""


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Logprob of one token and of the most likely ones at its position."""

    token_id: TokenId
    logprob: float
    """Finite, at most 0."""
    rank: int
    """1 for the most likely token; equal logits rank by ascending id."""
    top_ids: tuple[TokenId, ...]
    top_logprobs: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class Sampled:
    """The sampler's answer, one entry per wanted row, in their order."""

    token_ids: NDArray[np.int32]
    """[R] drawn tokens; the target's id for scored rows; -1 for rows in `errors`. Valid until the next answer of the
    executor, as is `chosen_logprobs`."""
    logprobs: list[TokenLogprobs | None]
    """[R] `None` where none were wanted."""
    chosen_logprobs: NDArray[np.float64] | None = None
    """[R] raw logprob of each drawn token when some row wants it (best_of), else `None`; 0 for rows that do not."""
    errors: dict[int, str] = field(default_factory=dict)
    """Row to what is wrong with it (a NaN logit, nothing allowed); such a request fails alone."""

    def result(self) -> Sampled:
        """Return itself: these draws are there."""
        return self


class Draws(Protocol):
    """The draws of a step: there already (`Sampled`), or promised by a device that runs by itself."""

    def result(self) -> Sampled:
        """Wait until the step has ended and return what it drew; may be asked again.

        Raises:
            Exception: The step failed; the KV of its tokens is undefined.
        """
        ...
