"""What happened to a request, and when: starts, prompt chunks, preemptions, the first token, the end.

::

    arrival ──waits── start ─chunk─chunk─ first token ──── decodes ──── preempted ──waits── start ─chunk─ ... ─── end
       0       ▲        │                                   nothing is written per token
               └ seconds by reason, `WaitReason`, of which exactly one holds at each moment

A record of plain values, which travels to the server as it is. All moments are seconds since the request's arrival.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MOST_CHUNKS = 256
"""Chunks that a timeline tells apart; later ones are added to the last."""
MOST_STARTS = 32
"""Starts, and preemptions, that a timeline tells apart; later ones are added to the last."""


class WaitReason(StrEnum):
    """Why a waiting request has not started."""

    STEP = "step"
    SEAT = "seat"
    BUDGET = "budget"
    PAGES = "pages"
    ADAPTER = "adapter"
    ORDER = "order"
    PREFIX = "prefix"
    BATCH = "batch"
    TIER = "tier"
    ENGINE = "engine"


WAIT_MEANINGS: dict[WaitReason, str] = {
    WaitReason.STEP: "the step under way when it came had to end",
    WaitReason.SEAT: "as many answers as may (max_num_seqs) were running",
    WaitReason.BUDGET: "the step's tokens or logits rows were given to others",
    WaitReason.PAGES: "its KV did not fit beside that of running answers",
    WaitReason.ADAPTER: "as many adapters as may (max_loras) were in use by running answers",
    WaitReason.ORDER: "an older request that did not fit had waited so long (aging_s) that nobody may overtake it",
    WaitReason.PREFIX: "a prefix that it shares was being computed for another request",
    WaitReason.BATCH: "a batch was running (admission static-batch), and nobody starts before it has ended",
    WaitReason.TIER: "its prefix was being read from a lower tier of the cache",
    WaitReason.ENGINE: "an engine that died had it, until this one went on with it; its timeline begins anew here",
}
"""What the reasons mean, for documents and messages."""


class Tier(StrEnum):
    """Where a cached prefix was found."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class PreemptionKind(StrEnum):
    """How a preempted request's KV comes back."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Start(msgspec.Struct, kw_only=True):
    """A waiting request began to run, or to run again."""

    at_s: float
    waited: dict[WaitReason, float]
    """Seconds by reason since the arrival, or since the preemption."""
    cached: dict[Tier, int]
    """Tokens whose KV was found, by where; of nothing else than its prompt at the first start."""


class Chunk(msgspec.Struct, kw_only=True):
    """A step ran some of the known tokens, more than the one of a decode: prompt, or what a preemption lost."""

    at_s: float
    """When the step was chosen."""
    seconds: float
    """Until its outcome was recorded."""
    start: int
    """Position of the first token."""
    num_tokens: int


class Preemption(msgspec.Struct, kw_only=True):
    """A running request had to make room."""

    at_s: float
    kind: PreemptionKind
    num_tokens: int
    """Tokens whose KV it gave up."""


class Timeline(msgspec.Struct, kw_only=True):
    """The life of one answer so far.

    Invariants:
        Moments of a list do not decrease.
        The chunks' tokens are the prompt's without the cached ones, and those that preemptions made run again.
    """

    starts: list[Start] = []
    chunks: list[Chunk] = []
    preemptions: list[Preemption] = []
    num_preemptions: int = 0
    unstarted: dict[WaitReason, float] = {}
    """Seconds by reason of the last wait, if the request ended without another start."""
    first_token_s: float | None = None
    finished_s: float | None = None

    def add_start(self, start: Start) -> None:
        """Write a start down."""
        if len(self.starts) < MOST_STARTS:
            self.starts.append(start)
            return
        last = self.starts[-1]
        for reason, seconds in start.waited.items():
            last.waited[reason] = last.waited.get(reason, 0.0) + seconds

    def add_chunk(self, chunk: Chunk) -> None:
        """Write a chunk down."""
        if len(self.chunks) < MOST_CHUNKS:
            self.chunks.append(chunk)
            return
        last = self.chunks[-1]
        last.seconds += chunk.seconds
        last.num_tokens += chunk.num_tokens

    def add_preemption(self, preemption: Preemption) -> None:
        """Write a preemption down."""
        self.num_preemptions += 1
        if len(self.preemptions) < MOST_STARTS:
            self.preemptions.append(preemption)
        else:
            self.preemptions[-1].num_tokens += preemption.num_tokens

    @property
    def waited(self) -> dict[WaitReason, float]:
        """Seconds by reason, of all waits that have ended."""
        total = dict(self.unstarted)
        for start in self.starts:
            for reason, seconds in start.waited.items():
                total[reason] = total.get(reason, 0.0) + seconds
        return total
