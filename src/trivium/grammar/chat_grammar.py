"""One grammar for a whole answer of a chat: a span of reasoning, then content or calls, in the words of a dialect.

::

    required   [reasoning] calls
    content    [reasoning] content                     what `structured_outputs` asks for
    both       [reasoning] (content | calls)
    auto       [reasoning] (free text | free text calls)   a call that has begun is held to its tool

Where nothing has to be made impossible there is no grammar. What a grammar of this module makes is read back by
`part_reader` as calls whose arguments pass the schemas of strict tools; those of others, where they can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import Tool
from trivium.config.structured import StructuredOutputs
from trivium.grammar.argument_grammar import ArgumentGrammar
from trivium.grammar.constraint import ChatConstraint
from trivium.grammar.dialects import Dialect, Form, dialect_of
from trivium.grammar.lark import Rules
from trivium.grammar.pieces import Blank, Label, Mark, Name, Number, Piece

_NOT_BARE = r"/(?s:\s*([^\s\[{].*)?)/"
"""Text that begins no call of a bare form."""
_CHANNEL_CALL = " to=functions."


def chat_source(
    wanted: ChatConstraint, special_id: Callable[[str], int | None], source_of: Callable[[StructuredOutputs], str]
) -> str:
    """Return the grammar of an answer in the library's notation.

    Args:
        wanted: What it must be.
        special_id: Returns the id of a special token by its text.
        source_of: Returns the grammar of content.

    Raises:
        InvalidParameterError: It cannot be enforced; the message says what.
    """
    return _ChatGrammar(wanted, special_id, source_of).build()


class _ChatGrammar:
    def __init__(
        self,
        wanted: ChatConstraint,
        special_id: Callable[[str], int | None],
        source_of: Callable[[StructuredOutputs], str],
    ) -> None:
        self._chat = wanted.chat
        self._content = wanted.content
        self._source_of = source_of
        self._spoken = _row(wanted.chat.reasoning_dialect)
        self._called = _row(wanted.chat.tool_dialect)
        marks = {mark for dialect in (self._spoken, self._called) for mark in dialect.marks() if mark}
        self._rules = Rules({mark: found for mark in marks if (found := special_id(mark)) is not None})
        self._arguments = ArgumentGrammar(self._rules)
        self._grammars: list[dict[str, Any]] = []
        self._known: dict[tuple[int, str], str] = {}
        """What reads a tool's arguments, by piece and tool; calls with and without their mark share it."""

    def build(self) -> str:
        channels = self._spoken.channels or self._called.channels
        start = self._answer() if channels is None else self._messages()
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules.lines])
        return json.dumps({"grammars": [{"name": "chat", "lark_grammar": lark}, *self._grammars]})

    # ── what an answer is ─────────────────────────────────────────────────────────────────────

    def _answer(self) -> str:
        body = self._body()
        reasoning = self._spoken.reasoning
        if reasoning is None:
            return body
        gap = self._rules.written("\n\n") if self._content is not None else r"/\n{0,2}/"
        calls = self._called.call_marks() if reasoning.ends_at_calls else []
        span = f"{self._rules.until(reasoning.end, excludes=calls)} {gap}"
        if self._chat.starts_in_reasoning:
            return f"{span} {body}"
        begin = self._rules.written(reasoning.begin)
        return f"({begin})? {span} {body}" if reasoning.is_open else f"({begin} {span})? {body}"

    def _body(self) -> str:
        tools = self._chat.callable_tools
        if not tools:
            return self._content_rule()
        form = self._form()
        if self._chat.tool_choice == "required":
            return self._section(form)
        if self._content is not None:
            return f"({self._content_rule()} | {self._section(form)})"
        return self._free(form)

    def _free(self, form: Form) -> str:
        """Return free text in which no call begins but one that is held to its tool."""
        section = self._section(form)
        if form.is_bare:
            text = self._rules.terminal(_NOT_BARE + self._rules.without(self._begins()))
            return f"({text} | {section})"
        mark = form.mark or ""
        text = self._rules.text_without(self._begins())
        if self._rules.is_special(mark):
            return f"{text} ({section})?"
        begun = self._rules.until(mark, excludes=[each for each in self._begins() if each != mark])
        rest = self._section(form, skips_mark=True)
        return f"({text} | {begun} {rest})"

    def _begins(self) -> list[str]:
        """Return the texts that free text must not hold."""
        marks = self._called.call_marks()
        reasoning = self._spoken.reasoning
        return marks if reasoning is None else [*marks, reasoning.begin]

    def _content_rule(self) -> str:
        if self._content is None:
            return self._rules.text_without(self._begins())
        source = self._source_of(self._content)
        is_listed = source.startswith("{")
        grammars = json.loads(source)["grammars"] if is_listed else [{"lark_grammar": source}]
        self._grammars += [{**grammars[0], "name": "content"}, *grammars[1:]]
        return "@content"

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def _form(self) -> Form:
        """Return the form in which calls are written."""
        forms = [form for form in self._called.calls if self._content is None or not form.is_bare]
        if not forms:
            name = self._chat.tool_dialect
            raise InvalidParameterError(
                f"tools beside a response_format need calls that are known by a mark; those of '{name}' have none",
                param="response_format",
            )
        return next((form for form in forms if self._has_its_marks(form)), forms[0])

    def _has_its_marks(self, form: Form) -> bool:
        """Return whether the marks that a tokenizer of this form has, it has; older ones may be written otherwise."""
        optional = [piece for piece in form.call if isinstance(piece, Mark) and piece.is_optional]
        is_special = form.mark is not None and self._rules.is_special(form.mark)
        return not is_special or all(self._rules.is_special(piece.text) for piece in optional)

    def _section(self, form: Form, *, skips_mark: bool = False) -> str:
        """Return one call, or several where they may be parallel."""
        begin, first = (form.begin[1:], form.call) if form.begin else ((), form.call[1:])
        if not skips_mark:
            begin, first = form.begin, form.call
        opening = self._rules.joined(*(self._piece(piece) for piece in begin))
        one = self._call(form.call)
        head = one if first == form.call else self._call(first)
        between = form.between if form.is_section else (Blank("\n"),)
        separator = self._rules.joined(*(self._piece(piece) for piece in between))
        more = f"({separator} {one})*" if self._chat.parallel_tool_calls else ""
        end = self._rules.joined(*(self._piece(piece) for piece in form.end))
        return self._rules.named("calls", self._rules.joined(opening, head, more, end))

    def _call(self, pieces: Sequence[Piece]) -> str:
        ways = [
            self._rules.joined(*(self._piece(piece, tool) for piece in pieces)) for tool in self._chat.callable_tools
        ]
        return self._rules.named("call", "\n  | ".join(ways))

    def _piece(self, piece: Piece, tool: Tool | None = None) -> str:
        if isinstance(piece, Mark):
            text = self._rules.written(piece.text)
            return f"({text})?" if piece.is_optional else text
        if isinstance(piece, Blank):
            return self._rules.written(piece.text)
        if isinstance(piece, Number):
            return "/[0-9]{1,3}/"
        if isinstance(piece, Label):
            return ""
        if tool is None:
            raise TypeError(piece)
        if isinstance(piece, Name):
            return self._rules.written(tool.name)
        key = id(piece), tool.name
        if key not in self._known:
            written = self._arguments.write(piece, tool)
            self._known[key] = self._rules.named("arguments", written) if written else ""
        return self._known[key]

    # ── messages with headers ─────────────────────────────────────────────────────────────────

    def _messages(self) -> str:
        channels = self._spoken.channels or self._called.channels
        if channels is None:
            return ""
        header, message = channels.begin[-1], channels.message
        tools = self._chat.callable_tools
        ways = []
        if tools:
            calls = [
                self._rules.joined(
                    self._rules.written(f"{header}commentary{_CHANNEL_CALL}{tool.name} <|constrain|>json{message}"),
                    self._arguments.write_json(tool),
                )
                for tool in tools
            ]
            ways.append(self._rules.named("calls", "\n  | ".join(calls)))
        if self._chat.tool_choice != "required" or not tools:
            ways.append(f"{self._rules.written(f'{header}final{message}')} {self._content_rule()}")
        end, *other_ends = channels.ends
        span = self._rules.until(end, others=other_ends, excludes=channels.begin)
        opened = self._rules.written(f"{header}{channels.reasoning}{message}")
        follows = self._rules.written(f"{channels.begin[0]}assistant")
        body = f"({' | '.join(ways)})"
        return f"{span} {follows} {body}" if self._chat.starts_in_reasoning else f"({opened} {span} {follows})? {body}"


def _row(name: str | None) -> Dialect:
    return Dialect() if name is None else dialect_of(name) or Dialect()
