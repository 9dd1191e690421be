"""What the scheduler decides and hears back, as data: entries of a step, their outcomes, its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from trivium.base.ids import FinishReason, TokenId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trivium.schedule.below import Import
    from trivium.schedule.request import Request
    from trivium.schedule.step import Step
    from trivium.schedule.timeline import PreemptionKind, Tier, WaitReason


class Entry(msgspec.Struct, eq=False):
    """One request's part of a step.

    ::

        tokens run      [start ............................ start + num_tokens)
        wanted rows              [scored_start .. + num_scored)             last   (if draws)
        logit_rows      [first_row ...................................... + num_rows)
    """

    request: Request
    start: int
    """Position of the first token; the request's `computed_len` before the step."""
    num_tokens: int
    first_row: int = 0
    """Index in the step's `logit_rows` of this entry's first wanted row."""
    num_rows: int = 0
    """Wanted rows: the scored ones, then the last row when `draws`."""
    draws: bool = False
    """Whether the last row draws the next token."""
    scored_start: int = 0
    """Position of the first scored row; row p scores the prompt token at p + 1."""
    is_fresh: bool = False
    """Whether the request starts with this step."""

    @property
    def num_scored(self) -> int:
        """Rows that score prompt tokens."""
        return self.num_rows - int(self.draws)


@dataclass(slots=True, eq=False)
class ScheduledStep:
    """A step and whose it is; entries are in the order of the step's requests.

    Valid until the scheduler is asked for the next step, which may be the same record, moved on.
    """

    step: Step
    entries: list[Entry]
    imports: Sequence[Import] = ()
    """Pages to write into the pool before the step is executed."""
    chosen_s: float = 0.0
    """When it was chosen, on the scheduler's clock; of a step that was moved on, when the first of them was."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of an entry."""

    tokens: tuple[TokenId, ...] = ()
    """Accepted new tokens; at least one when the entry draws."""
    finish: FinishReason | None = None
    """Why the request ends with these tokens; `None` goes on, or ends with `LENGTH` at its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Counters since the start, and the state now."""

    num_waiting: int
    num_running: int
    pages_total: int
    pages_used: int
    """Pages in the page tables of running requests."""
    pages_cached: int
    """Pages in the prefix index, used ones included."""
    pages_evictable: int
    pages_free: int
    queried_tokens: int
    """Prompt tokens of the requests that were started."""
    hit_tokens: int
    """Of these, tokens that came from the cache."""
    num_preemptions: int
    num_finished: int
    num_aborted: int
    num_refused: int
    """Arrivals that were turned away."""
    waste: float
    """Share of the used bytes that hold no token (ends of last pages), 0 to 1."""
    pages_evicted: int
    """Pages that cached prefixes gave up to make room."""
    waiting_by_reason: dict[WaitReason, int]
    waited_seconds: dict[WaitReason, float]
    """Seconds by reason, of the waits that have ended."""
    cached_tokens: dict[Tier, int]
    """Prompt tokens found at first starts, by where."""
    preemptions: dict[PreemptionKind, int]
    output_len_mean: float = 0.0
    """Output tokens of the answers that ended lately: what admission expects of the next one."""
    output_len_error: float = 0.0
    """Mean distance in tokens between what was expected of an answer and what it drew."""
