"""What client and engine say to each other: msgspec structs, one tagged union per direction.

Replay contract: every message of the engine carries its epoch (which incarnation of the process speaks) and every
`Delta` the index of its first output token. A client drops what comes from another epoch and what it has already seen.
A `Submit` that says what was delivered so far suffices to continue a request elsewhere.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trivium.config.program_share import ProgramShare
from trivium.config.sampling import SamplingParams
from trivium.grammar.parts import OutputPart
from trivium.sampling.batch import TokenLogprobs
from trivium.schedule.timeline import Timeline, WaitReason


class Delivered(msgspec.Struct, kw_only=True):
    """What a client has been told of one choice: enough to continue it elsewhere."""

    token_ids: list[int] = []
    cumulative_logprob: float = 0.0
    """That of the last delta."""
    cached_len: int = 0
    """Prompt tokens that the choice found in the cache when it first started, once it has tokens."""
    is_finished: bool = False


class Submit(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run a request; its `params.num_draws` choices answer separately."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    """With `seed` filled in by the client, so that the request can be replayed."""
    delivered: list[Delivered] = []
    """Per choice, what an earlier engine had delivered (replay); empty for a new request."""
    was_accepted: bool = False
    """Whether an earlier engine had taken it, so that a full queue does not refuse it."""
    waited_s: float = 0.0
    """Seconds since the request arrived, at its client."""
    adapter: str | None = None
    """Name of the adapter to answer with."""
    adapter_generation: int = 0
    """Which loading of it: requests that are replayed go on with the one that they began with."""
    weight_generation: int = 0
    cache_salt: str = ""
    priority: int = 0
    """Smaller starts first; other than 0 only where the order is by priority."""
    tenant: str = ""
    """Who asks, for fair shares: the name of an API key, or the request's `user`."""
    program: ProgramShare | None = None
    """The program to which it belongs, if it does."""
    deadline_s: float | None = None
    """Seconds from arrival after which the request is ended with an error."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests; unknown ids are ignored."""

    request_ids: list[str]


class Call(msgspec.Struct, frozen=True, tag=True):
    """Ask for something that is not a request: statistics, a check, a flush."""

    call_id: int
    name: str
    """One of those that `EngineLoop.call` knows."""
    arguments: dict[str, object] = {}
    """JSON-like values by name."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Take nothing new, finish what is open, then exit."""


ToEngine = Submit | Abort | Call | Drain


class Delta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """News of one choice of one request; packed without field names, since there is one per token."""

    request_id: str
    choice: int
    first_token: int
    """Index among the output tokens of `token_ids[0]`."""
    token_ids: list[int]
    text: str
    """Text that became certain with these tokens; never the beginning of a stop string, never half a character."""
    parts: list[OutputPart] | None = None
    """What of the text's reasoning, content and calls became certain, where `chat_output` asks for it. Joined over the
    deltas of an answer they are the same however it is cut into deltas."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per token of `token_ids`, when asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """In the first delta of choice 0 when asked for: one entry per prompt position from `prompt_logprob_start`; the
    entry of position 0 is `None`."""
    cached_len: int = 0
    finish_reason: str | None = None
    """Set in the last delta: `stop`, `length`, `abort` or `error`."""
    stop_reason: int | str | None = None
    """Token id or text that ended the answer; `None` for an end token of the model, or for length."""
    cumulative_logprob: float = 0.0
    """Sum of raw logprobs of the output so far, when `best_of` needs it."""
    error: str | None = None
    error_code: str | None = None
    """`code` of an error in `base.errors`."""
    retry_after_s: float | None = None
    """Seconds after which trying again makes sense, where the error says so."""


class AnswerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is, or was when it ended; what its client is told of it is in `Delta`."""

    request_id: str
    choice: int
    state: str
    """`waiting`, `running` or `finished`."""
    waits_for: WaitReason | None
    arrival_s: float
    """On the engine's clock, which is the machine's monotonic one."""
    prompt_len: int
    cached_len: int
    """Prompt tokens found in the cache at the first start."""
    computed_len: int
    output_len: int
    max_tokens: int
    """Most tokens that may be generated."""
    finish_reason: str | None
    waited: dict[WaitReason, float]
    """Seconds by reason, a wait under way included."""
    timeline: Timeline
    """Empty where only a short report was asked for."""


class Deltas(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Everything that one step produced."""

    epoch: int
    deltas: list[Delta]
    ended: list[AnswerReport] = []
    """Answers that ended since the last message, aborted ones included; known before their last delta is read."""


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the prefix cache has come to hold, or has lost; keys are those of `cache.page_keys`, in hex."""

    kind: Literal["stored", "removed", "tier_moved", "cleared"]
    """`tier_moved`: a tier below has a copy; `removed`: the medium has it no more; `cleared`: the medium holds nothing
    any more, but what is told after."""
    time_s: float
    """Unix time."""
    medium: str
    """`device` (KV memory), `host` or `disk`."""
    group: int | None = None
    """KV group; none where all are meant."""
    namespace: str | None = None
    """Hash of the namespace, as `GET /v1/cache` shows it."""
    parent_key: str | None = None
    """Key of the page before the first."""
    page_keys: list[str] = []
    """Of consecutive pages where they are stored, else of pages in any order."""
    token_ids: list[int] = []
    """[len(page_keys) * page_len] where they are stored, else none."""
    page_len: int = 0


class CacheNews(msgspec.Struct, frozen=True, tag=True):
    """What happened to the prefix cache since the last message of this kind; sent where `kv_events` asks for it."""

    epoch: int
    events: list[CacheEvent]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request never started."""

    epoch: int
    request_id: str
    kind: str
    """Class name in `base.errors`."""
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `Call`: JSON-like values only."""

    epoch: int
    call_id: int
    result: dict[str, object]
    error: str | None = None


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Progress before ready."""

    epoch: int
    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Weights are loaded and the loop runs."""

    epoch: int
    info: dict[str, object]


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The process is alive; sent at least once a second, and at once when the loop runs out of work."""

    epoch: int
    loop_age_s: float
    """Seconds since the loop last began an iteration."""
    stats: dict[str, object] | None = None
    """Counters of `engine.stats`; `None` while they are what the last heartbeat said."""


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The engine ends because of this error (bad checkpoint, no memory)."""

    epoch: int
    kind: str
    message: str


FromEngine = Deltas | CacheNews | Refused | Reply | Loading | Ready | Heartbeat | Fatal
