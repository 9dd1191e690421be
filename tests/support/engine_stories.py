"""What stories of a whole engine are drawn from: requests, sizes and policies; and what to look at in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from trivium.cache.pages import NO_PAGE
from trivium.config.program_share import ProgramShare
from trivium.config.retention import RangeRetention, Retention
from trivium.config.structured import StructuredOutputs
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import CacheEvent
from trivium.schedule.admit import POLICIES
from trivium.schedule.orders import ORDERS
from trivium.schedule.request import Request
from trivium.tiers.disk import DiskTier
from trivium.tiers.host import HostTier

prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
    st.integers(1, 30).map(lambda length: [0] * length),
    st.tuples(st.integers(1, 24), st.lists(st.integers(0, 3), min_size=1, max_size=6)).map(
        lambda parts: [7] * parts[0] + parts[1]
    ),
)
windows = st.just([None]) | st.lists(st.sampled_from([None, None, 1, 3, 7]), min_size=1, max_size=3)
retentions = st.builds(
    Retention, priority=st.sampled_from([0, 35, 60, 100]), duration_s=st.sampled_from([None, 0.5, 20.0])
)
ranges = st.tuples(st.integers(0, 12), st.none() | st.integers(13, 30), retentions).map(
    lambda drawn: RangeRetention(
        start=drawn[0], end=drawn[1], priority=drawn[2].priority, duration_s=drawn[2].duration_s
    )
)
CONSTRAINTS = (
    StructuredOutputs(regex="[a-p]{0,9}"),
    StructuredOutputs(regex="(mnopmnop[a-p]{1,3}){1,9}"),
    StructuredOutputs(regex="p{40}[ao]*"),
    StructuredOutputs(choice=("abcdefghijklmnop", "abba", "pa", "ponmlkjihg")),
)
"""Most force several tokens, some of them in the beginning, some of them in the middle of a stop text."""
asked = st.fixed_dictionaries({
    "n": st.sampled_from([1, 1, 1, 3]),
    "temperature": st.sampled_from([0.0, 1.0]),
    "seed": st.integers(0, 3),
    "max_tokens": st.integers(0, 10) | st.integers(20, 60),
    "min_tokens": st.sampled_from([0, 0, 4]),
    "stop": st.sampled_from([(), (), ("ab", "c"), ("pa", "paa", "o")]),
    "stop_token_ids": st.sampled_from([(), (), (ord("d"), ord("e"))]),
    "logprobs": st.sampled_from([None, 0]),
    "prompt_logprobs": st.sampled_from([None, None, 0]),
    "prompt_logprob_start": st.sampled_from([0, 0, 9]),
    "structured_outputs": st.sampled_from([None, None, None, *CONSTRAINTS]),
})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asks for."""

    prompt: list[int]
    asked: dict[str, Any]
    """Fields of `SamplingParams`."""
    ranges: list[RangeRetention]
    decode: Retention | None
    tenant: str
    cache_salt: str
    priority: int
    deadline_s: float | None
    kills_at: int | None
    program: ProgramShare | None


wishes = st.builds(
    Wish,
    prompt=prompts,
    asked=asked,
    ranges=st.lists(ranges, max_size=2),
    decode=st.none() | retentions,
    tenant=st.sampled_from("ab"),
    cache_salt=st.sampled_from(["", "", "", "salt"]),
    priority=st.integers(-1, 1),
    deadline_s=st.sampled_from([None] * 6 + [0.5, 3.0]),
    kills_at=st.sampled_from([None] * 50 + [-1, 0, 5]),
    program=st.none()
    | st.builds(
        ProgramShare,
        program_id=st.sampled_from("pq"),
        remaining_tokens=st.none() | st.integers(0, 60),
        ends=st.sampled_from([False, False, True]),
    ),
)
sizes = st.fixed_dictionaries({
    "max_num_seqs": st.integers(1, 8),
    "max_num_batched_tokens": st.sampled_from([1, 3, 7, 32, 32]),
    "max_queue": st.sampled_from([2, *[1000] * 5]),
    "max_queue_wait": st.sampled_from([None, None, None, None, 2.0]),
})
policies = st.fixed_dictionaries({
    "order": st.sampled_from(sorted([*ORDERS, "priority", "priority"])),
    "admission": st.sampled_from(["max-utilization", "max-utilization", *sorted(POLICIES)]),
    "aging_s": st.sampled_from([0.0, 3.0, 10.0, 1e6]),
    "fair_share": st.booleans(),
    "tenant_weight": st.sampled_from([(), ("a=3",)]),
    "look_ahead": st.sampled_from([True, True, False]),
    "program_idle_s": st.sampled_from([0.0, 0.5, 1e3]),
    "preemption": st.sampled_from(["recompute", "swap", "auto"]),
    "tpot_target": st.sampled_from([None, None, 0.02]),
    "ttft_target": st.sampled_from([None, None, 0.5]),
})


class Router:
    """Follows KV events."""

    def __init__(self) -> None:
        self.held: dict[str, set[tuple[int | None, str]]] = {}
        """By medium, the pages that are there, as (group, key)."""

    def hear(self, events: Sequence[CacheEvent]) -> None:
        """Take events; each must fit to those before."""
        for event in events:
            pages = {(event.group, key) for key in event.page_keys}
            held = self.held.setdefault(event.medium, set())
            if event.kind == "cleared":
                held.clear()
            elif event.kind == "removed":
                assert pages <= held, "what is removed was not there"
                held -= pages
            else:
                assert event.kind == ("stored" if event.medium == "device" else "tier_moved")
                assert not pages & held, "what is stored was there"
                held |= pages


def held_by_media(loop: EngineLoop) -> dict[str, set[tuple[int | None, str]]]:
    """By medium, the full pages that are there, as (group, key)."""
    nodes = [node for _, nodes in loop._scheduler._cache.index.namespaces() for node in nodes]
    held: dict[str, set[tuple[int | None, str]]] = {
        "device": {
            (group, key.hex())
            for node in nodes
            if node.parent is not None
            for group, pages in enumerate(node.pages)
            for key, page in zip(node.keys, pages, strict=False)
            if page != NO_PAGE
        }
    }
    tier = loop._tiers.worker._tier if loop._tiers is not None else None
    while tier is not None:
        refs = tier._pages if isinstance(tier, HostTier) else tier._homes if isinstance(tier, DiskTier) else ()
        held[tier.name] = {(ref.group, ref.key.hex()) for ref in refs}
        tier = tier._below if isinstance(tier, HostTier) else None
    return held


def user_of(request: Request) -> str:
    """The request that an answer belongs to."""
    return request.request_id.partition("#")[0]


def common_len(left: list[int], right: list[int]) -> int:
    """Tokens with which both begin."""
    pairs = zip(left, right, strict=False)
    return next((idx for idx, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
