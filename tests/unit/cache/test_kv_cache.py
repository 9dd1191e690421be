"""Holdings: growing, the cache switched off, and what a reader of page lists is told."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.base.errors import InternalError
from trivium.cache.kv_cache import KVCache
from trivium.cache.spec import KVGroup, KVSpec

SPEC = KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, 5)), 4)
TOKENS = np.arange(12, dtype=np.int32)


def test_growing_takes_the_missing_pages_of_every_group() -> None:
    cache = KVCache(SPEC, [4, 4], prefix_cache=True)
    holding = cache.open(TOKENS, (), 0)
    cache.grow(holding, 9)
    assert [len(pages) for pages in holding.pages] == [3, 3]
    cache.grow(holding, 12)
    assert [pool.num_free for pool in cache.pools] == [1, 1]


def test_growing_evicts_what_nobody_uses() -> None:
    cache = KVCache(SPEC, [3, 3], prefix_cache=True)
    first = cache.open(TOKENS, (), 0)
    cache.grow(first, 12)
    cache.close(first, TOKENS)
    second = cache.open(TOKENS + 100, (), 12)
    assert cache.longest(second) == 12
    cache.grow(second, 12)
    assert cache.index.match(TOKENS, (), 12).length == 0


def test_growing_beyond_the_pool_is_an_internal_error() -> None:
    cache = KVCache(SPEC, [3, 3], prefix_cache=True)
    holding = cache.open(TOKENS, (), 0)
    assert cache.longest(holding) == 12
    with pytest.raises(InternalError):
        cache.grow(holding, 13)


def test_with_the_prefix_cache_off_nothing_is_remembered() -> None:
    cache = KVCache(SPEC, [3, 3], prefix_cache=False)
    holding = cache.open(TOKENS, (), 12)
    cache.grow(holding, 12)
    cache.settle(holding, TOKENS)
    cache.close(holding, None)
    cache.index.evict(0, 3)
    cache.index.flush()
    assert cache.open(TOKENS, (), 12).cached_len == 0
    assert [pool.num_free for pool in cache.pools] == [3, 3]
    assert (list(cache.index.held_pages()), cache.index.check()) == ([], [])


def test_changes_of_the_page_lists_are_announced() -> None:
    cache = KVCache(SPEC, [8, 8], prefix_cache=True)
    holding = cache.open(TOKENS, (), 0)
    cache.grow(holding, 12)
    holding.changed_from = [3, 3]
    cache.release_window(holding, 9)
    assert holding.changed_from == [3, 0]
    holding.changed_from = [3, 3]
    cache.grow(holding, 16)
    assert holding.changed_from == [3, 3]
    cache.settle(holding, TOKENS)
    assert holding.changed_from == [0, 0]
