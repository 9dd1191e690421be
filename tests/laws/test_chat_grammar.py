"""Law of the grammars of chats: what they make is read back as calls that pass their tools' schemas."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.dialects import calls_of, marked_tokenizer, read, text_of
from support.tiny_tokenizers import BYTE_EOS, byte_level
from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import ChatOutput, Tool
from trivium.config.structured import StructuredOutputs
from trivium.grammar.constraint import ChatConstraint
from trivium.grammar.dialects import DIALECTS
from trivium.grammar.library import Vocabulary
from trivium.tokens.tokenizer import Tokenizer

TOOL_NAMES = [name for name, dialect in DIALECTS.items() if dialect.reads_calls]
REASONING_NAMES = [name for name, dialect in DIALECTS.items() if dialect.reads_reasoning]
BYTE_LEVEL = byte_level()


def tokenizer(*, with_marks: bool) -> Tokenizer:
    """The byte-level one, with every mark that looks like a token as a special one, or none."""
    return marked_tokenizer() if with_marks else BYTE_LEVEL


@cache
def vocabulary(*, with_marks: bool) -> Vocabulary:
    own = tokenizer(with_marks=with_marks)
    return Vocabulary(own, (BYTE_EOS,), vocab_size=own.vocab_size)


def drawn(wanted: ChatConstraint, seed: int, *, with_marks: bool) -> str | None:
    """Return a text that the grammar allows, drawn at random; `None` if it got too long."""
    own = tokenizer(with_marks=with_marks)
    matcher = vocabulary(with_marks=with_marks).compile(wanted).start()
    dice, spelled, mask = random.Random(seed), b"", np.empty((own.vocab_size + 31) // 32, np.uint32)  # noqa: S311
    for _ in range(1500):
        if matcher.is_complete:
            break
        matcher.fill(mask)
        options = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if matcher.is_accepting and (options == [BYTE_EOS] or dice.random() < 0.1):
            break
        options = [each for each in options if each != BYTE_EOS]
        ends = [each for each in options if own.token_bytes(each) in CLOSING or own.is_special(each)]
        forward = [each for each in options if spelled.endswith(tuple(MARKS_OF.get(own.token_bytes(each), ())))]
        lot = dice.random()
        token = dice.choice(forward if forward and lot < 0.9 else ends if ends and lot < 0.5 else options)
        matcher.advance(token)
        spelled += own.token_bytes(token)
    else:
        return None
    return spelled.decode("utf-8", "replace")


CLOSING = {b'"', b"]", b"}", b"<", b"\n"}
MARKS_OF: dict[bytes, set[bytes]] = {}
"""Per byte: beginnings of marks that it goes on with, so that spans of free text end."""
for _mark in {mark for dialect in DIALECTS.values() for mark in dialect.marks()}:
    for _at in range(1, len(_mark.encode())):
        _spelled = _mark.encode()
        MARKS_OF.setdefault(_spelled[_at : _at + 1], set()).add(_spelled[:_at])

SCALARS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "enum": ["new york", "a\"b'c", "</x"]},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"k": {"type": "integer"}, "t": {"type": "string"}}, "required": ["k"],
     "additionalProperties": False},
    {"type": "null"},
]  # fmt: skip
schemas = st.lists(st.sampled_from(SCALARS), min_size=0, max_size=3).flatmap(
    lambda found: st.integers(0, len(found)).map(
        lambda num_required: {
            "type": "object",
            "properties": {f"p{index}": each for index, each in enumerate(found)},
            "required": [f"p{index}" for index in range(num_required)],
            "additionalProperties": False,
        }
    )
)
tool_lists = st.lists(schemas, min_size=1, max_size=2).map(
    lambda found: tuple(Tool(name=f"do_it.{k}", parameters=each, strict=True) for k, each in enumerate(found))
)


def go_together(name: str | None, thinks: str | None) -> bool:
    """Return whether one model may write both."""
    both = [DIALECTS[each].channels is None for each in (name, thinks) if each is not None]
    return len(set(both)) < 2


def check_calls(parts: list[Any], tools: tuple[Tool, ...], text: str) -> int:
    said = calls_of(parts)
    by_name = {tool.name: tool for tool in tools}
    for call in said:
        jsonschema.validate(call.arguments, by_name[call.name].parameters)
    return len(said)


NO_ARGUMENTS = Tool(
    name="do_it.0",
    parameters={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    strict=True,
)


@example(  # reasoning that held another end of a message
    name="openai_gptoss",
    tools=(NO_ARGUMENTS,),
    thinks=None,
    with_marks=False,
    is_parallel=False,
    is_open=False,
    seed=3079,
)
@settings(deadline=None)
@given(
    name=st.sampled_from(TOOL_NAMES),
    tools=tool_lists,
    thinks=st.none() | st.sampled_from(REASONING_NAMES),
    with_marks=st.booleans(),
    is_parallel=st.booleans(),
    is_open=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_required_calls_are_made(
    name: str,
    tools: tuple[Tool, ...],
    thinks: str | None,
    with_marks: bool,
    is_parallel: bool,
    is_open: bool,
    seed: int,
) -> None:
    if not go_together(name, thinks):
        return
    chat = ChatOutput(
        tool_dialect=name,
        reasoning_dialect=thinks,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=is_parallel,
        starts_in_reasoning=is_open and thinks is not None,
    )
    text = drawn(ChatConstraint(chat=chat), seed, with_marks=with_marks)
    if text is None:
        return
    parts = read(chat, [text])
    num_calls = check_calls(parts, tools, text)
    assert num_calls >= 1 if is_parallel else num_calls == 1, text
    assert text_of(parts) == "", text


@settings(deadline=None)
@given(
    name=st.sampled_from(TOOL_NAMES),
    tools=tool_lists,
    with_marks=st.booleans(),
    is_parallel=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_free_text_makes_no_other_calls(
    name: str, tools: tuple[Tool, ...], with_marks: bool, is_parallel: bool, seed: int
) -> None:
    chat = ChatOutput(tool_dialect=name, tools=tools, parallel_tool_calls=is_parallel)
    text = drawn(ChatConstraint(chat=chat), seed, with_marks=with_marks)
    if text is not None:
        assert check_calls(read(chat, [text]), tools, text) <= (100 if is_parallel else 1)


CONTENTS = [
    StructuredOutputs(json={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
                            "additionalProperties": False}),
    StructuredOutputs(regex="\n?[a-c]{2,4}"),
    StructuredOutputs(choice=("one", " two ")),
]  # fmt: skip


def passes(content: StructuredOutputs, text: str) -> bool:
    if content.regex is not None:
        return re.fullmatch(content.regex, text) is not None
    if content.choice is not None:
        return text in content.choice
    jsonschema.validate(json.loads(text), content.json)  # type: ignore[arg-type]
    return True


@settings(deadline=None)
@given(
    name=st.none() | st.sampled_from(TOOL_NAMES),
    tools=tool_lists,
    thinks=st.none() | st.sampled_from(REASONING_NAMES),
    content=st.sampled_from(CONTENTS),
    with_marks=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_content_is_constrained_beside_reasoning_and_calls(
    name: str | None,
    tools: tuple[Tool, ...],
    thinks: str | None,
    content: StructuredOutputs,
    with_marks: bool,
    seed: int,
) -> None:
    if not go_together(name, thinks):
        return
    chat = ChatOutput(tool_dialect=name, reasoning_dialect=thinks, tools=tools if name else ())
    if name is not None and all(form.is_bare for form in DIALECTS[name].calls) and DIALECTS[name].calls:
        with pytest.raises(InvalidParameterError, match="known by a mark"):
            drawn(ChatConstraint(chat=chat, content=content), seed, with_marks=with_marks)
        return
    text = drawn(ChatConstraint(chat=chat, content=content), seed, with_marks=with_marks)
    if text is None:
        return
    parts = read(chat, [text], content_is_bound=True)
    if not check_calls(parts, tools, text):
        assert passes(content, text_of(parts)), text
    else:
        assert text_of(parts) == "", text
