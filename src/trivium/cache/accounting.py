"""Who owns every page, re-derived by brute force and compared with what the pools believe.

Slow on purpose: it shares no bookkeeping with what it checks. It reports and never raises, so that it can run in
production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trivium.base.ids import PageId
from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.pages import NO_PAGE, PagePool


def check(cache: KVCache, holdings: Iterable[Holding]) -> list[str]:
    """Compare the pools of `cache` with the page tables of all running requests and with the prefix index.

    Args:
        cache: Pools and index.
        holdings: Those of all running requests.

    Returns:
        One line per difference; empty when every page is accounted for.

    Cost: O(pages + tokens in the index).
    """
    try:
        return list(_differences(cache, list(holdings)))
    except Exception as error:  # a check that fails is itself a finding
        return [f"the accounting check failed: {type(error).__name__}: {error}"]


def _differences(cache: KVCache, holdings: list[Holding]) -> Iterable[str]:
    users: list[Counter[PageId]] = [Counter() for _ in cache.pools]
    held: list[Counter[PageId]] = [Counter() for _ in cache.pools]
    for holding in holdings:
        for group, pages in enumerate(holding.pages):
            users[group].update(page for page in pages if page != NO_PAGE)
        for group, page in holding.sources:
            users[group][page] += 1
    for group, page in cache.index.held_pages():
        held[group][page] += 1
    yield from cache.index.check()
    for group, pool in enumerate(cache.pools):
        for line in _pool_differences(pool, users[group], held[group]):
            yield f"group {group}: {line}"


def _pool_differences(pool: PagePool, users: Counter[PageId], held: Counter[PageId]) -> Iterable[str]:
    free = Counter(pool.free_pages())
    num_held = sum(held.values())
    if pool.num_cached != num_held:
        yield f"{pool.num_cached} pages are in the index by count and {num_held} by its nodes"
    num_evictable = sum(not users[page] for page in held)
    if pool.num_evictable != num_evictable:
        yield f"{pool.num_evictable} pages are evictable by count and {num_evictable} by page tables and nodes"
    for number in range(pool.num_pages):
        page = PageId(number)
        if pool.users(page) != users[page]:
            yield f"page {page} has {pool.users(page)} users by count and {users[page]} in page tables"
        if held[page] != int(pool.is_cached(page)):
            yield f"page {page} is in the index {held[page]} times and marked {int(pool.is_cached(page))}"
        is_free = not users[page] and not held[page]
        if free[page] != int(is_free):
            yield f"page {page} is in the free list {free[page]} times and should be {int(is_free)} times"
