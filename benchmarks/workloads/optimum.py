"""The least work that a set of prompts is, by a trie that knows nothing of pages, orders or memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def distinct_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Count the nodes of the tree of prompts: tokens that differ in themselves or in what comes before them."""
    children: dict[tuple[int, int], int] = {}
    for prompt in prompts:
        node = 0
        for token in prompt:
            node = children.setdefault((node, token), len(children) + 1)
    return len(children)


def least_prefilled(prompts: Sequence[Sequence[int]]) -> int:
    """Return how few prompt tokens must be computed: every distinct one once, and one more per repeated prompt.

    An answer begins at its prompt's last token, which has to run even when its KV is there. So a prompt that was asked
    before costs one token, and so does one that is the beginning of another only when it comes later than that; here it
    is taken to come first.
    """
    repeats = sum(count - 1 for count in Counter(map(tuple, prompts)).values())
    return distinct_tokens(prompts) + repeats
