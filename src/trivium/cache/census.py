"""What the cache holds, counted by going through all of it; for people, not for decisions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from trivium.cache.page_keys import root_key
from trivium.cache.pages import NO_PAGE

if TYPE_CHECKING:
    from trivium.cache.kv_cache import KVCache
    from trivium.cache.node import RadixNode

_SHOWN_KEY_CHARS = 16


def show_namespace(namespace: Hashable) -> str:
    """Return what people and routers see of a namespace: a hash, which does not tell its salt."""
    return root_key(namespace).hex()[:_SHOWN_KEY_CHARS]


def count_namespaces(cache: KVCache) -> list[dict[str, object]]:
    """Count nodes, tokens and pages of every namespace; the largest first.

    Cost: O(nodes).
    """
    found = [_count(namespace, nodes) for namespace, nodes in cache.index.namespaces()]
    return sorted(found, key=lambda each: -int(str(each["tokens"])))


def _count(namespace: Hashable, nodes: Iterable[RadixNode]) -> dict[str, object]:
    num_nodes = num_tokens = num_pages = 0
    for node in nodes:
        num_nodes += 1
        num_tokens += node.end - node.start
        num_pages += sum(page != NO_PAGE for owned in node.pages for page in owned)
    return {
        "namespace": show_namespace(namespace),
        "nodes": num_nodes,
        "tokens": num_tokens,
        "pages": num_pages,
    }


def unused_bytes(cache: KVCache, ends: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes are reserved and hold no token that nothing else holds.

    ::

        cached       pages x page_len - tokens: ends of last pages, and copies that branches made of a partial page
        running      [computed_len, end of the last page)

    Args:
        cache: Pools and index.
        ends: Of every running request, its computed length, and where its last page ends.

    Full groups are counted; what windows keep beyond their need is no reservation.
    """
    slots = sum(end - computed_len for computed_len, end in ends)
    total = 0
    cached_tokens = sum(node.end - node.start for _, nodes in cache.index.namespaces() for node in nodes)
    for group, pool in zip(cache.spec.groups, cache.pools, strict=True):
        if group.window is None:
            total += (slots + pool.num_cached * cache.spec.page_len - cached_tokens) * group.bytes_per_token
    return total
