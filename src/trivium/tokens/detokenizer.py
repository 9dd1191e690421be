"""`Detokenizer`: ids to text while they come, exact to the byte.

A token may hold part of a character. Text is given out when its bytes can't change any more: a character when its
last byte came, U+FFFD when no continuation could make the bytes a character. Joined, the pieces are what `decode`
gives for all ids at once.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class DetokenizerState(NamedTuple):
    """Everything a detokenizer remembers; immutable, at most three bytes and a flag."""

    pending: bytes
    """The beginning of a character, whose end has not come yet."""
    is_at_start: bool
    """Whether no byte has come yet, so that a leading space is dropped where the tokenizer puts one."""


class Detokenizer:
    """Turns one sequence of ids into text, piece by piece.

    Invariants:
        All pieces joined equal `tokenizer.decode` of all ids, when `continues` is false.
        No piece ends inside a character or holds U+FFFD for bytes that may still become one.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues: bool = False) -> None:
        """Start before the first id.

        Args:
            tokenizer: Knows the bytes of ids.
            skip_special_tokens: Leave out the text of special tokens.
            continues: The ids continue a text (an answer continues its prompt), so a leading space is theirs.
        """
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._decoder = _UTF8("replace")
        self._is_at_start = tokenizer.drops_first_space and not continues

    @property
    def state(self) -> DetokenizerState:
        """What `restore` needs to come back to this moment."""
        return DetokenizerState(self._decoder.getstate()[0], self._is_at_start)

    def restore(self, state: DetokenizerState) -> None:
        """Go back to a moment that `state` was taken at."""
        self._decoder.setstate((state.pending, 0))
        self._is_at_start = state.is_at_start

    def push(self, token_id: int) -> str:
        """Take one id and return the text that became certain, perhaps none."""
        if self._skips_special and self._tokenizer.is_special(token_id):
            return ""
        added = self._tokenizer.token_bytes(token_id)
        if self._is_at_start and added:
            self._is_at_start = False
            added = added.removeprefix(b" ")
        return self._decoder.decode(added)

    def finish(self) -> str:
        """Return U+FFFD if the ids ended inside a character; the next id starts afresh."""
        return self._decoder.decode(b"", final=True)
