"""How the radix tree loses pages and nodes: runs at the ends of leaves, and single pages of windows.

::

    leaf [s, e)     pages   | in use by requests | unused ............ |
    evict                                  kept ─┤ dropped, with its tokens
    nothing kept    the leaf goes; its parent may be the next leaf, and loses the tokens that were in the leaf's page

What was dropped is given to the pools at the end, all pages of all leaves at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from trivium.base.errors import InternalError
from trivium.base.ids import PageId
from trivium.cache.claims import pass_up
from trivium.cache.node import TOKEN_BYTES, RadixNode
from trivium.cache.page_runs import run_of
from trivium.cache.pages import NO_PAGE, PagePool
from trivium.cache.spec import KVSpec

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.evict import EvictionQueue
    from trivium.cache.page_runs import PageListener
    from trivium.cache.retain import Kept


class TreeShrinker:
    """Takes from a radix tree what it can do without, in the order of its queues."""

    def __init__(
        self,
        spec: KVSpec,
        pools: Sequence[PagePool],
        roots: dict[Hashable, RadixNode],
        listeners: Sequence[PageListener],
        new_queue: Callable[[], EvictionQueue],
        clock: Clock,
    ) -> None:
        """Share the roots of a tree, and those who listen to it.

        Args:
            spec: KV groups and page length.
            pools: Those of the groups.
            roots: By namespace; empty ones are removed.
            listeners: Told what is removed.
            new_queue: Makes an empty queue.
            clock: Ends priorities.
        """
        self._spec = spec
        self._page_len = spec.page_len
        self._pools = tuple(pools)
        self._roots = roots
        self._listeners = listeners
        self._clock = clock
        self._expiries: list[tuple[float, int, RadixNode, Kept]] = []
        self._serial = count()
        windows = [group.window for group in spec.groups]
        self._full = next((idx for idx, window in enumerate(windows) if window is None), None)
        leaves = new_queue()
        self.queues = tuple(leaves if window is None else new_queue() for window in windows)
        """Per group. Full groups lose the same pages, so they have one between them; a window group has its own."""

    def evict(self, group: int, count: int) -> None:
        """Drop pages until `count` pages of `group` are free, or none is evictable.

        Cost: O(log nodes) per leaf that loses pages, a few array operations for all of these.
        """
        self._expire()
        self.wake()
        missing = count - self._pools[group].num_free
        if self._spec.groups[group].window is not None:
            self._evict_window(group, missing)
        elif missing > 0:
            self._evict_leaves(group, missing)

    def wake(self) -> None:
        """Queue those whose pages came out of use since they were passed over."""
        for pool, queue in zip(self._pools, self.queues, strict=True):
            for node in pool.woken():
                queue.add(node)

    def note_priority(self, node: RadixNode) -> None:
        """Heed that the priority of `node` has changed, and that it will when it expires."""
        self.requeue(node)
        if node.kept is not None and node.kept.expires_s is not None:
            heappush(self._expiries, (node.kept.expires_s, next(self._serial), node, node.kept))

    def requeue(self, node: RadixNode) -> None:
        """Heed that a queued node may now go sooner than it might before."""
        for queue in self.queues:
            if node in queue:
                queue.add(node)

    def _expire(self) -> None:
        """Heed the priorities whose time has passed."""
        now_s = self._clock.now_s()
        while self._expiries and self._expiries[0][0] <= now_s:
            *_, node, kept = heappop(self._expiries)
            if node.kept is kept:
                node.kept = None
                self.note_priority(node)

    def queue_leaf(self, node: RadixNode) -> None:
        """Queue a node that has become a leaf."""
        if self._full is not None and node.parent is not None:
            self.queues[self._full].add(node)

    def _evict_leaves(self, group: int, missing: int) -> None:
        pool, queue = self._pools[group], self.queues[group]
        users_of = pool.users_of

        def is_unused(page: PageId) -> bool:
            return not users_of[page]

        dropped: tuple[list[PageId], ...] = tuple([] for _ in self._pools)
        while missing > 0:
            leaf = queue.pop()
            if leaf is None:
                break
            if leaf.children or leaf.locks or not leaf.pages[group]:
                continue
            # Whoever uses a page uses those before it too, so the pages without users are the last ones.
            owned = leaf.pages[group]
            first = 0 if not users_of[owned[0]] else bisect_left(owned, 1, key=is_unused)
            if first == len(owned):
                pool.wait_for(owned[-1:], leaf)
                continue
            kept = max(first, len(owned) - missing)
            missing -= len(owned) - kept
            self.cut(leaf, kept, dropped)
        for each, pages in zip(self._pools, dropped, strict=True):
            each.drop_all(pages)

    def _evict_window(self, group: int, missing: int) -> None:
        pool, queue = self._pools[group], self.queues[group]
        while missing > 0:
            node = queue.pop()
            if node is None:
                return
            owned = node.pages[group]
            unused = pool.unused_of(owned)
            # What is furthest from the end goes first: who matches the whole node needs it last.
            gone, left = unused[:missing], unused[missing:]
            pool.drop_all([owned[idx] for idx in gone])
            for idx in gone:
                owned[idx] = NO_PAGE
            missing -= len(gone)
            if left:
                queue.add(node)
            else:
                pool.wait_for([page for page in owned if page != NO_PAGE], node)
            self.prune(node)

    def cut(self, leaf: RadixNode, kept: int, dropped: tuple[list[PageId], ...]) -> None:
        """Leave an unlocked leaf its first `kept` pages and their tokens; the others' pages go to `dropped`."""
        if leaf.locks:
            raise InternalError(f"a locked radix node [{leaf.start}, {leaf.end}) would be evicted")
        if self._listeners:
            self._announce(leaf, kept)
        for owned, pages in zip(leaf.pages, dropped, strict=True):
            pages.extend(owned[kept:])
            del owned[kept:]
        end = (leaf.start // self._page_len + kept) * self._page_len
        if end > leaf.start:
            leaf.replace_tokens(leaf.data[: (end - leaf.start) * TOKEN_BYTES], leaf.start)
            self.queue_leaf(leaf)
        else:
            self._remove(leaf, dropped)

    def _remove(self, node: RadixNode, dropped: tuple[list[PageId], ...]) -> None:
        """Take a leaf without pages out of the tree, and the tail of its parent that was in its first page."""
        parent = node.parent
        if parent is None:
            return
        del parent.children[node.first_token]
        pass_up(node)
        node.parent = None
        parent.last_use = max(parent.last_use, node.last_use)
        parent.hits += node.hits
        if parent.children or parent.locks:
            return
        if parent.parent is None:
            self.prune(parent)
        elif parent.end % self._page_len:
            self.cut(parent, len(parent.pages[0]), dropped)
        else:
            self.queue_leaf(parent)
            self.prune(parent)

    def prune(self, node: RadixNode) -> None:
        """Remove `node` if it is an unlocked leaf that holds no page any more."""
        if node.locks or node.children:
            return
        if node.parent is None:
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]
        elif self._full is None and all(page == NO_PAGE for owned in node.pages for page in owned):
            self.cut(node, 0, tuple([] for _ in self._pools))

    def _announce(self, leaf: RadixNode, kept: int) -> None:
        """Say which full pages a leaf is about to lose."""
        run = run_of(leaf, kept, self._page_len)
        if run is not None:
            for listener in self._listeners:
                listener.removed(run)
        del leaf.keys[kept:]
