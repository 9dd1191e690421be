"""One node of the radix tree: an interval of tokens and the pages that it owns."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.spec import KVSpec

if TYPE_CHECKING:
    from trivium.cache.prefix import TokenArray


class RadixNode:
    """Tokens [start, end) of every sequence that runs through this node. `RadixTree` alone changes it."""

    __slots__ = ("children", "locks", "namespace", "pages", "parent", "start", "tokens")

    def __init__(
        self, tokens: TokenArray, start: int, pages: tuple[list[PageId], ...], parent: RadixNode | None
    ) -> None:
        self.tokens = tokens
        self.start = start
        self.pages = pages
        """Per group, the owned pages from page index `start // page_len` on."""
        self.parent = parent
        self.children: dict[int, RadixNode] = {}
        """By their first token."""
        self.locks = 0
        """Requests whose computed whole pages end where this node ends."""
        self.namespace: Hashable = None
        """Set in roots only."""

    @classmethod
    def root(cls, namespace: Hashable, num_groups: int) -> RadixNode:
        """Make the empty node above all sequences of a namespace."""
        node = cls(np.zeros(0, np.int32), 0, tuple([] for _ in range(num_groups)), None)
        node.namespace = namespace
        return node

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)


def common_len(left: TokenArray, right: TokenArray) -> int:
    """Return how many leading tokens two arrays have in common."""
    count = min(len(left), len(right))
    differs = left[:count] != right[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count


def node_problems(node: RadixNode, spec: KVSpec) -> list[str]:
    """Compare a node with what the drawing in `radix` promises; return what does not hold."""
    name = f"node [{node.start}, {node.end})"
    problems = []
    last = node.end // spec.page_len if node.children else ceil_div(node.end, spec.page_len)
    expected = last - node.start // spec.page_len
    for group, owned in enumerate(node.pages):
        if len(owned) != expected:
            problems.append(f"{name} owns {len(owned)} pages of group {group} and should own {expected}")
    for first, child in node.children.items():
        if child.parent is not node or child.start != node.end or int(child.tokens[0]) != first:
            problems.append(f"{name} has a child at {child.start} that does not continue it")
    if node.parent is not None and len(node.tokens) == 0:
        problems.append(f"{name} is empty")
    if node.locks < 0 or (node.locks and node.end % spec.page_len):
        problems.append(f"{name} has {node.locks} locks and does not end at a page boundary")
    return problems
