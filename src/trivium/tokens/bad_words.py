"""How a model would write a forbidden text: its spellings as token ids, for the sampler to forbid.

A text is spelled differently at the beginning of a word than after a space, so both count. Spellings that the
encoder would not choose (a word cut at odd places) are not covered, as in every engine that works on tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.tokens.inside import spell_inside

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer

Spelling = tuple[int, ...]


def spellings(tokenizer: Tokenizer, word: str) -> tuple[Spelling, ...]:
    """Return the id sequences that write `word` inside a text, with and without a space before it.

    Args:
        tokenizer: Cuts the text.
        word: Any text; leading and trailing white space counts as given.

    Returns:
        One or two different spellings, each of at least one id; none when `word` is empty.
    """
    found = [tuple(spell_inside(tokenizer, word))]
    if not word[:1].isspace():
        found.append(tuple(spell_inside(tokenizer, f" {word}")))
    return tuple(dict.fromkeys(spelling for spelling in found if spelling))
