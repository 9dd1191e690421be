"""The radix tree: token sequences to pages, exact to the token.

A node is an interval [start, end) of the token sequences that run through it; it may begin and end inside a page.
Every cached page has one owner, the node in which the page's last cached token lies, and holds the KV of *all*
tokens of the path in that page, also of those in nodes above::

    page_len 4      page 0     page 1     page 2
    path            a b c d    e f . .
    root ── N0 [0, 6) ─┬─ N1 [6, 11)   g h   i j k      owns pages Y (e f g h) and Z (i j k .)
                       └─ N2 [6, 8)    x y              owns page X (e f x y), a copy of e f made by N2's request
                          N0 owns page 0 only: its tail e f is in Y and in X

    owned page indices    of a leaf [s, e):  [s // page_len, ceil(e / page_len))
                          of an inner node:  [s // page_len, e // page_len)

So a page is never in two nodes, and dropping the last pages of a leaf drops the tokens in them. Whoever uses a page
also uses those before it on its path, so what nobody uses of a full group lies at the ends of leaves, and eviction
takes it from there. Window groups may lose any page (`NO_PAGE` in its place), since a match only needs those behind
its end.

Source: Zheng et al. 2024, SGLang: RadixAttention, section 3; ownership by last token is ours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.claims import Claim, claim_problems, pass_up
from trivium.cache.evict import ORDERS, EvictionQueue, claims_last
from trivium.cache.node import TOKEN_BYTES, RadixNode, node_problems, token_bytes, walk
from trivium.cache.page_runs import enter_root, extend_keys, page_of, run_of
from trivium.cache.pages import NO_PAGE, PagePool
from trivium.cache.prefix import PrefixMatch
from trivium.cache.shrink import TreeShrinker
from trivium.cache.spec import KVSpec
from trivium.cache.window import first_needed, usable_len

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.page_runs import PageListener
    from trivium.cache.prefix import TokenArray
    from trivium.cache.retain import RetentionPlan


class RadixTree:
    """Prefix index over the pages of `pools`, one pool per KV group.

    Invariants (see `check`):
        - Each cached page has exactly one owner.
        - A locked node ends at a page boundary, and its path stays while it is locked.
        - Whatever can be evicted is queued, or waits for the page that keeps it.
    """

    def __init__(self, spec: KVSpec, pools: Sequence[PagePool], *, eviction: str, clock: Clock) -> None:
        """Make an empty tree.

        Args:
            spec: KV groups and page length.
            pools: Those of the groups.
            eviction: A policy of `evict.ORDERS`.
            clock: Ends priorities that were asked for a while.
        """
        self._clock = clock
        self._spec = spec
        self._page_len = spec.page_len
        self._pools = tuple(pools)
        self._roots: dict[Hashable, RadixNode] = {}
        self._uses = count(1)
        windows = [group.window for group in spec.groups]
        self._widest = max((window for window in windows if window is not None), default=0)
        self._listeners: list[PageListener] = []
        order = claims_last(ORDERS[eviction](clock))

        def new_queue() -> EvictionQueue:
            return EvictionQueue(order)

        self._shrinker = TreeShrinker(spec, self._pools, self._roots, self._listeners, new_queue, clock)
        self._queues = self._shrinker.queues

    # -- matching ---------------------------------------------------------------------------------------------

    def match(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> PrefixMatch:
        """Find the longest usable cached prefix of `tokens`, at most `max_len` tokens.

        Cost: a look-up and a comparison of memory per node on the path; O(matched pages).
        """
        root = self._roots.get(namespace)
        if root is None or max_len <= 0:
            return PrefixMatch(0, tuple([] for _ in self._pools), [])
        path, matched = walk(root, token_bytes(tokens[:max_len]))
        pages = self._pages_of(path, matched)
        length = usable_len(pages, self._spec, matched)
        return PrefixMatch(length, self._needed(pages, length), path)

    def match_len(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> int:
        """Return the length of what `match` would find.

        Cost: that of the walk alone when no group has a window.
        """
        root = self._roots.get(namespace)
        if root is None or max_len <= 0:
            return 0
        if self._widest:
            return self.match(tokens, namespace, max_len).length
        return walk(root, token_bytes(tokens[:max_len]))[1]

    def _pages_of(self, path: list[RadixNode], matched: int) -> tuple[list[PageId], ...]:
        """Per group, the pages of [0, matched) along a path from the root."""
        num_pages = ceil_div(matched, self._page_len)
        found = []
        for group in range(len(self._pools)):
            pages = _owned_along(path, group)
            if len(pages) < num_pages:
                pages.append(self._tail_page(path[-1], group))
            del pages[num_pages:]
            found.append(pages)
        return tuple(found)

    def _tail_page(self, node: RadixNode, group: int) -> PageId:
        """Find a page below `node`, an inner node, that holds the tokens of its last, partial page.

        A child without pages begins and ends in that page, and so is an inner node too.
        """
        pending = list(node.children.values())
        while pending:
            child = pending.pop()
            if child.pages[group]:
                if child.pages[group][0] != NO_PAGE:
                    return child.pages[group][0]
            else:
                pending.extend(child.children.values())
        return NO_PAGE

    def _needed(self, pages: tuple[list[PageId], ...], length: int) -> tuple[list[PageId], ...]:
        num_pages = ceil_div(length, self._page_len)
        needed = []
        for group, found in zip(self._spec.groups, pages, strict=True):
            first = first_needed(length, group.window)
            out = num_pages if first >= length else first // self._page_len
            needed.append([NO_PAGE] * out + found[out:num_pages])
        return tuple(needed)

    # -- locking and inserting --------------------------------------------------------------------------------

    def lock(self, match: PrefixMatch, namespace: Hashable, plan: RetentionPlan | None = None) -> RadixNode:
        """Keep the node where the whole pages of `match` end, and give its path the priorities of `plan`."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode.root(namespace, len(self._pools))
            if self._listeners:
                enter_root(root)
        node = self._node_ending_at(root, match.path, match.length // self._page_len * self._page_len)
        node.locks += 1
        node.hits += match.length > 0
        self._note_use(node)
        # The partly shared page counts as used too, when it is the last one of its node.
        if match.path and match.length > (match.path[-1].end - 1) // self._page_len * self._page_len:
            match.path[-1].last_use = node.last_use
        if plan is not None:
            self._retain(_path_to(node, 0), plan)
        return node

    def unlock(self, lock: RadixNode) -> None:
        """Release a node; whatever is empty and unused goes."""
        ensure(lock.locks > 0, "a radix node is unlocked more often than it was locked")
        lock.locks -= 1
        self._note_use(lock)
        if not lock.locks and not lock.children:
            self._shrinker.queue_leaf(lock)
            self._shrinker.prune(lock)

    def _note_use(self, node: RadixNode) -> None:
        """Count a use of the path that ends with `node`.

        Nodes above it need no note, since they go after it; but for windows, whose pages go on their own.
        """
        now = node.last_use = next(self._uses)
        above = node.parent
        while above is not None and node.end - above.end < self._widest:
            above.last_use = now
            above = above.parent

    def _node_ending_at(self, node: RadixNode, path: Sequence[RadixNode], length: int) -> RadixNode:
        """Return the node of `path` (below `node`) that ends at `length`, splitting one if need be."""
        if length == node.end:
            return node
        at = bisect_left(path, length, key=lambda below: below.end)
        if at == len(path):
            raise InternalError(f"no node of the path ends at or beyond {length}")
        return path[at] if path[at].end == length else self._split(path[at], length)

    def insert(
        self,
        lock: RadixNode,
        locked_len: int,
        tokens: TokenArray,
        pages: Sequence[list[PageId]],
        plan: RetentionPlan | None = None,
    ) -> RadixNode:
        """Enter computed tokens behind a locked node and move the lock to the end of their last whole page.

        ::

            tokens      [0 ......... locked) [locked ........ known) [known ......... now)
            owner       tree before us       tree, by a twin         only this request
            on insert   nothing              whole pages: take the   tree keeps these pages,
                                             twin's, give ours back  the request stays a user
        """
        ensure(lock.end == locked_len, f"the lock ends at {lock.end} and the request says {locked_len}")
        data = token_bytes(tokens)
        path, known = walk(lock, data)
        known += locked_len
        now = locked_len + len(tokens)
        self._adopt(path, locked_len // self._page_len, known // self._page_len, pages)
        if known < now:
            last = path[-1] if path else lock
            if known < last.end:
                last = self._split(last, known)
                path[-1] = last
            grown = self._attach(last, token_bytes(tokens[known - locked_len :]), pages)
            if grown is not last:
                path.append(grown)
        elif path:
            path[-1].last_use = next(self._uses)
        target = self._node_ending_at(lock, path, now // self._page_len * self._page_len)
        target.locks += 1
        self.unlock(lock)
        self._note_use(target)
        if plan is not None:
            self._retain(_path_to(path[-1] if path else target, locked_len), plan)
        return target

    def _retain(self, path: Sequence[RadixNode], plan: RetentionPlan) -> None:
        """Give the nodes of `path` the priorities of `plan`, splitting them where these change within a node."""
        now_s = self._clock.now_s()
        for node in path:
            last = ceil_div(node.end, self._page_len)
            for edge in plan.edges(node.start // self._page_len, last):
                if node.start < edge * self._page_len < node.end:
                    self._give_priority(self._split(node, edge * self._page_len), plan, now_s)
            self._give_priority(node, plan, now_s)

    def _give_priority(self, node: RadixNode, plan: RetentionPlan, now_s: float) -> None:
        kept = plan.kept((node.end - 1) // self._page_len, now_s)
        if kept is not None:
            node.kept = kept
            self._shrinker.note_priority(node)

    # -- claims -----------------------------------------------------------------------------------------------

    def claim(self, lock: RadixNode, tail: TokenArray, claim: Claim) -> None:
        """Claim the path that leads over a locked node to the end of `tail`, which is cached behind it."""
        path, _ = walk(lock, token_bytes(tail))
        end = path[-1] if path else lock
        if end.parent is not None:
            claim.move_to(end, self._widest, self._shrinker.requeue)

    def disclaim(self, claim: Claim) -> None:
        """Let everything go that `claim` has."""
        for node in tuple(claim.nodes):
            claim.leave(node)
            self._shrinker.requeue(node)

    def _adopt(self, path: list[RadixNode], first: int, last: int, pages: Sequence[list[PageId]]) -> None:
        """Settle the pages [first, last) that the tree has along `path`: one copy stays, tree and request share it."""
        for group, (pool, table) in enumerate(zip(self._pools, pages, strict=True)):
            listed = _owned_along(path, group)[: last - first]
            if listed == table[first:last]:
                continue
            ours, theirs = np.array(table[first:last], np.int32), np.array(listed, np.int32)
            twice = (ours != theirs) & (ours != NO_PAGE) & (theirs != NO_PAGE)
            pool.share_all(theirs[twice])
            pool.give_back_all(ours[twice])
            table[first:last] = np.where(twice, theirs, ours).tolist()
            for idx in np.flatnonzero((ours != NO_PAGE) & (theirs == NO_PAGE)).tolist():
                self._return_page(path, group, first + idx, table[first + idx])

    def _return_page(self, path: list[RadixNode], group: int, idx: int, page: PageId) -> None:
        """Give back to the tree the page at index `idx` that it had evicted from the window."""
        node = next(node for node in path if idx < node.start // self._page_len + len(node.pages[group]))
        node.pages[group][idx - node.start // self._page_len] = page
        self._pools[group].keep_all([page])
        self._queues[group].add(node)
        if self._listeners and (run := page_of(node, idx, group, self._page_len)) is not None:
            for listener in self._listeners:
                listener.stored(run)

    def _attach(self, node: RadixNode, data: bytes, pages: Sequence[list[PageId]]) -> RadixNode:
        """Enter tokens behind the end of `node`: in place when it is an unlocked leaf, else as a new child."""
        first = node.end // self._page_len
        if self._can_extend(node):
            kept = first - node.start // self._page_len
            for pool, owned in zip(self._pools, node.pages, strict=True):
                pool.drop_all(owned[kept:])
                del owned[kept:]
            node.replace_tokens(node.data + data, node.start)
            target = node
        else:
            # A leaf with a partial page is never locked, so `node` has no page for [start // page_len) itself.
            target = RadixNode(data, node.end, tuple([] for _ in self._pools), node)
            node.children[target.first_token] = target
        target.last_use = next(self._uses)
        target.born = target.born or target.last_use
        end = ceil_div(target.end, self._page_len)
        for pool, queue, owned, table in zip(self._pools, self._queues, target.pages, pages, strict=True):
            entered = table[first:end]
            owned.extend(entered)
            pool.keep_all(entered)
            queue.add(target)
        if self._listeners:
            self._announce(target)
        return target

    def _can_extend(self, node: RadixNode) -> bool:
        """Return whether tokens may be entered at the end of `node` itself, not behind it."""
        if node.parent is None or node.children or node.locks:
            return False
        if node.kept is None and node.claims is None:
            return True
        # What is entered was not asked to be kept: only the partial page, which it joins, is split off for it.
        whole = node.end // self._page_len * self._page_len
        if node.start < whole < node.end:
            self._split(node, whole)
        if node.end == whole:
            return False
        node.kept = None
        pass_up(node)
        self._shrinker.note_priority(node)
        return True

    def _announce(self, node: RadixNode) -> None:
        """Say which full pages a node has gained."""
        run = run_of(node, extend_keys(node, self._page_len), self._page_len)
        if run is not None:
            for listener in self._listeners:
                listener.stored(run)

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut `node` at `at` and return the new upper part; the lower stays the same object, and locked."""
        parent = node.parent
        if parent is None or not node.start < at < node.end:
            raise InternalError(f"cannot split [{node.start}, {node.end}) at {at}")
        num_pages = at // self._page_len - node.start // self._page_len
        cut = (at - node.start) * TOKEN_BYTES
        upper = RadixNode(node.data[:cut], node.start, tuple(owned[:num_pages] for owned in node.pages), parent)
        upper.last_use, upper.born, upper.kept = node.last_use, node.born, node.kept
        upper.keys, node.keys = node.keys[:num_pages], node.keys[num_pages:]
        for owned in node.pages:
            del owned[:num_pages]
        parent.children[upper.first_token] = upper
        node.replace_tokens(node.data[cut:], at)
        node.parent = upper
        upper.children[node.first_token] = node
        if node.end - at < self._widest:
            for claim in node.claims or ():
                claim.enter(upper)
        for group, queue in zip(self._spec.groups, self._queues, strict=True):
            if group.window is not None:
                queue.add(upper)
        if upper.kept is not None:
            self._shrinker.note_priority(upper)
        return upper

    # -- evicting ---------------------------------------------------------------------------------------------

    def evict(self, group: int, count: int) -> None:
        """Drop what the policy names first until `count` pages of `group` are free, or none is evictable.

        Cost: O(log nodes) per leaf that loses pages, a few array operations for all of these.
        """
        self._shrinker.evict(group, count)

    def flush(self) -> None:
        """Drop everything that no running request uses."""
        for group, pool in enumerate(self._pools):
            self._shrinker.evict(group, pool.num_pages)

    def listen(self, listener: PageListener) -> None:
        """Tell `listener` from now on which full pages are stored and removed; every node keeps their keys.

        Raises:
            InternalError: Something is cached already, of which it would not know.
        """
        ensure(not self._roots, "who wants to hear what is cached must say so before anything is")
        self._listeners.append(listener)

    # -- for the accounting -----------------------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode]:
        """Yield every node, roots included; not to be mutated."""
        for root in self._roots.values():
            yield from _below(root)

    def namespaces(self) -> Iterator[tuple[Hashable, list[RadixNode]]]:
        """Yield every namespace with its nodes, the root left out; not to be mutated."""
        for namespace, root in self._roots.items():
            yield namespace, [node for node in _below(root) if node is not root]

    def held_pages(self) -> Iterator[tuple[int, PageId]]:
        """Yield every held page once per owner, as (group, page)."""
        for node in self.nodes():
            for group, owned in enumerate(node.pages):
                yield from ((group, page) for page in owned if page != NO_PAGE)

    def check(self) -> list[str]:
        """Re-derive the invariants of every node; return what does not hold."""
        self._shrinker.wake()
        problems = [
            problem for node in self.nodes() for problem in (*node_problems(node, self._spec), *claim_problems(node))
        ]
        for group, queue in enumerate(self._queues):
            is_full = self._spec.groups[group].window is None
            problems += [
                f"group {group}: pages of node [{node.start}, {node.end}) cannot be evicted: it is not queued"
                for node in self.nodes()
                if not (is_full and (node.children or node.locks))
                and any(page != NO_PAGE for page in node.pages[group])
                and node not in queue
                and not any(
                    pool.is_awaited(page) for pool, owned in zip(self._pools, node.pages, strict=True) for page in owned
                )
            ]
        return problems


def _below(node: RadixNode) -> Iterator[RadixNode]:
    """Yield `node` and all nodes below it."""
    pending = [node]
    while pending:
        last = pending.pop()
        yield last
        pending.extend(last.children.values())


def _path_to(node: RadixNode, start: int) -> list[RadixNode]:
    """Return the nodes that lead to the end of `node`, it included, and end behind `start`."""
    path = []
    above: RadixNode | None = node
    while above is not None and above.parent is not None and above.end > start:
        path.append(above)
        above = above.parent
    return path


def _owned_along(path: Sequence[RadixNode], group: int) -> list[PageId]:
    """Return the pages that the nodes of `path` own, in order."""
    pages: list[PageId] = []
    for node in path:
        pages += node.pages[group]
    return pages
