"""The prefix cache against a memory that remembers, per slot, which tokens led to it.

`Memory` is what a KV store would hold: for every page and slot the whole token path whose KV was written there. A
match is right when every slot that it offers holds exactly the asked-for path, and longest when no other pages could
serve one token more.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from trivium.base.clock import FakeClock
from trivium.base.ids import PageId
from trivium.cache.accounting import check
from trivium.cache.claims import Claim
from trivium.cache.evict import ORDERS
from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.node import RadixNode
from trivium.cache.page_keys import page_keys, root_key
from trivium.cache.page_runs import PageRun
from trivium.cache.pages import NO_PAGE
from trivium.cache.radix import RadixTree
from trivium.cache.retain import RetentionPlan
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.retention import RangeRetention, Retention

Path = tuple[Hashable, tuple[int, ...]]

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14) | st.lists(st.just(0), min_size=1, max_size=20)
ranges = st.builds(
    lambda start, count, **rest: RangeRetention(start=start, end=None if count is None else start + count, **rest),
    st.integers(0, 12),
    st.none() | st.integers(1, 12),
    priority=st.integers(0, 100),
    duration_s=st.none() | st.integers(1, 4),
)
windows = st.lists(st.sampled_from([None, 1, 2, 5, 9]), min_size=1, max_size=3)


class Running:
    """A request: what it has computed, and where."""

    def __init__(self, tokens: list[int], namespace: Hashable, holding: Holding) -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.holding = holding
        self.computed_len = holding.cached_len


class Follower:
    """Knows the cache from what it is told alone."""

    def __init__(self) -> None:
        self.known: dict[bytes, Path] = {}

    def stored(self, run: PageRun) -> None:
        page_len = len(run.tokens) // len(run.keys)
        assert len(run.tokens) == page_len * len(run.keys)
        assert all(len(pages) == len(run.keys) for pages in run.pages)
        before = self.known[run.before][1] if run.first else ()
        assert run.first or run.before == root_key(run.namespace)
        for idx, key in enumerate(run.keys):
            before = (*before, *run.tokens[idx * page_len : (idx + 1) * page_len].tolist())
            # Known already where a window had lost the page, and somebody has computed it again.
            assert self.known.setdefault(key, (run.namespace, before)) == (run.namespace, before)

    def removed(self, run: PageRun) -> None:
        page_len = len(run.tokens) // len(run.keys)
        for idx, key in enumerate(run.keys):
            namespace, tokens = self.known.pop(key)
            assert namespace == run.namespace
            assert list(tokens[-page_len:]) == run.tokens[idx * page_len : (idx + 1) * page_len].tolist()


def full_prefixes(tree: RadixTree, page_len: int) -> dict[bytes, Path]:
    """Every run of full pages from a root, by the key of its last page."""
    found: dict[bytes, Path] = {}

    def visit(node: RadixNode, namespace: Hashable, before: tuple[int, ...]) -> None:
        tokens = (*before, *node.tokens.tolist())
        keys = page_keys(root_key(namespace), np.array(tokens, np.int32).tobytes(), page_len)
        found.update({key: (namespace, tokens[: (idx + 1) * page_len]) for idx, key in enumerate(keys)})
        for child in node.children.values():
            visit(child, namespace, tokens)

    for namespace, root in tree._roots.items():
        visit(root, namespace, ())
    return found


class CacheStory(RuleBasedStateMachine):
    """Requests open, compute in chunks, and close, in a pool that is too small for all."""

    running = Bundle("running")

    @initialize(
        windows=windows,
        page_len=st.sampled_from([1, 3, 4]),
        num_pages=st.integers(14, 24),
        eviction=st.sampled_from(list(ORDERS)),
    )
    def make(self, windows: list[int | None], page_len: int, num_pages: int, eviction: str) -> None:
        groups = [KVGroup("window" if w else "full", (i,), 8, w) for i, w in enumerate(windows)]
        self.spec = KVSpec(tuple(groups), page_len)
        count = num_pages if page_len > 1 else 2 * num_pages
        self.clock = FakeClock()
        self.cache = KVCache(self.spec, [count] * len(groups), prefix_cache=True, eviction=eviction, clock=self.clock)
        self.follower = Follower()
        self.cache.index.listen(self.follower)
        self.memory: list[dict[tuple[PageId, int], Path]] = [{} for _ in groups]
        self.offered: set[tuple[int, PageId, int]] = set()
        """(group, page, slot) that was entered into the index since it was written."""
        self.live: list[Running] = []
        self.claims = (Claim(), Claim())

    @rule(
        target=running,
        tokens=prompts,
        namespace=st.sampled_from(["x", "y"]),
        spare=st.integers(0, 3),
        ranges=st.lists(ranges, max_size=2),
        decode=st.none() | st.builds(Retention, priority=st.integers(0, 100)),
    )
    def open(
        self,
        tokens: list[int],
        namespace: str,
        spare: int,
        ranges: list[RangeRetention],
        decode: Retention | None,
    ) -> Running:
        longest = max(0, len(tokens) - spare)
        match = self.cache.index.match(np.array(tokens, np.int32), namespace, longest)
        self.check_match(match.pages, tokens, namespace, match.length)
        best = self.longest_by_brute_force(tokens, namespace, longest)
        if any(group.window for group in self.spec.groups):
            assert match.length <= best
        else:
            assert match.length == best
        plan = RetentionPlan(ranges, decode, prompt_len=len(tokens), page_len=self.spec.page_len)
        asks = plan if ranges or decode else None
        holding = self.cache.open(np.array(tokens, np.int32), namespace, longest, asks)
        assert holding.cached_len == match.length
        request = Running(tokens, namespace, holding)
        self.live.append(request)
        self.copy_tail(request)
        return request

    def copy_tail(self, request: Running) -> None:
        holding, page_len = request.holding, self.spec.page_len
        if holding.cached_len % page_len == 0:
            return
        if self.cache.longest(holding) <= holding.cached_len:
            self.live.remove(request)
            self.cache.close(holding, None)
            request.computed_len = -1
            return
        self.grow(holding, holding.cached_len + 1)
        for group, source, target in self.cache.copies(holding):
            for slot in range(page_len):
                self.memory[group].pop((target, slot), None)
                self.offered.discard((group, target, slot))
                if (source, slot) in self.memory[group]:
                    self.memory[group][target, slot] = self.memory[group][source, slot]
        self.cache.confirm_copies(holding)

    def grow(self, holding: Holding, length: int) -> None:
        had = len(holding.pages[0])
        before = self.claimed_len()
        self.cache.grow(holding, length)
        if self.claimed_len() < before and not any(group.window for group in self.spec.groups):
            assert not self.is_anything_else_evictable(), "a claimed path was cut while others could go"
        for group, pages in enumerate(holding.pages):
            taken = {(group, page, slot) for page in pages[had:] for slot in range(self.spec.page_len)}
            self.offered -= taken

    def claimed_len(self) -> int:
        """Tokens on the paths that are claimed."""
        ends = {node for claim in self.claims for node in claim.nodes}
        return sum(node.end for node in ends)

    def is_anything_else_evictable(self) -> bool:
        """Whether an unlocked leaf holds a page that nobody uses, and is not claimed."""
        assert isinstance(self.cache.index, RadixTree)
        return any(
            self.cache.pools[0].users(page) == 0
            for node in self.cache.index.nodes()
            if not (node.children or node.locks or node.claims)
            for page in node.pages[0]
        )

    @rule(request=running, count=st.integers(1, 9), more=st.lists(st.integers(0, 1), max_size=3))
    def compute(self, request: Running, count: int, more: list[int]) -> None:
        if request not in self.live:
            return
        request.tokens = request.tokens + more
        end = min(request.computed_len + count, len(request.tokens), self.cache.longest(request.holding))
        if end <= request.computed_len:
            return
        self.grow(request.holding, end)
        self.write(request, end)
        request.computed_len = end

    def write(self, request: Running, end: int) -> None:
        page_len = self.spec.page_len
        for group, pages in enumerate(request.holding.pages):
            for position in range(request.computed_len, end):
                path = (request.namespace, tuple(request.tokens[: position + 1]))
                page, slot = pages[position // page_len], position % page_len
                self.memory[group][page, slot] = path
                self.offered.discard((group, page, slot))

    @rule(request=running)
    def settle(self, request: Running) -> None:
        if request in self.live:
            self.cache.settle(request.holding, self.offer(request))
            self.cache.release_window(request.holding, request.computed_len)

    @rule(request=consumes(running), keep=st.booleans(), whose=st.none() | st.integers(0, 1))
    def close(self, request: Running, keep: bool, whose: int | None) -> None:
        if request in self.live:
            self.live.remove(request)
            claim = None if whose is None else self.claims[whose]
            self.cache.close(request.holding, self.offer(request) if keep else None, claim)
            if keep and not any(group.window for group in self.spec.groups):
                found = self.cache.index.match(
                    np.array(request.tokens, np.int32), request.namespace, request.computed_len
                )
                assert found.length == request.computed_len

    @rule(whose=st.integers(0, 1))
    def disclaim(self, whose: int) -> None:
        self.cache.index.disclaim(self.claims[whose])
        assert not self.claims[whose].nodes

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        self.cache.index.flush()
        assert all(pool.num_evictable == 0 for pool in self.cache.pools)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        if hasattr(self, "cache"):
            assert check(self.cache, [request.holding for request in self.live]) == []

    @invariant()
    def who_listens_knows_every_full_page(self) -> None:
        if hasattr(self, "cache"):
            assert isinstance(self.cache.index, RadixTree)
            assert self.follower.known == full_prefixes(self.cache.index, self.spec.page_len)

    @invariant()
    def every_request_sees_its_own_past(self) -> None:
        for request in getattr(self, "live", []):
            self.check_match(request.holding.pages, request.tokens, request.namespace, request.computed_len)

    def teardown(self) -> None:
        for request in getattr(self, "live", []):
            self.cache.close(request.holding, self.offer(request))
        if hasattr(self, "cache"):
            assert all(pool.num_available == pool.num_pages for pool in self.cache.pools)
            self.cache.index.flush()
            assert all(pool.num_free == pool.num_pages for pool in self.cache.pools)

    def offer(self, request: Running) -> np.ndarray:
        """Note what is entered into the index, and return its tokens."""
        for group, pages in enumerate(request.holding.pages):
            for position in range(request.computed_len):
                page, slot = divmod(position, self.spec.page_len)
                self.offered.add((group, pages[page], slot))
        return np.array(request.tokens[request.holding.locked_len : request.computed_len], np.int32)

    def first_visible(self, group: int, length: int) -> int:
        window = self.spec.groups[group].window
        return 0 if window is None else max(0, length - window + 1)

    def check_match(self, pages: tuple[list[PageId], ...], tokens: list[int], namespace: Hashable, length: int) -> None:
        for group, table in enumerate(pages):
            for position in range(self.first_visible(group, length), length):
                page = table[position // self.spec.page_len]
                assert page != NO_PAGE
                expected = (namespace, tuple(tokens[: position + 1]))
                assert self.memory[group][page, position % self.spec.page_len] == expected

    def longest_by_brute_force(self, tokens: list[int], namespace: Hashable, longest: int) -> int:
        held = set(self.cache.index.held_pages())
        for length in range(longest, 0, -1):
            if all(self.is_held(held, group, tokens, namespace, length) for group in range(len(self.memory))):
                return length
        return 0

    def is_held(
        self, held: set[tuple[int, PageId]], group: int, tokens: list[int], namespace: Hashable, length: int
    ) -> bool:
        paths = {
            path
            for (page, slot), path in self.memory[group].items()
            if (group, page) in held and (group, page, slot) in self.offered
        }
        return all(
            (namespace, tuple(tokens[: position + 1])) in paths
            for position in range(self.first_visible(group, length), length)
        )


CacheStory.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestCacheStory = CacheStory.TestCase


@pytest.mark.soak
def test_long_cache_stories_hold_too() -> None:
    run_state_machine_as_test(CacheStory, settings=settings(max_examples=3000, stateful_step_count=50, deadline=None))
