"""Claims: the paths of an open program, which are dropped after all that nobody claims.

A claim is a wish, not a lock: what is claimed stays evictable, so admission counts with it, and where everything is
claimed the policy decides among the claims. Only the ends of paths need one, since eviction takes leaves::

    root ── system prompt ─┬─ turn 1 ── turn 2 ◄ claimed by program a      evicted first: c's path, then b's tail;
                           ├─ turn 1 ◄ claimed by b                        a's and b's only when nothing else is left
                           └─ turn 1 (c has ended)

When a claimed node is evicted nevertheless, its parent takes the claim over. In windowed groups pages go one by one, so
there the nodes that share the window with the path's end are claimed too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivium.cache.node import RadixNode


class Claim:
    """The nodes that one program claims. `RadixTree` and its shrinker alone change it."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: set[RadixNode] = set()

    def enter(self, node: RadixNode) -> None:
        """Claim a node."""
        self.nodes.add(node)
        node.claims = {self} if node.claims is None else node.claims | {self}

    def leave(self, node: RadixNode) -> None:
        """Let a claimed node go."""
        self.nodes.discard(node)
        node.claims = ((node.claims or set()) - {self}) or None

    def move_to(self, node: RadixNode, reach: int, on_left: Callable[[RadixNode], None]) -> None:
        """Claim the path that ends with `node`; what it claimed of the same path before is let go.

        Args:
            node: No root.
            reach: Nodes whose end is nearer than this to the path's end are claimed too: the widest window.
            on_left: Told of nodes that are let go.

        Cost: O(nodes on the path).
        """
        self.enter(node)
        above = node.parent
        while above is not None and above.parent is not None:
            if node.end - above.end < reach:
                self.enter(above)
            elif above.claims is not None and self in above.claims:
                self.leave(above)
                on_left(above)
            above = above.parent


def pass_up(node: RadixNode) -> None:
    """Let the parent of a node take its claims over; a root takes none."""
    parent = node.parent
    for claim in tuple(node.claims or ()):
        claim.leave(node)
        if parent is not None and parent.parent is not None:
            claim.enter(parent)


def claim_problems(node: RadixNode) -> list[str]:
    """Return what does not hold of a node's claims."""
    return [
        f"node [{node.start}, {node.end}) is claimed by somebody who does not know it"
        for claim in node.claims or ()
        if node not in claim.nodes
    ]
