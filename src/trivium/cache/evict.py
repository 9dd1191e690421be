"""In what order the prefix index forgets: a queue of nodes, the one that goes first in front.

A node enters the queue when it may have become evictable, and has one entry there however often it is used: its key
only grows, so an entry that has become too small is put back with the key of now when it comes to the front. Who comes
to the front and cannot go (it has children, is locked, or its pages are in use) leaves the queue; whoever changes that
adds it again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.cache.node import RadixNode


class EvictionQueue:
    """Nodes by their last use, the least recent first.

    Cost: O(log nodes) to add and to take one.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._members: set[RadixNode] = set()
        self._serial = count()

    def __contains__(self, node: RadixNode) -> bool:
        """Return whether `node` has an entry."""
        return node in self._members

    def add(self, node: RadixNode) -> None:
        """Queue a node, unless it is queued already."""
        if node not in self._members:
            self._members.add(node)
            heappush(self._heap, (node.last_use, next(self._serial), node))

    def pop(self) -> RadixNode | None:
        """Take out the node that goes first; `None` when the queue is empty."""
        while self._heap:
            key, _, node = heappop(self._heap)
            if node.last_use > key:
                heappush(self._heap, (node.last_use, next(self._serial), node))
                continue
            self._members.discard(node)
            return node
        return None
