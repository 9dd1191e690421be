"""`Literals`: arguments written as a language's literals, such as `city='Paris', days=[1, 2]`, turned into JSON.

What is open is a stack of the letters that close it. The first bracket is a piece of its own, before these::

    f(  city='Paris', size={'w': 1}  )      stack at 1:  ")}"
      ^ begins here                  ^ ends here
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple

from trivium.grammar.pieces import FAILED, Did, LetterByLetter, Step, Types, quoted

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD_LETTERS = frozenset(string.ascii_letters + string.digits + "_+-.")
_KEY_LETTERS = frozenset(string.ascii_letters + string.digits + "_-.$")
_CLOSERS: Mapping[str, str] = {"{": "}", "[": "]", "(": ")"}
_WORDS: Mapping[str, str] = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_ESCAPES: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_HEX_DIGITS: Mapping[str, int] = {"x": 2, "u": 4, "U": 8}


class _Phase(Enum):
    KEY = "a key, or the end"
    IN_KEY = "the rest of a bare key"
    COLON = "what stands between key and value"
    ITEM = "an item, or the end"
    VALUE = "a value"
    QUOTE = "the rest of a quote"
    STRING = "the rest of a text"
    ESCAPE = "what is behind a backslash"
    WORD = "the rest of a number or a word"
    AFTER = "a comma, or the end"


class _State(NamedTuple):
    phase: _Phase = _Phase.KEY
    stack: str = ""
    text: str = ""
    """Letters that have not been given out."""
    quote: str = ""
    is_key: bool = False
    """Whether the text that is read is a key."""
    needs_comma: bool = False
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Literals(LetterByLetter):
    """Keys with values until `closer`, in the notation of some language."""

    closer: str
    equals: str
    """Between key and value of an argument; inside of objects it is a colon."""
    quotes: tuple[str, ...]
    has_escapes: bool
    has_quoted_keys: bool
    """Whether the keys of objects are texts."""
    keeps_unknown_words: bool = False
    """Whether a word that is no number and no constant is a text."""

    @property
    def start(self) -> _State:
        """Behind the first bracket."""
        return _State(stack=self.closer)

    def accepts(self, letter: str) -> bool:
        """Return whether it begins with this letter."""
        return letter.isspace() or letter == self.closer or letter in _KEY_LETTERS

    def step(self, state: _State, letter: str, types: Types) -> Step:
        """Read one letter."""
        if letter.isspace() and state.phase not in _INSIDE:
            return Step(Did.READ, state)
        return self._READERS[state.phase](self, state, letter)

    def _key(self, state: _State, letter: str) -> Step:
        if letter == state.stack[-1]:
            return self._close(state)
        is_argument = len(state.stack) == 1
        lead = "" if state.has_begun or not is_argument else "{"
        lead += ", " if state.needs_comma else ""
        state = state._replace(is_key=True, needs_comma=False)
        if is_argument or not self.has_quoted_keys:
            if letter not in _KEY_LETTERS:
                return FAILED
            return Step(Did.READ, state._replace(phase=_Phase.IN_KEY, text=lead + '"' + letter))
        return self._open_quote(state, letter, lead)

    def _colon(self, state: _State, letter: str) -> Step:
        is_separator = letter == (self.equals if len(state.stack) == 1 else ":")
        return Step(Did.READ, state._replace(phase=_Phase.VALUE), arguments=": ") if is_separator else FAILED

    def _item(self, state: _State, letter: str) -> Step:
        return self._close(state) if letter == state.stack[-1] else self._value(state, letter)

    def _bare_key(self, state: _State, letter: str) -> Step:
        if letter in _KEY_LETTERS:
            return Step(Did.READ, state._replace(text=state.text + letter))
        following = state._replace(phase=_Phase.COLON, text="", is_key=False)
        done = self.step(following, letter, {})
        if done.did is Did.FAILED:
            return FAILED
        return done._replace(state=done.state._replace(has_begun=True), arguments=state.text + '"' + done.arguments)

    def _value(self, state: _State, letter: str) -> Step:
        lead = ", " if state.phase is _Phase.ITEM and state.needs_comma else ""
        state = state._replace(needs_comma=False)
        if letter in _CLOSERS:
            phase = _Phase.KEY if letter == "{" else _Phase.ITEM
            following = state._replace(phase=phase, stack=state.stack + _CLOSERS[letter])
            return Step(Did.READ, following, arguments=lead + ("{" if letter == "{" else "["))
        if any(letter == quote[0] for quote in self.quotes):
            return self._open_quote(state, letter, lead)
        if letter in _WORD_LETTERS or (self.keeps_unknown_words and letter not in ",}]"):
            return Step(Did.READ, state._replace(phase=_Phase.WORD, text=letter), arguments=lead)
        return FAILED

    def _open_quote(self, state: _State, letter: str, lead: str) -> Step:
        quote = next((each for each in self.quotes if each[0] == letter), None)
        if quote is None:
            return FAILED
        if len(quote) == 1:
            following = state._replace(phase=_Phase.STRING, quote=quote, text="")
            return Step(Did.READ, following, arguments=lead + '"')
        return Step(Did.READ, state._replace(phase=_Phase.QUOTE, quote=quote, text=letter), arguments=lead)

    def _quote(self, state: _State, letter: str) -> Step:
        text = state.text + letter
        if text == state.quote:
            return Step(Did.READ, state._replace(phase=_Phase.STRING, text=""), arguments='"')
        return Step(Did.READ, state._replace(text=text)) if state.quote.startswith(text) else FAILED

    def _string(self, state: _State, letter: str) -> Step:
        text = state.text + letter
        if text == state.quote:
            phase = _Phase.COLON if state.is_key else _Phase.AFTER
            return Step(Did.READ, state._replace(phase=phase, text="", is_key=False), arguments='"')
        if state.quote.startswith(text):
            return Step(Did.READ, state._replace(text=text))
        if state.text:
            again = self._string(state._replace(text=""), letter)
            return again._replace(arguments=quoted(state.text) + again.arguments)
        if letter == "\\" and self.has_escapes:
            return Step(Did.READ, state._replace(phase=_Phase.ESCAPE))
        return Step(Did.READ, state, arguments=quoted(letter))

    def _escape(self, state: _State, letter: str) -> Step:
        """Read what is behind a backslash; `state.text` is what has come of it."""
        text = state.text + letter
        num_digits = _HEX_DIGITS.get(text[0])
        done = state._replace(phase=_Phase.STRING, text="")
        if num_digits is None:
            return Step(Did.READ, done, arguments=quoted(_ESCAPES.get(letter, "\\" + letter)))
        if len(text) > 1 and letter not in string.hexdigits:
            again = self._string(done, letter)
            return again._replace(arguments=quoted("\\" + state.text) + again.arguments)
        if len(text) <= num_digits:
            return Step(Did.READ, state._replace(text=text))
        return Step(Did.READ, done, arguments=_escaped(int(text[1:], 16)))

    def _word(self, state: _State, letter: str) -> Step:
        goes_on = letter in _WORD_LETTERS or (self.keeps_unknown_words and letter not in ",}]")
        if goes_on:
            return Step(Did.READ, state._replace(text=state.text + letter))
        word = state.text.strip()
        if word in _WORDS:
            written = _WORDS[word]
        elif _NUMBER.fullmatch(word):
            written = word
        elif self.keeps_unknown_words:
            written = f'"{quoted(word)}"'
        else:
            return FAILED
        done = self.step(state._replace(phase=_Phase.AFTER, text=""), letter, {})
        return done if done.did is Did.FAILED else done._replace(arguments=written + done.arguments)

    def _after(self, state: _State, letter: str) -> Step:
        if letter == state.stack[-1]:
            return self._close(state)
        if letter != ",":
            return FAILED
        phase = _Phase.KEY if len(state.stack) == 1 or state.stack[-1] == "}" else _Phase.ITEM
        return Step(Did.READ, state._replace(phase=phase, needs_comma=True))

    def _close(self, state: _State) -> Step:
        if len(state.stack) == 1:
            return Step(Did.DONE, arguments="}" if state.has_begun else "{}")
        closer = "}" if state.stack[-1] == "}" else "]"
        following = state._replace(phase=_Phase.AFTER, stack=state.stack[:-1], needs_comma=False)
        return Step(Did.READ, following, arguments=closer)

    _READERS: ClassVar[Mapping[_Phase, Callable[[Literals, _State, str], Step]]] = {
        _Phase.KEY: _key,
        _Phase.IN_KEY: _bare_key,
        _Phase.COLON: _colon,
        _Phase.ITEM: _item,
        _Phase.VALUE: _value,
        _Phase.QUOTE: _quote,
        _Phase.STRING: _string,
        _Phase.ESCAPE: _escape,
        _Phase.WORD: _word,
        _Phase.AFTER: _after,
    }


def _escaped(code: int) -> str:
    r"""Return a character by its number as JSON writes it; halves of a pair stay escaped, so that they meet again."""
    if 0xD800 <= code < 0xE000:  # noqa: PLR2004
        return f"\\u{code:04x}"
    return quoted(chr(code)) if code < 0x110000 else quoted("\ufffd")  # noqa: PLR2004


_INSIDE = frozenset({_Phase.IN_KEY, _Phase.QUOTE, _Phase.STRING, _Phase.ESCAPE, _Phase.WORD})
"""Where a blank is more than a blank."""

PYTHON = Literals(closer=")", equals="=", quotes=("'", '"'), has_escapes=True, has_quoted_keys=True)
"""Keyword arguments of a call in Python."""
GEMMA = Literals(
    closer="}",
    equals=":",
    quotes=("<escape>",),
    has_escapes=False,
    has_quoted_keys=False,
    keeps_unknown_words=True,
)
"""What functiongemma writes: bare keys, and texts between `<escape>` marks."""
