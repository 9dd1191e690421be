"""The accounting check finds what it is for, and never raises."""

from __future__ import annotations

import numpy as np

from trivium.cache.accounting import check
from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.radix import RadixTree
from trivium.cache.spec import KVGroup, KVSpec

SPEC = KVSpec((KVGroup("full", (0,), 8),), 4)


def running() -> tuple[KVCache, Holding]:
    cache = KVCache(SPEC, [8], prefix_cache=True)
    tokens = np.arange(10, dtype=np.int32)
    holding = cache.open(tokens, (), 10)
    cache.grow(holding, 10)
    cache.settle(holding, tokens)
    return cache, holding


def test_a_sound_cache_has_no_differences() -> None:
    cache, holding = running()
    assert check(cache, [holding]) == []


def test_a_leaked_page_is_found() -> None:
    cache, holding = running()
    cache.pools[0].take(1)
    assert any("users by count" in line for line in check(cache, [holding]))


def test_a_forgotten_holding_is_found() -> None:
    cache, _ = running()
    assert len(check(cache, [])) >= 3


def test_a_page_in_two_tables_that_was_not_shared_is_found() -> None:
    cache, holding = running()
    holding.pages[0].append(holding.pages[0][0])
    assert any("1 users by count and 2 in page tables" in line for line in check(cache, [holding]))


def test_a_page_the_index_lost_is_found() -> None:
    cache, holding = running()
    cache.pools[0].drop_all(holding.pages[0][:1])
    assert any("in the index 1 times and marked 0" in line for line in check(cache, [holding]))


def test_a_misplaced_node_is_found() -> None:
    cache, holding = running()
    node = holding.lock
    node.start += 1
    assert check(cache, [holding]) != []


def test_an_empty_node_and_a_lost_child_are_found() -> None:
    cache, holding = running()
    node = holding.lock
    (child,) = node.children.values()
    child.data = b""
    node.children[99] = child
    assert len(check(cache, [holding])) >= 1
    node.children.clear()
    assert check(cache, [holding]) != []


def test_wrong_counts_are_found() -> None:
    cache, holding = running()
    cache.pools[0].num_evictable += 1
    cache.pools[0].num_cached -= 1
    lines = check(cache, [holding])
    assert any("1 pages are evictable by count and 0 by" in line for line in lines)
    assert any("2 pages are in the index by count and 3 by" in line for line in lines)


def test_a_leaf_that_nothing_would_evict_is_found() -> None:
    cache, holding = running()
    tree = cache.index
    assert isinstance(tree, RadixTree)
    while tree._queues[0].pop() is not None:
        pass
    assert any("cannot be evicted" in line for line in check(cache, [holding]))


def test_the_check_reports_its_own_failure_instead_of_raising() -> None:
    cache, holding = running()
    holding.pages[0].append(None)  # type: ignore[arg-type]
    holding.sources.append((7, holding.pages[0][0]))
    (line,) = check(cache, [holding])
    assert "accounting check failed" in line
