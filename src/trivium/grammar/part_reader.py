r"""`PartReader`: which of an answer's text is reasoning, content, or a call, read letter by letter in its dialect.

::

    <think>\nIt rains.\n</think>\n\nLet me look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>
            └reasoning┘            └─ content ─┘                     └name      └ arguments ┘

Marks, and the blanks beside them, are nobody's text. A call is given out from the letter on at which its arguments
begin. What turns out to be no call before that is content, marks and all; what goes wrong behind it ends the call, and
the rest is content. So no letter is lost but marks and blanks, and all depends on the text alone, not on how it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from trivium.base.errors import InvalidParameterError
from trivium.grammar.dialects import ALIASES, DIALECTS, Channels, Dialect, Form, Pieces, Reasoning, dialect_of
from trivium.grammar.parameters import types_of
from trivium.grammar.parts import OutputPart, PartKind
from trivium.grammar.pieces import Blank, Did, Json, Mark, Step
from trivium.grammar.stops import START, StopTexts

if TYPE_CHECKING:
    from trivium.config.chat_output import ChatOutput

_LINES_BEHIND_REASONING = 2
_ANY_BLANKS = -1
_MAX_HEADER_LETTERS = 512
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")
_CHANNEL_CALL = Form(call=(Json(),))


class _Place(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CHOICE = "one of several ways to go on"
    CALL = "a call"
    HEADER = "the header of a message"


class _Way(NamedTuple):
    """A way to go on."""

    sequence: Pieces
    form: Form
    is_end: bool = False
    """Whether it is the end of a section."""


class PartsState(NamedTuple):
    """Where a reader stands; immutable."""

    place: _Place = _Place.CONTENT
    scan: int = START
    """Of the marks that may come."""
    held: str = ""
    """Letters that have not been given out and may have to be, as text."""
    gap: int = 0
    """Line breaks that are nobody's, if they come next; `_ANY_BLANKS`: blanks of any kind are."""
    has_content: bool = False
    has_reasoning: bool = False
    num_calls: int = 0
    """Calls that have been given out."""
    choices: tuple[_Way, ...] = ()
    """At a choice: what may come."""
    sequence: Pieces = ()
    """In a call: what comes, beginning with the piece that is being read."""
    inner: Any = None
    """State of that piece; at a choice the letters that have been read of a mark."""
    form: Form | None = None
    name: str = ""
    is_open: bool = False
    """Whether the name of the call has been given out."""
    is_ending: bool = False
    """Whether the section ends behind what is being read."""
    tried_bare: bool = False
    """Whether it has been tried to read the beginning as a call without a mark."""


class _Parts:
    """Gathers parts; letters of one kind become one text."""

    def __init__(self) -> None:
        self._kind: PartKind = "content"
        self._call = 0
        self._texts: list[str] = []
        self._done: list[OutputPart] = []

    def add(self, kind: PartKind, text: str, call: int = 0) -> None:
        if not text:
            return
        if (kind, call) != (self._kind, self._call):
            self._flush()
            self._kind, self._call = kind, call
        self._texts.append(text)

    def take(self) -> list[OutputPart]:
        self._flush()
        return self._done

    def _flush(self) -> None:
        if self._texts:
            self._done.append(OutputPart(self._kind, "".join(self._texts), self._call))
            self._texts = []


class PartReader:
    """Reads an answer in its dialect. It remembers nothing: states are kept by whoever reads with it.

    Invariants:
        Whatever the cut of a text, the joined parts of its pieces are those of the whole.
        Calls are numbered from 0 without gaps; each has one name, before its arguments.
    """

    def __init__(self, wanted: ChatOutput, *, content_is_bound: bool = False) -> None:
        """Prepare to read what `wanted` asks for.

        Args:
            wanted: What that is.
            content_is_bound: Whether content is under a constraint: then it goes on to the end once it has begun,
                whatever marks its texts may hold, and only calls with a mark may stand in its place.

        Raises:
            InvalidParameterError: A dialect is not known, does not say what is asked of it, or does not go with the
                other.
        """
        spoken = _reasoning_dialect(wanted.reasoning_dialect)
        called = _tool_dialect(None if wanted.tool_choice == "none" else wanted.tool_dialect)
        if (spoken.reasoning is not None and called.channels) or (spoken.channels and called.calls):
            raise InvalidParameterError(
                f"reasoning of '{wanted.reasoning_dialect}' and calls of '{wanted.tool_dialect}' are never in one "
                "answer; choose both of one model",
                param="tool_dialect",
            )
        self._reasoning: Reasoning | None = spoken.reasoning
        self._channels: Channels | None = spoken.channels or called.channels
        self._reads_calls = called.reads_calls
        self._forms = called.calls
        self._bare = () if content_is_bound else tuple(form for form in self._forms if form.is_bare)
        self._content_is_bound = content_is_bound
        self._types = {tool.name: types_of(tool.parameters) for tool in wanted.tools}
        self.marks = frozenset(mark for dialect in (spoken, called) for mark in dialect.marks() if mark)
        """Marks that must be read, also where they are special tokens."""
        self._content_marks, self._reasoning_marks = self._stops()
        self._steps: Mapping[_Place, Callable[[PartsState, str, _Parts], PartsState]] = {
            _Place.CONTENT: self._content,
            _Place.REASONING: self._thought,
            _Place.CHOICE: self._choice,
            _Place.CALL: self._call,
            _Place.HEADER: self._header,
        }
        is_reasoning = wanted.starts_in_reasoning or (self._reasoning is not None and self._reasoning.is_open)
        self.start = PartsState(place=_Place.REASONING, gap=1) if is_reasoning else PartsState()

    def read(self, state: PartsState, text: str) -> tuple[PartsState, list[OutputPart]]:
        """Return the state behind `text`, and the parts that became certain with it."""
        if self._is_plain(state, text):
            return state, [OutputPart("content" if state.place is _Place.CONTENT else "reasoning", text)]
        parts = _Parts()
        at = 0
        while at < len(text):
            if state.is_open and state.place is _Place.CALL:
                end = state.sequence[0].run(state.inner, text, at)
                parts.add("tool_arguments", text[at:end], state.num_calls - 1)
                at = end
                if at == len(text):
                    break
            state = self._steps[state.place](state, text[at], parts)
            at += 1
        return state, parts.take()

    def finish(self, state: PartsState) -> list[OutputPart]:
        """Return the parts that become certain when nothing follows."""
        held = state.held
        if state.place is _Place.CHOICE:
            held += state.inner
        if state.place is _Place.REASONING:
            return [OutputPart("reasoning", held)] if held else []
        if state.place is _Place.HEADER:
            return []  # a message that was cut off before it said anything
        is_answer = held.strip() or state.has_content or not (state.num_calls or state.has_reasoning)
        return [OutputPart("content", held)] if held and is_answer and not state.is_open else []

    def _stops(self) -> tuple[StopTexts, StopTexts]:
        begins = [form.mark for form in self._forms if form.mark is not None]
        calls = list(begins)
        channels = self._channels
        if channels is not None:
            begins += [*channels.begin, *channels.ends]
        if self._reasoning is None:
            return StopTexts(begins), StopTexts(begins)
        ends = [self._reasoning.end, *(calls if self._reasoning.ends_at_calls else ())]
        return StopTexts([*begins, self._reasoning.begin]), StopTexts([self._reasoning.begin, *ends])

    def _is_plain(self, state: PartsState, text: str) -> bool:
        """Return whether a text can be given out as it is, because nothing in it or before it may be anything else."""
        if not text or state.held or state.gap or state.scan != START:
            return False
        if self._content_is_bound and state.place is _Place.CONTENT:
            return state.has_content
        if text[-1].isspace():
            return False
        if state.place is _Place.CONTENT:
            return state.has_content and self._content_marks.begins_nowhere_in(text)
        is_reasoning = state.place is _Place.REASONING
        return is_reasoning and state.has_reasoning and self._reasoning_marks.begins_nowhere_in(text)

    # ── text ──────────────────────────────────────────────────────────────────────────────────

    def _content(self, state: PartsState, letter: str, parts: _Parts) -> PartsState:
        if state.gap:
            if letter == "\n" or (state.gap == _ANY_BLANKS and letter.isspace()):
                return state if state.gap == _ANY_BLANKS else state._replace(gap=state.gap - 1)
            state = state._replace(gap=0)
        if self._content_is_bound and state.has_content:
            parts.add("content", letter)
            return state
        if self._bare and not (
            state.tried_bare or state.has_content or state.num_calls or state.held.strip() or letter.isspace()
        ):
            forms = [form for form in self._bare if _begins_with(_whole(form)[0], letter)]
            if forms:
                return self._enter(state._replace(scan=START), forms[0], letter, parts)
        return self._text(state, letter, parts, self._content_marks, "content")

    def _thought(self, state: PartsState, letter: str, parts: _Parts) -> PartsState:
        if state.gap:
            state = state._replace(gap=0)
            if letter == "\n":
                return state
        return self._text(state, letter, parts, self._reasoning_marks, "reasoning")

    def _text(self, state: PartsState, letter: str, parts: _Parts, marks: StopTexts, kind: PartKind) -> PartsState:
        """Give out what can be neither of a mark nor a blank before one."""
        scan, held = marks.step(state.scan, letter), state.held + letter
        mark = marks.whole(scan)
        num_held = marks.held(scan) if mark is None else len(mark)
        certain = held[: len(held) - num_held]
        if not (kind == "content" and self._content_is_bound):
            certain = certain.rstrip()
        if certain:
            parts.add(kind, certain)
            state = _after(state, kind)
        held = held[len(certain) :]
        if mark is None:
            return state._replace(scan=scan, held=held)
        return self._met(state._replace(scan=START, held=held), mark, parts)

    def _met(self, state: PartsState, mark: str, parts: _Parts) -> PartsState:
        """Go on behind a mark, which is the end of what is held."""
        if self._reasoning is not None and mark in {self._reasoning.begin, self._reasoning.end}:
            return self._met_reasoning(state, mark, parts)
        if self._channels is not None and mark in self._channels.ends:
            return state._replace(place=_Place.CONTENT, held="", gap=_ANY_BLANKS)
        if self._channels is not None and mark in self._channels.begin:
            return state._replace(place=_Place.HEADER)
        ways = tuple(_Way(_whole(form)[1:], form) for form in self._forms if form.mark == mark)
        return state._replace(place=_Place.CHOICE, choices=ways, inner="")

    def _met_reasoning(self, state: PartsState, mark: str, parts: _Parts) -> PartsState:
        """Enter or leave the span of reasoning, which stands at the beginning; elsewhere its marks are text."""
        if state.place is _Place.REASONING:
            if self._reasoning is not None and mark == self._reasoning.end:
                return state._replace(place=_Place.CONTENT, held="", gap=_LINES_BEHIND_REASONING, has_reasoning=True)
            return self._give(state, state.held, parts) if state.has_reasoning else state._replace(held="", gap=1)
        if state.has_content or state.num_calls or state.has_reasoning:
            return self._give(state, state.held, parts)
        return state._replace(place=_Place.REASONING, held="", gap=1, tried_bare=False)

    def _give(self, state: PartsState, text: str, parts: _Parts) -> PartsState:
        """Give out text that turned out to be nothing else; `held` is empty behind it."""
        kind: PartKind = "reasoning" if state.place is _Place.REASONING else "content"
        parts.add(kind, text)
        return _after(state, kind)._replace(held="", scan=START)

    def _header(self, state: PartsState, letter: str, parts: _Parts) -> PartsState:
        """Read on to the end of a message's header, and see what the message is."""
        channels, held = self._channels, state.held + letter
        if channels is None or len(held) > _MAX_HEADER_LETTERS:
            return self._give(state._replace(place=_Place.CONTENT), held, parts)
        if not held.endswith(channels.message):
            return state._replace(held=held)
        recipient = _RECIPIENT.search(held)
        state = state._replace(held="", gap=0)
        if recipient is not None and self._reads_calls:
            named = state._replace(name=recipient[1], is_open=False, form=_CHANNEL_CALL, held=held)
            return _go_on(named, _CHANNEL_CALL.call)
        if f"{channels.begin[-1]}{channels.reasoning}" in held.replace(" ", ""):
            return state._replace(place=_Place.REASONING)
        return state._replace(place=_Place.CONTENT)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def _enter(self, state: PartsState, form: Form, letter: str, parts: _Parts) -> PartsState:
        """Begin a call without a mark, with its first letter."""
        return self._call(_go_on(state._replace(form=form, tried_bare=True), _whole(form)), letter, parts)

    def _choice(self, state: PartsState, letter: str, parts: _Parts) -> PartsState:
        """Read until it is clear which of several ways the text goes on.

        Effects:
            Blanks before it are held; the letters of marks that are still possible are the inner state.
        """
        read: str = state.inner
        if not read and letter.isspace():
            return state._replace(held=state.held + letter)
        text = read + letter
        possible = []
        for way in state.choices:
            sequence = _without_blanks(way.sequence)
            first = sequence[0]
            ahead = state._replace(form=way.form, is_ending=way.is_end, choices=())
            if isinstance(first, Mark) and not first.is_optional:
                if first.text == text:
                    return _go_on(ahead._replace(held=state.held + text), sequence[1:])
                if first.text.startswith(text):
                    possible.append(way)
            elif not read and first.accepts(letter):
                return self._call(_go_on(ahead, sequence), letter, parts)
        if possible:
            return state._replace(choices=tuple(possible), inner=text)
        return self._fail(state._replace(held=state.held + read), read, letter, parts)

    def _call(self, state: PartsState, letter: str, parts: _Parts) -> PartsState:
        """Read a letter of a call."""
        piece = state.sequence[0]
        step = piece.step(state.inner, letter, self._types.get(state.name, {}))
        if step.did is not Did.FAILED and step.name:
            state = state._replace(name=step.name)
        if step.did is Did.FAILED or (step.arguments and not state.is_open and not self._may_call(state)):
            partial = piece.text[: state.inner] if isinstance(piece, Mark) else ""
            return self._fail(state, partial, letter, parts)
        state = self._give_call(state, step, parts)
        if step.did is Did.BEFORE:
            # what follows the piece was in it so far, but for this letter
            early = step.rest[:-1]
            held = state.held if state.is_open else state.held[: len(state.held) - len(early)]
            state = _go_on(state._replace(held=held), state.sequence[1:])
            for each in step.rest:
                state = self._steps[state.place](state, each, parts)
            return state
        if not state.is_open:
            state = state._replace(held=state.held + letter)
        return _go_on(state, state.sequence[1:]) if step.did is Did.DONE else state._replace(inner=step.state)

    def _may_call(self, state: PartsState) -> bool:
        return state.form is None or not state.form.is_bare or state.name in self._types

    def _give_call(self, state: PartsState, step: Step, parts: _Parts) -> PartsState:
        """Give out arguments, and before the first of them the name."""
        if not step.arguments:
            return state
        if not state.is_open:
            parts.add("tool_name", state.name, state.num_calls)
            state = state._replace(is_open=True, held="", num_calls=state.num_calls + 1)
        parts.add("tool_arguments", step.arguments, state.num_calls - 1)
        return state

    def _fail(self, state: PartsState, partial: str, letter: str, parts: _Parts) -> PartsState:
        """Take what was held for content, and read on as such from the mark that was not whole."""
        if not (state.is_open or state.num_calls) and state.form is not None and state.form.is_bare:
            partial = state.held  # it may begin with another mark
        held = "" if state.is_open else state.held.removesuffix(partial)
        state = state._replace(place=_Place.CONTENT, gap=0, name="", is_open=False, form=None, sequence=(), choices=())
        if held.strip():
            state = self._give(state, held, parts)
        state = state._replace(held="", scan=START)
        for each in partial + letter:
            state = self._steps[state.place](state, each, parts)
        return state


def _after(state: PartsState, kind: PartKind) -> PartsState:
    """Remember that there was such text."""
    return state._replace(has_reasoning=True) if kind == "reasoning" else state._replace(has_content=True)


def _go_on(state: PartsState, sequence: Pieces) -> PartsState:
    """Stand before the next piece; behind the last one of a call stand where the next call or the end may come."""
    form = state.form
    if sequence:
        return state._replace(place=_Place.CALL, sequence=sequence, inner=sequence[0].start)
    is_over = state.is_ending or form is None or not form.is_section
    state = state._replace(held="", name="", is_open=False, sequence=(), is_ending=False)
    if is_over or form is None:
        return state._replace(place=_Place.CONTENT, gap=_ANY_BLANKS, form=None)
    ways = (_Way((*form.between, *form.call), form), _Way(form.end, form, is_end=True))
    return state._replace(place=_Place.CHOICE, choices=tuple(way for way in ways if way.sequence), inner="")


def _whole(form: Form) -> Pieces:
    """Return the pieces of a first call."""
    return (*form.begin, *form.call)


def _begins_with(piece: Any, letter: str) -> bool:
    return not isinstance(piece, Blank) and piece.accepts(letter)


def _without_blanks(pieces: Pieces) -> Pieces:
    while pieces and isinstance(pieces[0], Blank):
        pieces = pieces[1:]
    return pieces


def _reasoning_dialect(name: str | None) -> Dialect:
    return _dialect("reasoning", name, lambda dialect: dialect.reads_reasoning)


def _tool_dialect(name: str | None) -> Dialect:
    return _dialect("tool", name, lambda dialect: dialect.reads_calls)


def _dialect(what: str, name: str | None, says_so: Callable[[Dialect], bool]) -> Dialect:
    if name is None:
        return Dialect()
    dialect = dialect_of(name)
    if dialect is None or not says_so(dialect):
        known = ", ".join(sorted(each for each in (*DIALECTS, *ALIASES) if says_so(DIALECTS[ALIASES.get(each, each)])))
        raise InvalidParameterError(f"{what}_dialect is '{name}'; it must be one of {known}", param=f"{what}_dialect")
    return dialect
