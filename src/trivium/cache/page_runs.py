"""What the radix tree tells those who follow it: which full pages it has come to know, and which it forgets.

A run is consecutive full pages of one node. Keys (see `page_keys`) lie beside the pages in the nodes, and only when
someone listens::

    page_len 4       page 0     page 1     page 2
    node [2, 10)         . .    a b c d    e f . .
    keys             those of pages 0 and 1: the ones whose last token is in the node
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trivium.base.errors import InternalError
from trivium.base.ids import PageId
from trivium.cache.node import TOKEN_BYTES, RadixNode
from trivium.cache.page_keys import page_keys, root_key
from trivium.cache.pages import NO_PAGE

if TYPE_CHECKING:
    from trivium.cache.prefix import TokenArray


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive full pages of one sequence of tokens."""

    namespace: Hashable
    first: int
    """Index of the first page: the run begins at token `first * page_len`."""
    before: bytes
    """Key of the page before the first, or the namespace's root key."""
    keys: Sequence[bytes]
    tokens: TokenArray
    """[len(keys) * page_len]"""
    pages: tuple[Sequence[PageId], ...]
    """Per KV group, the pages that hold them; `NO_PAGE` where the group does not. They keep their bytes until a step
    that comes later writes to them."""


class PageListener(Protocol):
    """Whoever follows what the prefix index holds; called within its changes, so it must not call it back."""

    def stored(self, run: PageRun) -> None:
        """Full pages have entered the index."""
        ...

    def removed(self, run: PageRun) -> None:
        """Full pages leave the index; their bytes are still there."""
        ...


class PageFollower(PageListener, Protocol):
    """A listener that is told of every single page which leaves, also of those that only a window loses."""

    def dropped(self, group: int, pages: Sequence[PageId]) -> None:
        """Pages of one KV group leave the index, full or not; their bytes are still there."""
        ...


def enter_root(root: RadixNode) -> None:
    """Give a root its key; for the pages below, it stands where the key of a page before would."""
    root.keys = [root_key(root.namespace)]


def extend_keys(node: RadixNode, page_len: int) -> int:
    """Give a node that has grown the keys of its new full pages; return how many it had."""
    num_known = len(node.keys)
    first = node.start // page_len + num_known
    if first < node.end // page_len:
        node.keys += page_keys(_key_before(node, num_known), _tokens_from(node, first * page_len), page_len)
    return num_known


def run_of(node: RadixNode, kept: int, page_len: int) -> PageRun | None:
    """Describe the full pages of a node behind its first `kept` ones; `None` when there are none."""
    if kept >= len(node.keys):
        return None
    first = node.start // page_len + kept
    count = len(node.keys) - kept
    data = _tokens_from(node, first * page_len)[: count * page_len * TOKEN_BYTES]
    return PageRun(
        namespace=_root_of(node).namespace,
        first=first,
        before=_key_before(node, kept),
        keys=node.keys[kept:],
        tokens=np.frombuffer(data, np.int32),
        pages=tuple(owned[kept : len(node.keys)] for owned in node.pages),
    )


def page_of(node: RadixNode, idx: int, group: int, page_len: int) -> PageRun | None:
    """Describe the page at index `idx` of a node in one group; `None` when it is not full."""
    at = idx - node.start // page_len
    if at >= len(node.keys):
        return None
    return PageRun(
        namespace=_root_of(node).namespace,
        first=idx,
        before=_key_before(node, at),
        keys=node.keys[at : at + 1],
        tokens=np.frombuffer(_tokens_from(node, idx * page_len)[: page_len * TOKEN_BYTES], np.int32),
        pages=tuple(owned[at : at + 1] if each == group else [NO_PAGE] for each, owned in enumerate(node.pages)),
    )


def _root_of(node: RadixNode) -> RadixNode:
    while node.parent is not None:
        node = node.parent
    return node


def _key_before(node: RadixNode, at: int) -> bytes:
    """Return the key of the page before the page at `at` of `node`'s own, or the root key."""
    if at:
        return node.keys[at - 1]
    above = node.parent
    while above is not None and not above.keys:
        above = above.parent
    if above is None:
        raise InternalError(f"no key leads to node [{node.start}, {node.end}): someone listens who came too late")
    return above.keys[-1]


def _tokens_from(node: RadixNode, position: int) -> bytes:
    """Return the tokens from `position` on to the end of `node`; those before it lie in nodes above."""
    if position >= node.start:
        return node.data[(position - node.start) * TOKEN_BYTES :]
    parts = [node.data]
    start = node.start
    above = node.parent
    while start > position and above is not None:
        parts.append(above.data)
        start = above.start
        above = above.parent
    data = b"".join(reversed(parts))
    return data[(position - start) * TOKEN_BYTES :]
