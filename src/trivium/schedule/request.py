"""`Request`: one running answer, and the words for its lengths.

::

    0 ........ cached_len .... computed_len ...... target_len ............. limit_len
    | from the cache | computed here | known, not computed yet | may still be generated |

    cached_len <= computed_len <= target_len = len(tokens) <= limit_len

What is known when it starts it *prefills*; from then on it *decodes*: one token a step, or more where its grammar has
forced several.

A request with n > 1 is n `Request`s that share a prompt; the look-ahead lets the later ones wait for the first one's
prompt, which they then find in the cache.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import InternalError
from trivium.base.ids import FinishReason, PageId, RequestId, TokenId
from trivium.schedule.timeline import Timeline

if TYPE_CHECKING:
    from trivium.cache.claims import Claim
    from trivium.cache.kv_cache import Holding
    from trivium.cache.retain import RetentionPlan
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.schedule.below import Approach
    from trivium.schedule.programs import OpenProgram
    from trivium.schedule.recorder import Wait
    from trivium.schedule.step import Int32Array


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
    """Smaller starts first, where the order looks at it."""
    tenant: str = ""
    """Who asks: the name of an API key, or the `user` of the request; shares are fair between tenants where asked."""
    share: ProgramShare | None = None
    """The program to which it belongs, if it does."""
    adapter: Any = None
    """The engine's, opaque here but for its identity; `None`: the base alone."""
    adapter_slot: int = -1
    """Where its adapter is while it runs; -1 without one."""
    retention: RetentionPlan | None = None
    """Priorities of its KV under `--eviction priority`, when it asks for any."""
    automaton: Any = None
    """What reads the output tokens; the engine's, opaque here."""
    num_delivered: int = 0
    """Output tokens that an earlier engine delivered."""

    tokens: list[TokenId] = field(default_factory=list)
    """Prompt, then output."""
    state: RequestState = RequestState.WAITING
    cached_len: int = 0
    """Tokens taken from the cache at the first admission; what the user is told."""
    started_len: int = 0
    """Tokens that were known when it started last: what it computes before it decodes."""
    computed_len: int = 0
    """Tokens whose KV is present in `pages`."""
    pages: tuple[list[PageId], ...] = ()
    """Per KV group, position-aligned pages; what the executor reads."""
    holding: Holding | None = None
    """Pages and place in the prefix index while running, else `None`; `pages` are its lists."""
    num_preemptions: int = 0
    num_scored: int = 0
    """Prompt rows whose logits were already delivered for prompt logprobs; not run again after a preemption."""
    end_len: int = 0
    """Number of tokens with which the request ends at the latest: `limit_len`, or what the KV pool holds of it."""
    program: OpenProgram | None = None
    """That of `share`, while the request is open."""
    program_left: int = 0
    """Tokens that its program is expected to need after it, as it was known at arrival."""
    sequence: int = 0
    """Order of arrival at the scheduler; kept over preemptions."""
    seat: int = -1
    """Row of the page tables while running."""
    queued_s: float = 0.0
    """When it was queued first."""
    held_by: Request | None = None
    """While waiting: the request that computes a prefix which this one shares."""
    array: Int32Array | None = None
    """While waiting: its tokens once more, to be compared with others'."""
    finish_reason: FinishReason | None = None
    approach: Approach | None = None
    """While it waits or starts: its dealings with the tiers below, kept by `below`."""
    timeline: Timeline = field(default_factory=Timeline)
    """What happened to it, written by `recorder`."""
    wait: Wait | None = None
    """Since when, and for what, it waits; `None` while it does not."""

    @property
    def target_len(self) -> int:
        """Number of known tokens."""
        return len(self.tokens)

    @property
    def left_len(self) -> int:
        """Number of known tokens whose KV is still to be computed."""
        return len(self.tokens) - self.computed_len

    @property
    def is_prefilling(self) -> bool:
        """Whether it runs, and more than one token of what was known when it started is still to be computed."""
        return self.computed_len < self.started_len and self.left_len > 1

    @property
    def is_ready(self) -> bool:
        """Whether the request waits for nothing but room and its turn."""
        return self.state is RequestState.WAITING and self.held_by is None

    @property
    def has_begun(self) -> bool:
        """Whether it has run, or an earlier engine has delivered some of its answer."""
        return self.state is not RequestState.WAITING or self.num_preemptions > 0 or self.num_delivered > 0

    @property
    def claim(self) -> Claim | None:
        """What claims its path in the prefix cache, if anything does."""
        return None if self.program is None else self.program.claim

    @property
    def output_len(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def held(self) -> Holding:
        """The holding of a running request.

        Raises:
            InternalError: The request does not run.
        """
        if self.holding is None:
            raise InternalError(f"{self.request_id} is {self.state.value} and holds no pages")
        return self.holding

    def known_array(self) -> Int32Array:
        """Return the known tokens as an array [target_len] of int32, kept until the request starts."""
        if self.array is None or len(self.array) != len(self.tokens):
            self.array = np.array(self.tokens, np.int32)
        return self.array

    @property
    def need_len(self) -> int:
        """KV length that must fit before the request starts: its known tokens and, if it goes on, the next one."""
        return max(self.target_len, min(self.target_len + 1, self.end_len - 1))

    @property
    def first_scored_row(self) -> int | None:
        """First position whose logits row is wanted for prompt logprobs, or `None`.

        Row p scores the token at p + 1, so a logprob for position s needs row s - 1; position 0 has none. Only
        choice 0 scores the prompt.
        """
        if self.params.prompt_logprobs is None or self.choice != 0:
            return None
        return max(self.params.prompt_logprob_start - 1, 0)

    @property
    def next_scored_row(self) -> int | None:
        """First position whose row is still to be scored, or `None` when all are, or none was wanted."""
        first = self.first_scored_row
        if first is None or first + self.num_scored >= self.prompt_len - 1:
            return None
        return first + self.num_scored
