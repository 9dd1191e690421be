"""How a model would write a forbidden text: its spellings as token ids, for the sampler to forbid.

A text is spelled differently at the beginning of a word than after a space, so both count. Spellings that the
encoder would not choose (a word cut at odd places) are not covered, as in every engine that works on tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    found = [_spell_inside(tokenizer, word)]
    if not word[:1].isspace():
        found.append(_spell_inside(tokenizer, f" {word}"))
    return tuple(dict.fromkeys(spelling for spelling in found if spelling))


def _spell_inside(tokenizer: Tokenizer, text: str) -> Spelling:
    """Encode `text` as it stands in the middle of a text, without the space that some tokenizers put first.

    Where a tokenizer begins every text with a space, a line break in front takes that space; the ids behind it spell
    the text. Where the break merges with the text there is no such cut, and the text is encoded on its own.
    """
    if not tokenizer.drops_first_space:
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    anchor = tokenizer.encode("\n", add_special_tokens=False)
    anchored = tokenizer.encode(f"\n{text}", add_special_tokens=False)
    if anchored[: len(anchor)] == anchor:
        return tuple(anchored[len(anchor) :])
    return tuple(tokenizer.encode(text, add_special_tokens=False))
