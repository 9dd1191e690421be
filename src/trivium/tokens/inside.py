"""Texts as they stand in the middle of a text: without what a tokenizer puts before the first word."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer


def spell_inside(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode `text` as it stands in the middle of a text, without the space that some tokenizers put first.

    Where a tokenizer begins every text with a space, a line break in front takes that space; the ids behind it spell
    the text. Where the break merges with the text there is no such cut, and the text is encoded on its own.
    """
    if not tokenizer.drops_first_space:
        return tokenizer.encode(text, add_special_tokens=False)
    anchor = tokenizer.encode("\n", add_special_tokens=False)
    anchored = tokenizer.encode(f"\n{text}", add_special_tokens=False)
    if anchored[: len(anchor)] == anchor:
        return anchored[len(anchor) :]
    return tokenizer.encode(text, add_special_tokens=False)


class ExactSpeller:
    """Spells texts so that the bytes of the tokens are exactly those of the text, and none of them is special.

    An encoder need not do that: it may normalise, find special tokens written out, or know no token for a letter. What
    it spells otherwise is spelled by the longest tokens, from the left.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.special_ids)

    def spell(self, text: str) -> list[int]:
        """Return the ids that write `text`; bytes that no token has are left out."""
        spelled, wanted = spell_inside(self._tokenizer, text), text.encode("utf-8", "replace")
        is_plain = self._special_ids.isdisjoint(spelled)
        if is_plain and b"".join(map(self._tokenizer.token_bytes, spelled)) == wanted:
            return spelled
        return self._spell_by_longest(wanted)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        known = ((self._tokenizer.token_bytes(id_), id_) for id_ in range(self._tokenizer.vocab_size))
        return {text: id_ for text, id_ in reversed(list(known)) if text and id_ not in self._special_ids}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    def _spell_by_longest(self, wanted: bytes) -> list[int]:
        spelled: list[int] = []
        start = 0
        while start < len(wanted):
            ends = range(min(len(wanted), start + self._longest), start, -1)
            end = next((end for end in ends if wanted[start:end] in self._ids), None)
            if end is not None:
                spelled.append(self._ids[wanted[start:end]])
            start = end or start + 1
        return spelled
