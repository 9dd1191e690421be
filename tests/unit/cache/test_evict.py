"""Eviction policies, each on the same little history, and against a search through everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.base.clock import FakeClock
from trivium.cache.accounting import check
from trivium.cache.evict import ORDERS, EvictionQueue
from trivium.cache.kv_cache import KVCache
from trivium.cache.node import RadixNode
from trivium.cache.retain import Kept, RetentionPlan
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.retention import DEFAULT_PRIORITY, RangeRetention, Retention

PAGE_LEN = 4
SPEC = KVSpec((KVGroup("full", (0,), 8),), PAGE_LEN)


class Rig:
    def __init__(self, eviction: str, num_pages: int = 16) -> None:
        self.clock = FakeClock()
        self.cache = KVCache(SPEC, [num_pages], prefix_cache=True, eviction=eviction, clock=self.clock)

    def run(self, tokens: Sequence[int], *ranges: RangeRetention, decode: Retention | None = None, prompt: int = 99):
        asks = RetentionPlan(ranges, decode, prompt_len=min(prompt, len(tokens)), page_len=PAGE_LEN)
        ids = np.array(tokens, np.int32)
        holding = self.cache.open(ids, (), len(ids), asks if ranges or decode else None)
        self.cache.grow(holding, len(ids))
        self.cache.confirm_copies(holding)
        self.cache.close(holding, ids[holding.locked_len :])
        assert check(self.cache, []) == []

    def free(self, num_pages: int) -> None:
        self.cache.index.evict(0, self.cache.pools[0].num_free + num_pages)
        assert check(self.cache, []) == []

    def held(self, tokens: Sequence[int]) -> int:
        return self.cache.index.match_len(np.array(tokens, np.int32), (), len(tokens))


A, B, C = ([first, *range(10, 21)] for first in (1, 2, 3))
"""Prompts of three pages."""


@pytest.mark.parametrize(
    ("eviction", "order"),
    [
        ("lru", "BAC"),  # by last use: B, then A, then C
        ("lfu", "CBA"),  # found: C never, B once, A twice
        ("slru", "CBA"),  # C was never found; of the others B is the less recent
        ("fifo", "ABC"),  # as computed
        ("priority", "BAC"),  # nobody asked for any: as lru
    ],
)
def test_policies_differ_in_what_goes_first(eviction: str, order: str) -> None:
    rig = Rig(eviction)
    for tokens in (A, B, A, B, A, C):
        rig.run(tokens)
    prompts = {"A": A, "B": B, "C": C}
    gone = ""
    for _ in order:
        rig.free(3)
        gone += "".join(sorted(name for name, tokens in prompts.items() if not rig.held(tokens) and name not in gone))
    assert gone == order


def test_a_parent_has_been_found_as_often_as_all_its_children() -> None:
    rig = Rig("lfu", 32)
    trunk = list(range(8))
    for _ in range(2):
        for last in range(3):
            rig.run([*trunk, 50 + last, *range(60, 67)])
    rig.run(A)
    rig.run(A)
    rig.run(A)
    rig.free(6)
    assert rig.held(trunk) == 8
    rig.free(3)
    assert (rig.held(trunk), rig.held(A)) == (8, 0), "found five times, and A twice"


def test_a_low_priority_goes_before_and_a_high_one_after_the_rest() -> None:
    rig = Rig("priority")
    rig.run(A, RangeRetention(priority=80))
    rig.run(B)
    rig.run(C, RangeRetention(priority=10))
    rig.free(3)
    assert [rig.held(tokens) for tokens in (A, B, C)] == [12, 12, 0]
    rig.free(3)
    assert [rig.held(tokens) for tokens in (A, B, C)] == [12, 0, 0]


def test_a_range_keeps_its_pages_and_what_leads_to_them() -> None:
    rig = Rig("priority")
    rig.run(range(16), RangeRetention(start=5, end=7, priority=90))
    rig.run(A)
    rig.free(2)
    assert (rig.held(range(16)), rig.held(A)) == (8, 12), "[8, 16) is as old as it is"
    rig.free(3)
    assert (rig.held(range(16)), rig.held(A)) == (8, 0)


def test_generated_tokens_have_a_priority_of_their_own() -> None:
    rig = Rig("priority")
    rig.run(range(16), decode=Retention(priority=0), prompt=8)
    rig.run(A, decode=Retention(priority=100), prompt=4)
    rig.free(2)
    assert (rig.held(range(16)), rig.held(A)) == (8, 12)
    rig.free(2)
    assert (rig.held(range(16)), rig.held(A)) == (0, 12)


def test_a_priority_ends_with_its_time() -> None:
    rig = Rig("priority")
    rig.run(A, RangeRetention(priority=90, duration_s=10.0))
    rig.run(B, RangeRetention(priority=5, duration_s=20.0))
    rig.run(C)
    rig.clock.advance(10)
    rig.free(3)
    assert [rig.held(tokens) for tokens in (A, B, C)] == [12, 0, 12]
    rig.free(3)
    assert [rig.held(tokens) for tokens in (A, B, C)] == [0, 0, 12]


def test_who_comes_later_may_lower_and_raise_a_priority() -> None:
    rig = Rig("priority")
    rig.run(A, RangeRetention(priority=90))
    rig.run(B, RangeRetention(priority=50))
    rig.run(A, RangeRetention(priority=20))
    rig.free(3)
    assert [rig.held(tokens) for tokens in (A, B)] == [0, 12]


def test_what_follows_kept_tokens_is_not_kept_itself() -> None:
    rig = Rig("priority")
    rig.run(range(6), RangeRetention(priority=90))
    rig.run(range(14))
    rig.run(A)
    rig.free(3)
    assert (rig.held(range(14)), rig.held(A)) == (4, 12)


class Follower:
    """What a queue should do, without a heap."""

    def __init__(self) -> None:
        self.members: list[RadixNode] = []

    def first(self, eviction: str, clock: FakeClock) -> list[RadixNode]:
        order = ORDERS[eviction](clock)
        return [node for node in self.members if order(node) == min(map(order, self.members))]


@given(st.data(), st.sampled_from(list(ORDERS)))
def test_the_queue_gives_the_smallest_key_of_now(data: st.DataObject, eviction: str) -> None:
    clock, follower = FakeClock(), Follower()
    queue = EvictionQueue(ORDERS[eviction](clock))
    nodes = [RadixNode(b"", 0, (), None) for _ in range(6)]
    for now in range(1, data.draw(st.integers(1, 30))):
        node = data.draw(st.sampled_from(nodes))
        action = data.draw(st.sampled_from(["add", "use", "lower", "pop"]))
        if action == "use":
            node.last_use = now
            node.hits += data.draw(st.booleans())
        elif action == "lower":
            node.kept = Kept(data.draw(st.integers(0, 100)), None)
            if node in queue:
                queue.add(node)
        elif action == "add":
            node.born = node.born or now
            queue.add(node)
            if node not in follower.members:
                follower.members.append(node)
        else:
            expected = follower.first(eviction, clock)
            found = queue.pop()
            assert found in expected if expected else found is None
            if found is not None:
                follower.members.remove(found)
        assert [node in queue for node in nodes] == [node in follower.members for node in nodes]


plans = st.lists(
    st.builds(
        lambda start, count, priority: RangeRetention(start=start, end=start + count, priority=priority),
        st.integers(0, 20), st.integers(1, 12), st.integers(0, 100),
    ),
    max_size=4,
)  # fmt: skip


@given(plans, st.none() | st.integers(0, 100), st.integers(1, 24), st.integers(1, 5))
def test_a_page_has_the_highest_priority_of_its_tokens(
    ranges: list[RangeRetention], decode: int | None, prompt_len: int, page_len: int
) -> None:
    after = None if decode is None else Retention(priority=decode)
    plan = RetentionPlan(ranges, after, prompt_len=prompt_len, page_len=page_len)
    for page in range(12):
        tokens = range(page * page_len, (page + 1) * page_len)
        asked = [
            each.priority
            for each in ranges
            for token in tokens
            if token < prompt_len and each.start <= token < (each.end or 0)
        ]
        asked += [decode] if decode is not None and tokens[-1] >= prompt_len else []
        kept = plan.kept(page, 0.0)
        assert (kept.priority if kept else None) == (max(asked) if asked else None)
    edges = plan.edges(0, 12)
    changes = [page for page in range(1, 12) if plan.kept(page, 0.0) != plan.kept(page - 1, 0.0)]
    assert set(changes) <= set(edges)


def test_the_default_is_tensorrts() -> None:
    assert Retention().priority == DEFAULT_PRIORITY == 35
