"""Constraints on output tokens, by the library llguidance behind a narrow seam.

::

    StructuredOutputs ─ source_of ─► grammar ─ compile ─► Grammar ─ start ─► Matcher, one per answer
                                                  ▲
    Tokenizer ─ Vocabulary ───────────────────────┘

The library refuses what it cannot enforce, by name. Where it knows the next bytes it allows their canonical token only,
so that to append forced tokens without drawing them gives the same answer.
Source: github.com/guidance-ai/llguidance (MIT); Earley's parser over derivatives of regular expressions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance import gbnf_to_lark

from trivium.base.errors import InternalError, InvalidParameterError, ensure
from trivium.config.structured import StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from trivium.tokens.tokenizer import Tokenizer

ANY_OBJECT = '{"type":"object"}'

# Bounds on what one constraint may cost, in the library's units; times are its authors'.
_LEXER_FUEL = 1_000_000
"""To build the automaton of all terminals: 20 ms."""
_STEP_FUEL = 200_000
"""Of the terminals, for one mask: 14 ms."""
_STEP_ITEMS = 50_000
"""Of the parser, for one mask: 3 ms."""
_LEXER_STATES = 20_000
"""About 40 MB."""
_GRAMMAR_SIZE = 200_000
"""Symbols of all rules."""


class _Encoder:
    """A tokenizer as the library wants it."""

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = list(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Vocabulary:
    """The bytes of a model's tokens, prepared once for all constraints."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int], *, vocab_size: int) -> None:
        """Read every token's bytes; takes a tenth of a second per 50,000.

        Args:
            tokenizer: Knows them.
            end_ids: Tokens with which a sentence of the grammar ends; at least one.
            vocab_size: Number of logits; those of no token are never allowed.

        Raises:
            InternalError: There is no end token.
        """
        ensure(end_ids, "a constraint needs an end token")
        first, *_ = end_ids
        wrapped = llguidance.TokenizerWrapper(_Encoder(tokenizer, first))
        self._inner = llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(end_ids))
        self._limits = llguidance.LLParserLimits(
            initial_lexer_fuel=_LEXER_FUEL,
            step_lexer_fuel=_STEP_FUEL,
            step_max_items=_STEP_ITEMS,
            max_lexer_states=_LEXER_STATES,
            max_grammar_size=_GRAMMAR_SIZE,
            verbose_errors=False,
        )
        self.mask_words = (vocab_size + 31) // 32

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """Turn a constraint into a grammar; other threads run meanwhile.

        Raises:
            InvalidParameterError: It is not well-formed, asks for what cannot be enforced, or is too large; the message
                has the library's reason.
        """
        matcher = llguidance.LLMatcher(self._inner, source_of(wanted), log_level=0, limits=self._limits)
        if matcher.is_error():
            reason = matcher.get_error().strip()
            raise InvalidParameterError(f"{wanted.kind} cannot be enforced: {reason}", param=wanted.kind)
        return Grammar(matcher, self.mask_words)


class Grammar:
    """A compiled constraint, of which answers are read side by side."""

    def __init__(self, matcher: Any, mask_words: int) -> None:
        self._start = matcher
        self._mask_words = mask_words

    def start(self) -> Matcher:
        """Return a matcher at the beginning of an answer."""
        return Matcher(self._start.deep_copy(), self._mask_words)


class Matcher:
    """Where one answer stands in its grammar."""

    __slots__ = ("_inner", "_mask_words")

    def __init__(self, inner: Any, mask_words: int) -> None:
        self._inner = inner
        self._mask_words = mask_words

    @property
    def is_accepting(self) -> bool:
        """Whether what was read is a whole sentence, so that the answer may end."""
        return bool(self._inner.is_accepting())

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but an end token."""
        return bool(self._inner.is_stopped())

    def allows(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after the other, may come next."""
        return int(self._inner.validate_tokens(list(token_ids)))

    def advance(self, token_id: int) -> None:
        """Read a token.

        Raises:
            InternalError: The grammar does not allow it, or has grown beyond its limits.
        """
        if not self._inner.consume_token(token_id):
            raise InternalError(f"token {token_id} is against the grammar: {self._inner.get_error()}")

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Set the bit of every token that may come next, bit t % 32 of word t // 32, and clear all others.

        Raises:
            InternalError: The grammar has grown beyond its limits.
        """
        ensure(
            mask.shape == (self._mask_words,) and mask.dtype == np.uint32 and mask.flags.c_contiguous,
            f"a mask is {mask.dtype} {mask.shape}, not uint32 ({self._mask_words},)",
        )
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._inner.is_error():
            raise InternalError(f"the grammar went beyond its limits: {self._inner.get_error()}")

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as far as they are known; drawing them would change nothing."""
        return list(self._inner.compute_ff_tokens())

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens read.

        Raises:
            InternalError: Fewer were read.
        """
        if num_tokens and not self._inner.rollback(num_tokens):
            raise InternalError(f"cannot take back {num_tokens} tokens: {self._inner.get_error()}")

    def fork(self) -> Matcher:
        """Return a matcher at the same place that goes on independently."""
        return Matcher(self._inner.deep_copy(), self._mask_words)


def source_of(wanted: StructuredOutputs) -> str:
    """Return a constraint in the library's own notation.

    Raises:
        InvalidParameterError: A grammar in llama.cpp's notation cannot be read.
    """
    from_schema = llguidance.LLMatcher.grammar_from_json_schema
    match wanted.kind:
        case "json":
            return str(from_schema(wanted.schema_text, overrides={"whitespace_flexible": wanted.any_whitespace}))
        case "json_object":
            return str(from_schema(ANY_OBJECT, overrides={"whitespace_flexible": wanted.any_whitespace}))
        case "regex":
            return str(llguidance.LLMatcher.grammar_from_regex(wanted.regex or ""))
        case "choice":
            return "start: " + " | ".join(json.dumps(each) for each in wanted.choice or ())
        case _:
            return _lark_of(wanted.grammar or "")


def _lark_of(text: str) -> str:
    """Return a grammar in Lark's notation; llama.cpp's is known by its `::=`."""
    if "::=" not in text:
        return str(llguidance.LLMatcher.grammar_from_lark(text))
    try:
        return str(llguidance.LLMatcher.grammar_from_lark(gbnf_to_lark.any_to_lark(text)))
    except Exception as error:  # the library's reader of GBNF raises whatever it meets
        raise InvalidParameterError(f"grammar is no GBNF: {error}", param="grammar") from None
