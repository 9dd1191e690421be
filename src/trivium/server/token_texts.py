"""Tokens as the API shows them in logprobs: text, exact bytes, and offsets into the answer's text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from trivium.sampling.batch import TokenLogprobs
from trivium.server.ports import TokenizerPort
from trivium.server.shapes import ChatTokenAlternative, ChatTokenLogprob, CompletionLogprobs


class TokenTexts:
    """Bytes and text of single tokens, remembered."""

    def __init__(self, tokenizer: TokenizerPort) -> None:
        self.tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id of a padded vocabulary that has no text."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self.tokenizer.token_bytes(token_id)
            self._bytes[token_id] = known
        return known

    def text_of(self, token_id: int) -> str:
        """Return the text of a token; bytes that are no UTF-8 by themselves become U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def label_of(self, token_id: int) -> str:
        r"""Return a text that tells tokens apart: `bytes:\x80` for what is no UTF-8 by itself, as OpenAI writes it."""
        spelled = self.bytes_of(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def chat_entry(self, entry: TokenLogprobs, num_top: int) -> ChatTokenLogprob:
        """Show one token in the chat API's shape."""
        alternatives = [
            ChatTokenAlternative(self.text_of(token_id), logprob, list(self.bytes_of(token_id)))
            for token_id, logprob in zip(entry.top_ids[:num_top], entry.top_logprobs[:num_top], strict=True)
        ]
        token_id = entry.token_id
        return ChatTokenLogprob(self.text_of(token_id), entry.logprob, list(self.bytes_of(token_id)), alternatives)

    def completion_top(self, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
        """Show one token's alternatives, itself included, in the completions API's shape."""
        shown: dict[str, float] = {}
        for token_id, logprob in zip(entry.top_ids[:num_top], entry.top_logprobs[:num_top], strict=True):
            shown.setdefault(self.label_of(token_id), logprob)
        shown.setdefault(self.label_of(entry.token_id), entry.logprob)
        return shown

    def prompt_entries(self, entries: Sequence[TokenLogprobs | None], num_top: int) -> list[dict[str, Any] | None]:
        """Show prompt logprobs in vLLM's shape: per position, token id to logprob, rank and text."""
        return [None if entry is None else self._prompt_entry(entry, num_top) for entry in entries]

    def _prompt_entry(self, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
        ranked = list(zip(entry.top_ids[:num_top], entry.top_logprobs[:num_top], strict=True))
        shown = {
            str(token_id): {"logprob": logprob, "rank": idx + 1, "decoded_token": self.text_of(token_id)}
            for idx, (token_id, logprob) in enumerate(ranked)
        }
        own = {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": self.text_of(entry.token_id)}
        shown.setdefault(str(entry.token_id), own)
        return shown


class CompletionScores:
    """Builds a choice's `logprobs` object of the completions API, piece by piece.

    ::

        tokens        "Hé" = 48 c3 | a9 | "llo"       text   H é l l o
        text_offset   0            | 1  | 2                  0 1 2 3 4

    A token begins at the character that its first byte belongs to, so offsets come from decoding all bytes in a row.
    """

    def __init__(self, texts: TokenTexts, num_top: int, *, skip_special_tokens: bool) -> None:
        self._texts = texts
        self._num_top = num_top
        self._skips_special = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def answer(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Show drawn tokens, which follow whatever was shown before."""
        shown = CompletionLogprobs([], [], [], [])
        for entry in entries:
            self._add(shown, entry)
        return shown

    def prompt_then_answer(
        self,
        prompt_text: str,
        prompt_ids: Sequence[int],
        prompt_entries: Sequence[TokenLogprobs | None],
        entries: Sequence[TokenLogprobs],
    ) -> CompletionLogprobs:
        """Show an echoed prompt, one entry per token and the first without a logprob, and the first drawn tokens."""
        shown = CompletionLogprobs([], [], [], [])
        for token_id, scored in zip(prompt_ids, prompt_entries, strict=True):
            self._append(shown, token_id, scored)
            self._num_chars += self._num_echoed(prompt_text, token_id)
        self._num_chars = len(prompt_text)
        for entry in entries:
            self._add(shown, entry)
        return shown

    def _num_echoed(self, prompt_text: str, token_id: int) -> int:
        """Characters that a prompt token has in the echoed text: none, or one less, where the tokenizer added some."""
        piece = self._decoder.decode(self._texts.bytes_of(token_id))
        if prompt_text.startswith(piece, self._num_chars):
            return len(piece)
        if self._texts.tokenizer.is_special(token_id):
            return 0
        return len(piece.removeprefix(" "))

    def _add(self, shown: CompletionLogprobs, entry: TokenLogprobs) -> None:
        self._append(shown, entry.token_id, entry)
        if not (self._skips_special and self._texts.tokenizer.is_special(entry.token_id)):
            self._num_chars += len(self._decoder.decode(self._texts.bytes_of(entry.token_id)))

    def _append(self, shown: CompletionLogprobs, token_id: int, entry: TokenLogprobs | None) -> None:
        shown.text_offset.append(self._num_chars)
        shown.tokens.append(self._texts.label_of(token_id))
        shown.token_logprobs.append(None if entry is None else entry.logprob)
        shown.top_logprobs.append(None if entry is None else self._texts.completion_top(entry, self._num_top))
