"""Laws of the reader of parts: a cut changes nothing, what is written is read back, and no letter is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from support.dialects import Call, calls_of, marked_tokenizer, read, text_of, tools, written
from trivium.base.ids import FinishReason
from trivium.config.chat_output import ChatOutput
from trivium.config.sampling import SamplingParams
from trivium.grammar.automaton import OutputAutomaton, Progress
from trivium.grammar.dialects import ALIASES, DIALECTS, Form
from trivium.grammar.literals import GEMMA
from trivium.grammar.parameters import Parameters
from trivium.grammar.part_reader import PartReader
from trivium.grammar.parts import OutputPart, join_parts

TOOLS = tools(
    "look_up",
    "go.to-2",
    a={"type": "string"},
    b={"type": "number"},
    c={"type": "array"},
    d={"type": "object"},
    e={"type": ["boolean", "null"]},
)
FORMS = [(name, form) for name, dialect in DIALECTS.items() for form in dialect.calls]
REASONING = [name for name, dialect in DIALECTS.items() if dialect.reads_reasoning]
NAMES = [name for name, dialect in DIALECTS.items() if dialect.reads_calls]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
hostile = st.sampled_from([
    "</parameter",
    "\n</arg_value",
    "}",
    "]",
    '"',
    "'",
    "\\",
    "<tool_call>",
    "<",
    "\n",
    "<escape",
])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | texts | st.floats(-1e6, 1e6).map(float),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y_z", "k2"]), inner, max_size=2),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "a": st.lists(texts | hostile, max_size=4).map("".join),
        "b": st.integers(-999, 999) | st.floats(-1e6, 1e6),
        "c": st.lists(values, max_size=3),
        "d": st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2),
        "e": st.none() | st.booleans(),
    },
)
calls = st.lists(st.builds(Call, st.sampled_from([tool.name for tool in TOOLS]), arguments), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 400), max_size=12)
ALL_MARKS = sorted({mark for dialect in DIALECTS.values() for mark in dialect.marks() if mark})
BITS = ["look_up", '{"name": "look_up", "arguments": ', '{"a": ', '"x"', "a=", "assistant", "commentary to=functions.f"]
hostile_texts = st.lists(
    st.sampled_from([*ALL_MARKS, *BITS, *"{}[]()'\"\\,;: \n1é", "analysis", "final"]) | texts, max_size=14
).map("".join)


def dialects_of(name: str, thinks: str | None) -> ChatOutput:
    """Return what reads both, or, where no model writes both, calls alone."""
    both = {DIALECTS[each].channels is None for each in (name, thinks) if each is not None}
    return ChatOutput(tool_dialect=name, reasoning_dialect=thinks if len(both) == 1 else None, tools=TOOLS)


def pieces_of(text: str, places: list[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(ends)]


def can_write(form: Form, said: list[Call]) -> bool:
    """Return whether the form has no mark for what a text holds: most dialects cannot quote their own marks."""
    everything = json.dumps([call.arguments for call in said], ensure_ascii=False)
    strings = [value for call in said for value in _strings(call.arguments)]
    for piece in form.call:
        if isinstance(piece, Parameters):
            # a value cannot hold its own end, and a text that is framed by lines not begin with it
            own = [value for call in said for value in call.arguments.values() if isinstance(value, str)]
            if any(piece.value_end in value or value.startswith(piece.value_end[1:]) for value in own):
                return False
        if piece is GEMMA and any("<escape" in value for value in strings):
            return False
    return "\ufffd" not in everything


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _strings(each)]


@given(said=calls, which=st.integers(0, len(FORMS) - 1), places=cuts)
def test_calls_that_are_written_are_read_back(said: list[Call], which: int, places: list[int]) -> None:
    name, form = FORMS[which]
    if not can_write(form, said):
        return
    text = written(form, said)
    parts = read(ChatOutput(tool_dialect=name, tools=TOOLS), pieces_of(text, places))
    assert calls_of(parts) == said, text
    assert text_of(parts) == "", text


@given(text=hostile_texts, name=st.sampled_from(NAMES), thinks=st.none() | st.sampled_from(REASONING), places=cuts)
@example(text="<tool_call>\n<tool_call>\n{}", name="hermes", thinks=None, places=[3, 12, 14])
def test_a_cut_changes_nothing(text: str, name: str, thinks: str | None, places: list[int]) -> None:
    wanted = dialects_of(name, thinks)
    assert read(wanted, pieces_of(text, places)) == read(wanted, [text]) == read(wanted, list(text))


@given(text=hostile_texts, name=st.sampled_from(NAMES), thinks=st.none() | st.sampled_from(REASONING))
def test_calls_are_numbered_and_named_once(text: str, name: str, thinks: str | None) -> None:
    parts = read(dialects_of(name, thinks), [text])
    named = [part.call for part in parts if part.kind == "tool_name"]
    assert named == list(range(len(named)))
    assert all(part.text for part in parts)
    begun = -1
    for part in parts:
        if part.kind == "tool_name":
            begun = part.call
        if part.kind == "tool_arguments":
            assert part.call == begun


@given(text=hostile_texts, thinks=st.none() | st.sampled_from(REASONING))
def test_no_letter_is_lost(text: str, thinks: str | None) -> None:
    """Where calls are not read only marks and blanks are left out."""
    parts = read(ChatOutput(reasoning_dialect=thinks), [text])
    kept = "".join(part.text for part in parts)
    marks = sorted(DIALECTS[thinks].marks(), key=len, reverse=True) if thinks is not None else []
    rest = text
    for letter in kept:
        rest = rest[rest.index(letter) + 1 :]  # in order: what is kept is a subsequence
    left_out = len(text) - len(kept)
    if not marks:
        assert left_out == 0
    elif DIALECTS[thinks or ""].channels is None:
        most = sum(len(mark) for mark in marks) + len(text) - len("".join(text.split()))
        assert left_out <= most


def automaton_of(wanted: ChatOutput) -> OutputAutomaton:
    return OutputAutomaton(marked_tokenizer(), SamplingParams(), part_reader=PartReader(wanted))


def parts_of(news: Iterable[Progress]) -> list[OutputPart]:
    return join_parts(part for each in news for part in each.parts or ())


@given(text=hostile_texts, name=st.sampled_from(NAMES), thinks=st.none() | st.sampled_from(REASONING), back=cuts)
def test_going_back_leaves_no_trace(text: str, name: str, thinks: str | None, back: list[int]) -> None:
    """Marks that are special tokens are read, whatever else is skipped; tokens taken back never were."""
    wanted = dialects_of(name, thinks)
    ids = marked_tokenizer().encode(text, add_special_tokens=False)
    straight, wandering = automaton_of(wanted), automaton_of(wanted)
    news = [straight.advance(each) for each in ids]
    seen, begun = list[Progress](), 0
    for index, each in enumerate(ids):
        seen.append(wandering.advance(each))
        num_back = min(back[index % len(back)] if back else 0, index + 1 - begun)
        moment = wandering.snapshot()
        wandering.roll_back(num_back)
        for again in ids[index + 1 - num_back : index + 1]:
            wandering.advance(again)
        assert wandering.snapshot() == moment
        if index % 3 == 0:
            wandering, begun = wandering.fork(), index + 1
    ends = [straight.finish(FinishReason.LENGTH)], [wandering.finish(FinishReason.LENGTH)]
    assert parts_of([*news, *ends[0]]) == parts_of([*seen, *ends[1]])
    shown = marked_tokenizer().decode(ids, skip_special_tokens=False)
    if shown == "".join(each.text for each in [*news, *ends[0]]):  # no special token of another dialect
        assert parts_of([*news, *ends[0]]) == read(wanted, [shown])


def test_every_name_leads_to_a_row() -> None:
    assert all(ALIASES[name] in DIALECTS and name not in DIALECTS for name in ALIASES)
    assert all(dialect.reads_calls or dialect.reads_reasoning for dialect in DIALECTS.values())
