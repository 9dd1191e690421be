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

So a page is never in two nodes, and dropping page i of a leaf drops the tokens of page i. Why eviction may simply
take the page whose last user left first: whoever uses a page also uses the pages before it on the path, and gives
them back last page first. The oldest evictable page of a full group is therefore the last page of a leaf.
Window groups may lose any page (`NO_PAGE` in its place), since a match only needs those behind its end.

Source: Zheng et al. 2024, SGLang: RadixAttention, section 3; ownership by last token is ours.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.node import RadixNode, common_len, node_problems
from trivium.cache.pages import NO_PAGE, PagePool
from trivium.cache.prefix import PrefixMatch
from trivium.cache.spec import KVSpec
from trivium.cache.window import first_needed, usable_len

if TYPE_CHECKING:
    from trivium.cache.prefix import TokenArray


class RadixTree:
    """Prefix index over the pages of `pools`, one pool per KV group.

    Invariants (see `check`):
        - Each cached page has exactly one owner, which knows it at its index.
        - A locked node ends at a page boundary, and its path stays while it is locked.
    """

    def __init__(self, spec: KVSpec, pools: Sequence[PagePool]) -> None:
        self._spec = spec
        self._page_len = spec.page_len
        self._pools = tuple(pools)
        self._roots: dict[Hashable, RadixNode] = {}
        self._owners: tuple[list[RadixNode | None], ...] = tuple([None] * pool.num_pages for pool in pools)
        self._has_full_group = any(group.window is None for group in spec.groups)

    # -- matching ---------------------------------------------------------------------------------------------

    def match(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> PrefixMatch:
        """Find the longest usable cached prefix of `tokens`, at most `max_len` tokens.

        Cost: O(matched tokens), vectorised per node.
        """
        root = self._roots.get(namespace)
        if root is None or max_len <= 0:
            return PrefixMatch(0, tuple([] for _ in self._pools), [])
        path, matched = self._walk(root, tokens[:max_len])
        pages = self._pages_of(path, matched)
        length = usable_len(pages, self._spec, matched)
        return PrefixMatch(length, self._needed(pages, length), path)

    def _walk(self, node: RadixNode, tokens: TokenArray) -> tuple[list[RadixNode], int]:
        """Follow `tokens` down from the end of `node`; return the nodes entered and the tokens matched."""
        path: list[RadixNode] = []
        matched = 0
        while matched < len(tokens):
            child = node.children.get(int(tokens[matched]))
            if child is None:
                break
            path.append(child)
            common = common_len(child.tokens, tokens[matched:])
            matched += common
            if common < len(child.tokens):
                break
            node = child
        return path, matched

    def _pages_of(self, path: list[RadixNode], matched: int) -> tuple[list[PageId], ...]:
        """Per group, the pages of [0, matched) along a path from the root."""
        count = ceil_div(matched, self._page_len)
        found: tuple[list[PageId], ...] = tuple([] for _ in self._pools)
        for group, pages in enumerate(found):
            for node in path:
                pages.extend(node.pages[group])
            if len(pages) < count:
                pages.append(self._tail_page(path[-1], group))
            del pages[count:]
        return found

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
        count = ceil_div(length, self._page_len)
        needed = []
        for group, found in zip(self._spec.groups, pages, strict=True):
            first = first_needed(length, group.window)
            out = count if first >= length else first // self._page_len
            needed.append([NO_PAGE] * out + found[out:count])
        return tuple(needed)

    # -- locking and inserting --------------------------------------------------------------------------------

    def lock(self, match: PrefixMatch, namespace: Hashable) -> RadixNode:
        """Keep the node where the whole pages of `match` end."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode.root(namespace, len(self._pools))
        node = self._node_ending_at(root, match.path, match.length // self._page_len * self._page_len)
        node.locks += 1
        return node

    def unlock(self, lock: RadixNode) -> None:
        """Release a node; whatever is empty and unused goes."""
        ensure(lock.locks > 0, "a radix node is unlocked more often than it was locked")
        lock.locks -= 1
        self._prune(lock)

    def _node_ending_at(self, node: RadixNode, path: Sequence[RadixNode], length: int) -> RadixNode:
        """Return the node of `path` (below `node`) that ends at `length`, splitting one if need be."""
        if length == node.end:
            return node
        for below in path:
            if below.end == length:
                return below
            if below.end > length:
                return self._split(below, length)
        raise InternalError(f"no node of the path ends at or beyond {length}")

    def insert(self, lock: RadixNode, locked_len: int, tokens: TokenArray, pages: Sequence[list[PageId]]) -> RadixNode:
        """Enter computed tokens behind a locked node and move the lock to the end of their last whole page.

        ::

            tokens      [0 ......... locked) [locked ........ known) [known ......... now)
            owner       tree before us       tree, by a twin         only this request
            on insert   nothing              whole pages: take the   tree keeps these pages,
                                             twin's, give ours back  the request stays a user
        """
        ensure(lock.end == locked_len, f"the lock ends at {lock.end} and the request says {locked_len}")
        path, known = self._walk(lock, tokens)
        known += locked_len
        now = locked_len + len(tokens)
        for node in path:
            self._adopt(node, max(locked_len, node.start), min(known, node.end), pages)
        if known < now:
            last = path[-1] if path else lock
            if known < last.end:
                last = self._split(last, known)
                path[-1] = last
            grown = self._attach(last, tokens[known - locked_len :], pages)
            if grown is not last:
                path.append(grown)
        target = self._node_ending_at(lock, path, now // self._page_len * self._page_len)
        target.locks += 1
        self.unlock(lock)
        return target

    def _adopt(self, node: RadixNode, start: int, end: int, pages: Sequence[list[PageId]]) -> None:
        """Settle the whole pages that `node` owns in [start, end): one copy stays, tree and request share it."""
        first = node.start // self._page_len
        for group, (pool, table) in enumerate(zip(self._pools, pages, strict=True)):
            owned = node.pages[group]
            for idx in range(start // self._page_len, end // self._page_len):
                ours, theirs = table[idx], owned[idx - first]
                if ours in {theirs, NO_PAGE}:
                    continue
                if theirs == NO_PAGE:
                    self._own(node, group, idx - first, ours)
                else:
                    pool.share(theirs)
                    pool.give_back(ours)
                    table[idx] = theirs

    def _own(self, node: RadixNode, group: int, at: int, page: PageId) -> None:
        self._pools[group].keep(page)
        self._owners[group][page] = node
        node.pages[group][at] = page

    def _disown(self, group: int, page: PageId) -> None:
        if page != NO_PAGE:
            self._owners[group][page] = None
            self._pools[group].drop(page)

    def _attach(self, node: RadixNode, tokens: TokenArray, pages: Sequence[list[PageId]]) -> RadixNode:
        """Enter tokens behind the end of `node`: in place when it is an unlocked leaf, else as a new child."""
        start = node.end
        end = start + len(tokens)
        if node.parent is not None and not node.children and node.locks == 0:
            node.tokens = np.concatenate((node.tokens, tokens))
            target = node
        else:
            # A leaf with a partial page is never locked, so `node` has no page for [start // page_len) itself.
            target = RadixNode(tokens.copy(), start, tuple([] for _ in self._pools), node)
            node.children[int(tokens[0])] = target
        first = start // self._page_len
        for group, table in enumerate(pages):
            owned = target.pages[group]
            if target is node:
                tail = owned[first - node.start // self._page_len :]
                del owned[first - node.start // self._page_len :]
                for page in tail:
                    self._disown(group, page)
            for page in table[first : ceil_div(end, self._page_len)]:
                owned.append(NO_PAGE)
                if page != NO_PAGE:
                    self._own(target, group, len(owned) - 1, page)
        return target

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut `node` at `at` and return the new upper part; the lower stays the same object, and locked."""
        parent = node.parent
        if parent is None or not node.start < at < node.end:
            raise InternalError(f"cannot split [{node.start}, {node.end}) at {at}")
        count = at // self._page_len - node.start // self._page_len
        upper_pages = tuple(owned[:count] for owned in node.pages)
        upper = RadixNode(node.tokens[: at - node.start].copy(), node.start, upper_pages, parent)
        for group, owned in enumerate(upper_pages):
            del node.pages[group][:count]
            for page in owned:
                if page != NO_PAGE:
                    self._owners[group][page] = upper
        parent.children[int(upper.tokens[0])] = upper
        node.tokens = node.tokens[at - node.start :].copy()
        node.start = at
        node.parent = upper
        upper.children[int(node.tokens[0])] = node
        return upper

    # -- evicting ---------------------------------------------------------------------------------------------

    def evict(self, group: int, count: int) -> None:
        """Drop least recently used pages until `count` pages of `group` are free, or none is evictable.

        Cost: O(1) per page, plus the search of a page within its node.
        """
        pool = self._pools[group]
        while pool.num_free < count:
            page = pool.oldest_evictable()
            if page is None:
                return
            node = self._owners[group][page]
            if node is None:
                raise InternalError(f"cached page {page} of group {group} has no owner")
            owned = node.pages[group]
            at = len(owned) - 1 if owned[-1] == page else owned.index(page)
            if self._spec.groups[group].window is None:
                self._cut(node, node.start // self._page_len + at)
            else:
                owned[at] = NO_PAGE
                self._disown(group, page)
                self._prune(node)

    def flush(self) -> None:
        """Drop everything that no running request uses."""
        for group, pool in enumerate(self._pools):
            self.evict(group, pool.num_pages)

    def _cut(self, node: RadixNode, idx: int) -> None:
        """Drop page index `idx` of `node` and everything behind it (by the eviction order, nothing is)."""
        for child in list(node.children.values()):
            self._cut(child, child.start // self._page_len)
        ensure(node.locks == 0, f"a locked radix node [{node.start}, {node.end}) would be evicted")
        kept = max(0, idx - node.start // self._page_len)
        for group, owned in enumerate(node.pages):
            for page in owned[kept:]:
                self._disown(group, page)
            del owned[kept:]
        end = idx * self._page_len
        if end > node.start:
            node.tokens = node.tokens[: end - node.start].copy()
        else:
            self._remove(node)

    def _remove(self, node: RadixNode) -> None:
        """Take a leaf without pages out of the tree, and the tail of its parent that was in its first page."""
        parent = node.parent
        if parent is None or parent.children.get(int(node.tokens[0])) is not node:
            return
        del parent.children[int(node.tokens[0])]
        node.parent = None
        if parent.children:
            return
        if parent.parent is None:
            self._prune(parent)
        elif parent.end % self._page_len:
            self._cut(parent, parent.end // self._page_len)
        else:
            self._prune(parent)

    def _prune(self, node: RadixNode) -> None:
        """Remove `node` if it is an unlocked leaf that holds no page any more."""
        if node.locks or node.children:
            return
        if node.parent is None:
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]
        elif not self._has_full_group and all(page == NO_PAGE for owned in node.pages for page in owned):
            self._remove(node)

    # -- for the accounting -----------------------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode]:
        """Yield every node, roots included; not to be mutated."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def held_pages(self) -> Iterator[tuple[int, PageId]]:
        """Yield every held page once per owner, as (group, page)."""
        for node in self.nodes():
            for group, owned in enumerate(node.pages):
                yield from ((group, page) for page in owned if page != NO_PAGE)

    def check(self) -> list[str]:
        """Re-derive the invariants of every node; return what does not hold."""
        problems = [problem for node in self.nodes() for problem in node_problems(node, self._spec)]
        for node in self.nodes():
            for group, owned in enumerate(node.pages):
                problems += [
                    f"group {group}: page {page} lies in [{node.start}, {node.end}) and is entered elsewhere"
                    for page in owned
                    if page != NO_PAGE and self._owners[group][page] is not node
                ]
        return problems
