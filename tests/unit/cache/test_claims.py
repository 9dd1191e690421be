"""Claims: what an open program claims goes after all that nobody claims, and is never out of reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trivium.base.clock import FakeClock
from trivium.cache.accounting import check
from trivium.cache.claims import Claim
from trivium.cache.evict import ORDERS
from trivium.cache.kv_cache import KVCache
from trivium.cache.radix import RadixTree
from trivium.cache.spec import KVGroup, KVSpec

PAGE_LEN = 4
FULL = KVSpec((KVGroup("full", (0,), 8),), PAGE_LEN)
MIXED = KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, 6)), PAGE_LEN)
A, B, C = ([first, *range(10, 21)] for first in (1, 2, 3))
"""Prompts of three pages."""


class Rig:
    def __init__(self, eviction: str = "lru", spec: KVSpec = FULL, num_pages: int = 16) -> None:
        self.cache = KVCache(
            spec, [num_pages] * len(spec.groups), prefix_cache=True, eviction=eviction, clock=FakeClock()
        )

    def run(self, tokens: Sequence[int], claim: Claim | None = None) -> int:
        """Compute tokens as a request would; return how many were cached."""
        ids = np.array(tokens, np.int32)
        holding = self.cache.open(ids, (), len(ids) - 1)
        self.cache.grow(holding, len(ids))
        cached_len = holding.cached_len
        self.cache.confirm_copies(holding)
        self.cache.close(holding, ids[holding.locked_len :], claim)
        assert check(self.cache, []) == []
        return cached_len

    def free(self, num_pages: int, group: int = 0) -> None:
        self.cache.index.evict(group, self.cache.pools[group].num_free + num_pages)
        assert check(self.cache, []) == []

    def held(self, tokens: Sequence[int]) -> int:
        return self.cache.index.match_len(np.array(tokens, np.int32), (), len(tokens))


@pytest.mark.parametrize("eviction", sorted(ORDERS))
def test_what_is_claimed_goes_after_all_others(eviction: str) -> None:
    rig, claim = Rig(eviction), Claim()
    rig.run(A, claim)
    rig.run(B)
    rig.run(C)
    rig.free(6)
    assert [rig.held(each) for each in (A, B, C)] == [12, 0, 0]


def test_what_is_claimed_goes_when_nothing_else_is_left() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    rig.run(B)
    rig.free(4)
    assert [rig.held(A), rig.held(B)] == [8, 0]
    rig.free(2)
    assert rig.held(A) == 0
    assert not claim.nodes


def test_what_is_let_go_is_evicted_as_the_policy_says() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    rig.run(B)
    rig.free(1)  # the queue has looked at both, and knows the claim
    rig.cache.index.disclaim(claim)
    rig.free(3)
    assert [rig.held(A), rig.held(B)] == [0, 8]


def test_a_claim_moves_on_with_its_path() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    rig.run([*A, *range(30, 38)], claim)
    assert len(claim.nodes) == 1
    rig.run(B)
    rig.free(3)
    assert rig.held([*A, *range(30, 38)]) == 20


def test_branches_are_claimed_each() -> None:
    rig, claim = Rig(), Claim()
    branches = [[*A, first, *range(30, 37)] for first in (40, 41, 42)]
    for branch in branches:
        rig.run(branch, claim)
    assert len(claim.nodes) == 3
    rig.run(B)
    rig.free(3)
    assert [rig.held(each) for each in branches] == [20, 20, 20]


def test_another_s_text_behind_a_path_is_not_claimed_with_it() -> None:
    rig, claim = Rig(), Claim()
    path = A[:10]  # it ends inside a page, which the other request's text then shares
    rig.run(path, claim)
    rig.run([*path, *range(50, 60)])
    rig.run(B)
    rig.free(3)
    assert rig.held([*path, *range(50, 60)]) < 20
    assert rig.held(path) >= 8


def test_the_partial_page_at_the_end_is_claimed_too() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A[:10], claim)
    rig.run(B)
    rig.free(3)
    assert rig.held(A[:10]) == 10


def test_an_evicted_end_leaves_the_rest_claimed() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    rig.run([*A, *range(30, 38)], claim)
    rig.run(B)
    rig.free(5)  # all of b, and the end of the claimed path
    rig.run(C)
    rig.free(3)
    assert [rig.held([*A, *range(30, 38)]), rig.held(C)] == [12, 0]


def test_two_programs_keep_what_they_share_until_both_have_ended() -> None:
    rig, first, second = Rig(), Claim(), Claim()
    rig.run(A, first)
    rig.run(A, second)
    rig.cache.index.disclaim(first)
    rig.run(B)
    rig.free(3)
    assert [rig.held(A), rig.held(B)] == [12, 0]
    rig.cache.index.disclaim(second)
    rig.run(B)
    rig.free(3)
    assert [rig.held(A), rig.held(B)] == [0, 12]


def test_in_a_window_the_pages_near_the_end_are_claimed() -> None:
    rig, claim = Rig(spec=MIXED), Claim()
    rig.run(A, claim)
    rig.run([*A, *range(30, 34)], claim)
    rig.run(B)
    rig.run(C)
    rig.free(4, group=1)
    assert rig.held([*A, *range(30, 34)]) == 16


def test_a_flush_takes_claims_along() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    rig.cache.index.flush()
    assert rig.held(A) == 0
    assert not claim.nodes


def test_the_check_finds_a_claim_that_is_not_known() -> None:
    rig, claim = Rig(), Claim()
    rig.run(A, claim)
    claim.nodes.clear()
    assert isinstance(rig.cache.index, RadixTree)
    assert any("claimed" in problem for problem in rig.cache.index.check())
