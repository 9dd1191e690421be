"""In what order the prefix index forgets: a policy, and a queue of nodes with the one that goes first in front.

Only what nobody uses can go, and only from the ends of leaves; a policy says which leaf first. A node's record of use
is that of requests whose match ended with it; when a leaf has gone, its parent takes over what is known of it, so that
an inner node's record is complete once it is a leaf itself::

    last_use   the later of the two
    hits       the sum: whoever found the child has found the parent too

Above every policy stand claims (see `claims`): what an open program claims goes after all that nobody claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from trivium.cache.retain import priority_of

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.node import RadixNode

Key = tuple[int, ...]
Order = Callable[["RadixNode"], Key]
"""The smaller, the sooner a node goes."""


def _lru(_: Clock) -> Order:
    """Least recently used first."""
    return lambda node: (0, node.last_use)


def _lfu(_: Clock) -> Order:
    """Least often found first; of those, the least recently used."""
    return lambda node: (node.hits, node.last_use)


def _slru(_: Clock) -> Order:
    """What was never found again first, then the rest; each by last use."""
    return lambda node: (min(node.hits, 1), node.last_use)


def _fifo(_: Clock) -> Order:
    """What was computed first goes first."""
    return lambda node: (0, node.born)


def _priority(clock: Clock) -> Order:
    """Lowest priority first (see `retain`); of equals, the least recently used."""
    return lambda node: (priority_of(node, clock.now_s()), node.last_use)


ORDERS: Mapping[str, Callable[[Clock], Order]] = {
    "lru": _lru,
    "lfu": _lfu,
    "slru": _slru,
    "fifo": _fifo,
    "priority": _priority,
}
"""Eviction policies by name."""


def claims_last(order: Order) -> Order:
    """Return an order in which claimed nodes go after all others."""
    return lambda node: (node.claims is not None, *order(node))


class EvictionQueue:
    """Nodes that may be evictable, in the order of a policy.

    A node is added when it may have become evictable, and stays however often it is used: keys mostly grow, so an entry
    that has become too small is put back with the key of now when it comes to the front. Only a key that has shrunk
    (a priority that was lowered, or has expired; a claim that was let go) needs `add` again. Whoever comes to the front
    and cannot go (it has children, is locked, or its pages are in use) leaves the queue; whatever changes that adds it
    again.

    Cost: O(log nodes) to add and to take one; no policy looks at others than those that come to the front.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._heap: list[tuple[Key, int, RadixNode]] = []
        self._keys: dict[RadixNode, Key] = {}
        """Of each queued node, the key of its entry that counts."""
        self._serial = count()

    def __contains__(self, node: RadixNode) -> bool:
        """Return whether `node` has an entry."""
        return node in self._keys

    def add(self, node: RadixNode) -> None:
        """Queue a node, unless it is queued already with a key that is small enough."""
        known = self._keys.get(node)
        key = self._order(node)
        if known is None or key < known:
            self._push(key, node)

    def pop(self) -> RadixNode | None:
        """Take out the node that goes first; `None` when the queue is empty."""
        while self._heap:
            key, _, node = heappop(self._heap)
            if self._keys.get(node) != key:
                continue  # a later entry of the node, with a smaller key, has taken its place
            now = self._order(node)
            if now > key:
                self._push(now, node)
                continue
            del self._keys[node]
            return node
        return None

    def _push(self, key: Key, node: RadixNode) -> None:
        self._keys[node] = key
        heappush(self._heap, (key, next(self._serial), node))
