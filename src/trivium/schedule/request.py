"""`Request`: one running answer, and the words for its lengths.

::

    0 ........ cached_len .... computed_len ...... target_len ............. limit_len
    | from the cache | computed here | known, not computed yet | may still be generated |

    cached_len <= computed_len <= target_len = len(tokens) <= limit_len

A request with n > 1 is n `Request`s that share a prompt; the later choices wait for the first one's prompt
(`leader`), then find it in the cache.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from trivium.base.ids import FinishReason, PageId, RequestId, TokenId

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One choice of one user request.

    The first block is fixed at arrival; the second belongs to the scheduler, which alone writes it.
    """

    request_id: RequestId
    """Unique per choice: `<user request id>` for choice 0, `<user request id>#k` for choice k."""
    choice: int = 0
    """Index among the answers of one user request; second half of the random key."""
    prompt_len: int
    params: SamplingParams
    """With `seed` and `logprobs_mode` filled in."""
    end_ids: tuple[TokenId, ...] = ()
    """Tokens that end the answer: the model's end tokens unless ignored, and `stop_token_ids`."""
    namespace: Hashable = ()
    """Cache namespace: model, weight generation, adapter generation, KV dtype, rope table, salt."""
    limit_len: int
    """Hard end: prompt_len + max_tokens, at most max_model_len."""
    arrival_s: float = 0.0
    priority: int = 0
    adapter_slot: int = -1
    leader: Request | None = None
    """Choice 0 of the same user request, whose prompt this one waits for."""
    automaton: Any = None
    """What reads the output tokens; the engine's, opaque here."""

    tokens: list[TokenId] = field(default_factory=list)
    """Prompt, then output."""
    state: RequestState = RequestState.WAITING
    cached_len: int = 0
    """Tokens taken from the cache at the first admission; what the user is told."""
    computed_len: int = 0
    """Tokens whose KV is present in `pages`."""
    pages: tuple[list[PageId], ...] = ()
    """Per KV group, position-aligned pages; what the executor reads."""
    tree_lock: Any = None
    """The locked path in the radix tree, or `None`."""
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None

    @property
    def target_len(self) -> int:
        """Number of known tokens."""
        return len(self.tokens)

    @property
    def output_len(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def first_scored_row(self) -> int | None:
        """First position whose logits row is wanted for prompt logprobs, or `None`.

        Row p scores the token at p + 1, so a logprob for position s needs row s - 1; position 0 has none.
        """
        if self.params.prompt_logprobs is None:
            return None
        return max(self.params.prompt_logprob_start - 1, 0)
