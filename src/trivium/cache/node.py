"""One node of the radix tree: an interval of tokens and the pages that it owns."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.spec import KVSpec

if TYPE_CHECKING:
    from trivium.cache.claims import Claim
    from trivium.cache.prefix import TokenArray
    from trivium.cache.retain import Kept

TOKEN_BYTES = 4


class RadixNode:
    """Tokens [start, end) of every sequence that runs through this node. `RadixTree` alone changes it.

    Tokens are kept as bytes, int32 each: to compare a node with a prompt is then one comparison of memory, and a walk
    over a thousand short nodes stays cheap.
    """

    __slots__ = (
        "born", "children", "claims", "data", "end", "hits", "kept", "keys", "last_use", "locks", "namespace", "pages",
        "parent", "start",
    )  # fmt: skip

    def __init__(self, data: bytes, start: int, pages: tuple[list[PageId], ...], parent: RadixNode | None) -> None:
        self.data = data
        self.start = start
        self.end = start + len(data) // TOKEN_BYTES
        """Position behind the last token."""
        self.pages = pages
        """Per group, the owned pages from page index `start // page_len` on."""
        self.keys: list[bytes] = []
        """Those of its full pages, while someone listens (see `page_runs`); of a root, the root key."""
        self.parent = parent
        self.children: dict[int, RadixNode] = {}
        """By their first token."""
        self.locks = 0
        """Requests whose computed whole pages end where this node ends."""
        self.namespace: Hashable = None
        """Set in roots only."""
        self.last_use = 0
        """When the tree saw it used last, in uses of the tree."""
        self.born = 0
        """When it was entered, likewise."""
        self.hits = 0
        """Requests whose match ended with it, or with a node below it that has gone since."""
        self.kept: Kept | None = None
        """The priority that a request asked for, under the policy that heeds it."""
        self.claims: set[Claim] | None = None
        """Those of open programs whose paths end here; `None` where there are none."""

    @classmethod
    def root(cls, namespace: Hashable, num_groups: int) -> RadixNode:
        """Make the empty node above all sequences of a namespace."""
        node = cls(b"", 0, tuple([] for _ in range(num_groups)), None)
        node.namespace = namespace
        return node

    @property
    def tokens(self) -> TokenArray:
        """The tokens, as an array that cannot be written."""
        return np.frombuffer(self.data, np.int32)

    @property
    def first_token(self) -> int:
        """Under which the parent has it."""
        return int.from_bytes(self.data[:TOKEN_BYTES], sys.byteorder)

    def replace_tokens(self, data: bytes, start: int) -> None:
        """Hold `data` from `start` on instead."""
        self.data = data
        self.start = start
        self.end = start + len(data) // TOKEN_BYTES


def token_bytes(tokens: TokenArray) -> bytes:
    """Return tokens as nodes keep them."""
    return np.asarray(tokens, np.int32).tobytes()


def walk(node: RadixNode, data: bytes) -> tuple[list[RadixNode], int]:
    """Follow the tokens of `data` down from the end of `node`; return the nodes entered and the tokens matched.

    Cost: a dictionary look-up and a comparison of memory per node; only in the last one a difference is searched.
    """
    tokens = memoryview(data).cast("i")
    count, begin, at = len(tokens), node.end, 0
    starts_with = data.startswith
    path: list[RadixNode] = []
    while at < count:
        child = node.children.get(tokens[at])
        if child is None:
            break
        path.append(child)
        if not starts_with(child.data, at * TOKEN_BYTES):
            at += common_len(child.data, data[at * TOKEN_BYTES :])
            break
        at = child.end - begin
        node = child
    return path, at


def common_len(left: bytes, right: bytes) -> int:
    """Return how many leading tokens two runs of tokens have in common."""
    count = min(len(left), len(right)) // TOKEN_BYTES
    differs = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
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
        if child.parent is not node or child.start != node.end or child.first_token != first:
            problems.append(f"{name} has a child at {child.start} that does not continue it")
    if len(node.data) != (node.end - node.start) * TOKEN_BYTES:
        problems.append(f"{name} holds {len(node.data) // TOKEN_BYTES} tokens")
    if node.parent is not None and not node.data:
        problems.append(f"{name} is empty")
    num_keys = node.end // spec.page_len - node.start // spec.page_len
    if node.parent is not None and node.keys and len(node.keys) != num_keys:
        problems.append(f"{name} has {len(node.keys)} page keys and should have {num_keys}")
    if node.locks < 0 or (node.locks and node.end % spec.page_len):
        problems.append(f"{name} has {node.locks} locks and does not end at a page boundary")
    return problems
