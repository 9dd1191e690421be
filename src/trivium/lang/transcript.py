"""The text of a state, and the tokens that stand for it.

What a model has read or written keeps its tokens, so that every later prompt extends the earlier one and finds all of
it in the prefix cache. Constants wait as text until a model reads them: neighbours are cut into tokens together, as if
they had been written as one. ::

    text     The capital of France is Paris. Its river is
    ids      [read          ][written]
    pending                          ". Its river is"      cut when the next gen or select runs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer

_LINE_BREAK = "\n"


class Codec(Protocol):
    """What cuts texts into tokens."""

    prefix: tuple[int, ...]
    """Put before a text that is not written by a chat template."""

    def encode(self, text: str, *, continues: bool) -> list[int]:
        """Cut a text; `continues` says whether another one stands before it."""
        ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return what a token adds to the text; `None` for special ones."""
        ...


class TokenCodec:
    """The codec of a model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.prefix: tuple[int, ...] = tokenizer.special.prefix

    def encode(self, text: str, *, continues: bool) -> list[int]:
        """Cut a text; one that continues another gets no space of its own before its first word."""
        if continues and self._tokenizer.drops_first_space:
            before, whole = self._cut(_LINE_BREAK), self._cut(_LINE_BREAK + text)
            if whole[: len(before)] == before:
                return whole[len(before) :]
        return self._cut(text)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return what a token adds to the text; `None` for special ones."""
        return None if self._tokenizer.is_special(token_id) else self._tokenizer.token_bytes(token_id)

    def _cut(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


@dataclass(slots=True, kw_only=True)
class Transcript:
    """Text and tokens of one state."""

    codec: Codec
    text: str = ""
    ids: list[int] = field(default_factory=list)
    pending: str = ""
    """The end of `text` that has no tokens yet."""
    is_framed: bool = False
    """Whether a chat template writes the begin token."""

    def fork(self) -> Transcript:
        """Return one that goes on from here by itself."""
        return replace(self, ids=list(self.ids))

    def append(self, text: str) -> None:
        """Append a constant."""
        self.text += text
        self.pending += text

    def prompt_ids(self, more: str = "") -> list[int]:
        """Return the tokens of the text, followed by `more`."""
        text = self.pending + more
        before = self.ids or ([] if self.is_framed else list(self.codec.prefix))
        if not text:
            return list(before)
        cut = self.codec.encode(text, continues=bool(self.ids))
        if not self.ids and before and cut[: len(before)] == before:
            return cut  # the text spells the begin token itself
        return [*before, *cut]

    def take_answer(self, prompt_ids: Sequence[int], token_ids: Sequence[int], text: str) -> None:
        """Append what a model wrote behind `prompt_ids`: its tokens as far as the text goes with them.

        A stop text may have cut it inside a token; what is left then waits as a constant does.
        """
        added = list(takewhile(lambda each: each is not None, map(self.codec.token_bytes, token_ids)))
        for kept in range(len(added), -1, -1):
            spelled = b"".join(each or b"" for each in added[:kept]).decode("utf-8", "replace")
            if text.startswith(spelled):
                self.ids = [*prompt_ids, *token_ids[:kept]]
                self.pending = text[len(spelled) :]
                break
        self.text += text

    def with_choices(self, choices: Sequence[str]) -> tuple[int, list[list[int]]]:
        """Return the tokens of the text with each choice, and how many of them precede every choice."""
        prompt = self.prompt_ids()
        rows = [self.prompt_ids(choice) for choice in choices]
        return min(_common_len(prompt, row) for row in rows), rows

    def take_choice(self, ids: Sequence[int], choice: str) -> None:
        """Append a choice with the tokens that it was scored with."""
        self.ids, self.pending = list(ids), ""
        self.text += choice


def _common_len(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
