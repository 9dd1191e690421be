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
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance import gbnf_to_lark

from trivium.base.errors import ConstraintFailedError, InternalError, InvalidParameterError, ensure
from trivium.config.structural_tag import format_of
from trivium.config.structured import StructuredOutputs
from trivium.grammar.chat_grammar import chat_source
from trivium.grammar.constraint import ChatConstraint, Constraint
from trivium.grammar.deep_stack import with_deep_stack
from trivium.grammar.inline_schemas import settle_schemas
from trivium.grammar.matcher import Grammar, Matcher
from trivium.grammar.schemas import library_schema
from trivium.grammar.structural_tags import TagGrammar
from trivium.tokens.inside import ExactSpeller

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from trivium.tokens.tokenizer import Tokenizer

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
MAX_WHITESPACE = 20
"""Most spaces and line breaks between two parts of JSON, where it may have any."""
MAX_GBNF_RULES = 1000
"""What turns llama.cpp's notation into Lark's takes a time that grows with their square; this many take 0.1 s."""

_OWN_TEMPERATURE = re.compile(r"^[\w.?!]+\[[^\]\n]*\btemperature\s*=", re.MULTILINE)

# Bounds on what one constraint may cost, in the library's units; times are its authors'.
_LEXER_FUEL = 1_000_000
"""To build the automaton of all terminals: 20 ms."""
_STEP_FUEL = 200_000
"""Of the terminals, for one mask: 14 ms."""
_STEP_ITEMS = 50_000
"""Of the parser, for one mask: 3 ms."""
_ROW_ITEMS = 8_000
"""Of the parser, between two terminals: four for each optional name that an object may have next."""
_LEXER_STATES = 20_000
"""About 40 MB."""
_GRAMMAR_SIZE = 200_000
"""Symbols of all rules."""


class _Encoder:
    """A tokenizer as the library wants it."""

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        self._speller = ExactSpeller(tokenizer)
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = list(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        return self._speller.spell(text)


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
            max_items_in_row=_ROW_ITEMS,
            max_lexer_states=_LEXER_STATES,
            max_grammar_size=_GRAMMAR_SIZE,
            verbose_errors=False,
        )
        self._end_ids = tuple(end_ids)
        self._tokenizer = tokenizer
        self.mask_words = (vocab_size + 31) // 32

    def compile(self, wanted: Constraint) -> Grammar:
        """Turn a constraint into a grammar; other threads run meanwhile.

        Raises:
            InvalidParameterError: It is not well-formed, asks for what cannot be enforced, is too large, or no text
                satisfies it; the message has the library's reason.
        """
        source = self._source_of(wanted)
        began_s = time.perf_counter()
        inner = self._read(source)
        if inner.is_error():
            raise refusal_of(wanted, plain_reason(inner.get_error()))
        grammar = Grammar(
            inner,
            self.mask_words,
            remake=lambda: with_deep_stack(lambda: self._read(source)),
            num_chars=len(source),
            compile_s=time.perf_counter() - began_s,
        )
        mask = np.empty(self.mask_words, np.uint32)
        try:
            grammar.settle()
            start = grammar.start()
            start.fill(mask)
            _look_ahead(start)
            if _COUNTED.search(source):
                for toward in (0, -1):
                    _try_out(grammar.start(), toward, self._end_ids)
        except (ConstraintFailedError, InternalError) as error:
            raise refusal_of(wanted, str(error)) from None
        if not _without(mask, self._end_ids).any():
            raise refusal_of(wanted, "only the empty text satisfies it")
        return grammar

    def _read(self, source: str) -> Any:
        return llguidance.LLMatcher(self._inner, source, log_level=0, limits=self._limits)

    def _source_of(self, wanted: Constraint) -> str:
        return (
            chat_source(wanted, self._special_id, source_of)
            if isinstance(wanted, ChatConstraint)
            else source_of(wanted)
        )

    def _special_id(self, text: str) -> int | None:
        token_id = self._tokenizer.token_id(text)
        return token_id if token_id is not None and self._tokenizer.is_special(token_id) else None


_MOST_LOOKED_AHEAD = 256
_MOST_TRIED = 64
_COUNTED = re.compile(r"\{\d*,?\d+\}|\{\d+,\}")
"""Counted repetitions, which alone make states of which each text finds others."""


def _look_ahead(start: Matcher) -> None:
    """Make the mask behind what is forced first, so that no answer makes the library's states for it anew."""
    run = start.forced()[:_MOST_LOOKED_AHEAD]
    for token_id in run:
        start.advance(token_id)
    if run and not start.is_complete:
        start.fill(np.empty(start.mask_words, np.uint32))
    start.roll_back(len(run))


def _try_out(matcher: Matcher, toward: int, end_ids: Sequence[int]) -> None:
    """Read a text of the first tokens that may come, or of the last, as far as what outgrows its limits does so soon.

    Raises:
        ConstraintFailedError: It does.
    """
    mask = np.empty(matcher.mask_words, np.uint32)
    for _ in range(_MOST_TRIED):
        matcher.fill(mask)
        words = np.flatnonzero(_without(mask, end_ids))
        if not len(words):
            return
        bits = int(mask[words[toward]])
        bit = bits.bit_length() - 1 if toward else (bits & -bits).bit_length() - 1
        matcher.advance(int(words[toward]) * 32 + bit)
        if matcher.is_complete:
            return


def _without(mask: NDArray[np.uint32], end_ids: Iterable[int]) -> NDArray[np.uint32]:
    """Clear the bits of these tokens, and return the mask."""
    for end_id in end_ids:
        mask[end_id // 32] &= ~np.uint32(1 << end_id % 32)
    return mask


def source_of(wanted: StructuredOutputs) -> str:
    """Return a constraint in the library's own notation.

    Raises:
        InvalidParameterError: A schema asks for what cannot be enforced, or a grammar in llama.cpp's notation cannot
            be read.
    """
    match wanted.kind:
        case "json":
            return schema_source(json.loads(wanted.schema_text), any_whitespace=wanted.any_whitespace)
        case "json_object":
            return schema_source(ANY_OBJECT, any_whitespace=wanted.any_whitespace)
        case "regex":
            return str(llguidance.LLMatcher.grammar_from_regex(wanted.regex or ""))
        case "choice":
            return "start: " + " | ".join(json.dumps(each) for each in wanted.choice or ())
        case "structural_tag":
            builder = TagGrammar(_inline_schema, _lark_text_of)
            return builder.build(format_of(wanted.structural_tag))
        case _:
            return str(llguidance.LLMatcher.grammar_from_lark(_lark_text_of(wanted.grammar or "")))


def schema_source(schema: Any, *, any_whitespace: bool) -> str:
    """Return a schema in the library's own notation.

    Raises:
        InvalidParameterError: It asks for what cannot be enforced.
    """
    try:
        text = json.dumps(library_schema(schema), allow_nan=False)
        return str(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=json_options(any_whitespace)))
    except ValueError as error:  # half a character, or a number that JSON does not have
        raise InvalidParameterError(f"json cannot be enforced: {error}", param="json") from None


def json_options(any_whitespace: bool) -> Any:  # noqa: FBT001  (a field's value)
    """Return how the library is to write JSON."""
    pattern = rf"[ \t\n\r]{{1,{MAX_WHITESPACE}}}"
    return {"whitespace_flexible": any_whitespace, "whitespace_pattern": pattern if any_whitespace else None}


def refusal_of(wanted: Constraint, reason: str) -> InvalidParameterError:
    """Return the error for a constraint that cannot be enforced."""
    return InvalidParameterError(f"{wanted.kind} cannot be enforced: {reason}", param=wanted.kind)


def plain_reason(message: str) -> str:
    """Return the library's reason without where it was then and what its own options could do."""
    reason = message.partition("while processing json-schema")[0].partition(". Enable '")[0]
    return " ".join(reason.split())


def _lark_text_of(text: str) -> str:
    """Return a grammar in Lark's notation; llama.cpp's is known by its `::=`."""
    if (num_rules := text.count("::=")) > MAX_GBNF_RULES:
        raise InvalidParameterError(f"grammar has {num_rules} rules; at most {MAX_GBNF_RULES} in GBNF", param="grammar")
    if _OWN_TEMPERATURE.search(text):
        raise InvalidParameterError("grammar sets a temperature; give it as the request's", param="grammar")
    if not num_rules:
        return settle_schemas(text, _inline_schema)
    try:
        return str(gbnf_to_lark.any_to_lark(text))
    except Exception as error:  # the library's reader of GBNF raises whatever it meets
        raise InvalidParameterError(f"grammar is no GBNF: {error}", param="grammar") from None


def _inline_schema(schema: Any, any_whitespace: bool = False) -> str:  # noqa: FBT001, FBT002  (a field's value)
    """Return a schema as it stands within a grammar."""
    return json.dumps({**library_schema(schema), "x-guidance": json_options(any_whitespace)}, allow_nan=False)
