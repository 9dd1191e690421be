"""Prompts of open requests as a tree: who shares how many leading tokens with whom.

Knows requests and their known tokens; neither pages nor what is cached::

    a b c d e       request 1        root ── [a b c] 3 ─┬─ [d e] 1 ── request 1
    a b c x         request 2                           ├─ [x] 1   ── request 2
    a b c           request 3                           └─ request 3 ends here
    q               request 4             └─ [q] 1      ── request 4

A node keeps its children ranked by the most requests that were ever below them at a time, so that nothing is sorted
anew, and a branch that was begun is walked to its end before another becomes the busiest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from trivium.cache.prefix import TokenArray
    from trivium.schedule.request import Request

_EMPTY = np.zeros(0, np.int32)


class _Node:
    """Tokens that all requests below have in common, behind those of the nodes above."""

    __slots__ = ("below", "children", "ending", "most", "parent", "ranked", "tokens")

    def __init__(self, tokens: TokenArray, parent: _Node | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.below: dict[Request, None] = {}
        """Requests that run through this node or end in it, in the order in which they came."""
        self.most = 0
        """The most requests that were below at a time."""
        self.ending: dict[Request, None] = {}
        self.children: dict[int, _Node] = {}
        """By first token."""
        self.ranked: list[tuple[int, int]] = []
        """(-most, first token) of every child, ascending."""


class PromptTree:
    """Known tokens of requests, as they were when they were added."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._ends: dict[Request, _Node] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, request: object) -> bool:
        return request in self._ends

    def add(self, request: Request) -> None:
        """Enter a request.

        Cost: O(tokens), vectorised per node.
        """
        ensure(request not in self._ends, f"{request.request_id} is in the tree of prompts already")
        node = self._roots.setdefault(request.namespace, _Node(_EMPTY, None))
        rest = request.known_array()
        node.below[request] = None
        while len(rest):
            child = node.children.get(int(rest[0]))
            if child is None:
                child = _Node(rest, node)
                node.children[int(rest[0])] = child
            else:
                shared = _common_len(child.tokens, rest)
                if shared < len(child.tokens):
                    child = _split(child, shared)
            _count(child, request)
            rest = rest[len(child.tokens) :]
            node = child
        node.ending[request] = None
        self._ends[request] = node

    def remove(self, request: Request) -> None:
        """Take a request out.

        Cost: O(nodes on its path).
        """
        node: _Node | None = self._ends.pop(request)
        del node.ending[request]  # type: ignore[union-attr]
        while node is not None:
            del node.below[request]
            if not node.below:
                if node.parent is not None:
                    first = int(node.tokens[0])
                    del node.parent.children[first]
                    del node.parent.ranked[bisect_left(node.parent.ranked, (-node.most, first))]
                else:
                    del self._roots[request.namespace]
            node = node.parent

    def longest_shared(self, request: Request) -> tuple[int, Request | None]:
        """Return how many leading tokens a request shares with others here, and which of them comes furthest.

        Of several that share as much, it is the one that has computed most. The request itself may be here or not.

        Cost: O(shared tokens), vectorised per node, and the requests that share them all.
        """
        node = self._roots.get(request.namespace)
        tokens = request.known_array()
        length, others = 0, None
        while node is not None:
            if node.parent is not None:
                shared = _common_len(node.tokens, tokens[length:])
                length += shared
            else:
                shared = 0
            others = node
            if shared < len(node.tokens) or length == len(tokens):
                break
            below = node.children.get(int(tokens[length]))
            if below is None or below.below.keys() <= {request}:
                break
            node = below
        if others is None or length == 0:
            return 0, None
        best = max((one for one in others.below if one is not request), key=lambda one: one.computed_len, default=None)
        return (length, best) if best is not None else (0, None)

    def walk(self) -> Iterator[Request]:
        """Yield all requests so that those which share most are neighbours: busiest branches first, depth first.

        The tree may not change meanwhile.
        """
        pending = sorted(self._roots.values(), key=lambda root: len(root.below))
        while pending:
            node = pending.pop()
            yield from node.ending
            pending.extend(node.children[first] for _, first in reversed(node.ranked))


def _count(node: _Node, request: Request) -> None:
    """Enter a request below a node, which moves to its new place among its siblings."""
    node.below[request] = None
    if node.parent is None or len(node.below) <= node.most:
        return
    ranked, first = node.parent.ranked, int(node.tokens[0])
    if node.most:
        del ranked[bisect_left(ranked, (-node.most, first))]
    node.most = len(node.below)
    insort(ranked, (-node.most, first))


def _split(node: _Node, at: int) -> _Node:
    """Cut a node behind its first `at` tokens and return the new upper part; the lower stays the same object."""
    parent = node.parent
    ensure(parent is not None and 0 < at < len(node.tokens), "a node of the tree of prompts is cut outside its tokens")
    first = int(node.tokens[0])
    upper = _Node(node.tokens[:at], parent)
    upper.below = dict(node.below)
    upper.most = node.most
    parent.children[first] = upper  # type: ignore[union-attr]
    node.tokens = node.tokens[at:]
    node.parent = upper
    upper.children[int(node.tokens[0])] = node
    upper.ranked.append((-node.most, int(node.tokens[0])))
    return upper


def _common_len(left: TokenArray, right: TokenArray) -> int:
    """Return how many leading tokens two arrays have in common."""
    count = min(len(left), len(right))
    differs = left[:count] != right[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count
