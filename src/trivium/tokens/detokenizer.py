"""`Detokenizer`: ids to text while they come, exact to the byte.

A token may hold part of a character. Text is given out when its bytes can't change any more: a character when its
last byte came, U+FFFD when no continuation could make the bytes a character. Joined, the pieces are what `decode`
gives for all ids at once.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from trivium.tokens.tokenizer import Tokenizer


class DetokenizerState(NamedTuple):
    """Everything a detokenizer remembers; immutable, at most three bytes and a flag."""

    pending: bytes
    """The beginning of a character, whose end has not come yet."""
    is_at_start: bool
    """Whether no byte has come yet, so that a leading space is dropped where the tokenizer puts one."""


_CLEAR = DetokenizerState(b"", is_at_start=False)
"""Between two characters, where a detokenizer nearly always is: there an id of whole characters always has one text."""


class Detokenizer:
    """Turns one sequence of ids into text, piece by piece.

    Invariants:
        All pieces joined equal `tokenizer.decode` of all ids, when `continues` is false.
        No piece ends inside a character or holds U+FFFD for bytes that may still become one.
    """

    __slots__ = ("_known_texts", "_shown_ids", "_skips_special", "_state", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown_ids: Collection[int] = (),
    ) -> None:
        """Start before the first id.

        Args:
            tokenizer: Knows the bytes of ids.
            skip_special_tokens: Leave out the text of special tokens.
            continues: The ids continue a text (an answer continues its prompt), so a leading space is theirs.
            shown_ids: Special tokens that are not left out.
        """
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._shown_ids = frozenset(shown_ids) if skip_special_tokens else frozenset()
        self._known_texts = tokenizer.known_texts(skip_special_tokens=skip_special_tokens)
        self.restore(DetokenizerState(b"", is_at_start=tokenizer.drops_first_space and not continues))

    @property
    def state(self) -> DetokenizerState:
        """What `restore` needs to come back to this moment; the same object as long as nothing has changed."""
        return self._state

    def restore(self, state: DetokenizerState) -> None:
        """Go back to a moment that `state` was taken at."""
        self._state = _CLEAR if state == _CLEAR else state

    def push(self, token_id: int) -> str:
        """Take one id and return the text that became certain, perhaps none."""
        text = self._known_texts.get(token_id) if self._state is _CLEAR else None
        return self._read(token_id) if text is None else text

    def finish(self) -> str:
        """Return U+FFFD if the ids ended inside a character; the next id starts afresh."""
        text = self._state.pending.decode("utf-8", "replace")
        self.restore(self._state._replace(pending=b""))
        return text

    def _read(self, token_id: int) -> str:
        is_shown = token_id in self._shown_ids
        if self._skips_special and not is_shown and self._tokenizer.is_special(token_id):
            return ""
        added = self._tokenizer.token_bytes(token_id)
        pending, is_at_start = self._state
        if is_at_start and added:
            is_at_start = False
            added = added.removeprefix(b" ")
        spelled = pending + added
        text, num_read = codecs.utf_8_decode(spelled, "replace", False)  # noqa: FBT003 -- not final: more may come
        if self._state is _CLEAR and num_read == len(spelled) and "\ufffd" not in text and not is_shown:
            self._known_texts[token_id] = text
        self.restore(DetokenizerState(spelled[num_read:], is_at_start))
        return text
