"""The least work that a set of prompts is, by a trie that knows nothing of pages, orders or memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class KnownBeginnings:
    """The tree of the sequences that were there; knows how much of a new one is in it."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def add(self, sequence: Sequence[int]) -> int:
        """Enter a sequence; return how many of its first tokens were there."""
        node, found = 0, 0
        for token in sequence:
            known = len(self._children)
            node = self._children.setdefault((node, token), known + 1)
            found += len(self._children) == known
        return found

    def __len__(self) -> int:
        """Return the tokens that differ in themselves or in what comes before them."""
        return len(self._children)


def distinct_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Count the nodes of the tree of prompts: tokens that differ in themselves or in what comes before them."""
    known = KnownBeginnings()
    for prompt in prompts:
        known.add(prompt)
    return len(known)


def least_prefilled(prompts: Sequence[Sequence[int]]) -> int:
    """Return how few prompt tokens must be computed: every distinct one once, and one more per repeated prompt.

    An answer begins at its prompt's last token, which has to run even when its KV is there. So a prompt that was asked
    before costs one token, and so does one that is the beginning of another only when it comes later than that; here it
    is taken to come first.
    """
    repeats = sum(count - 1 for count in Counter(map(tuple, prompts)).values())
    return distinct_tokens(prompts) + repeats
