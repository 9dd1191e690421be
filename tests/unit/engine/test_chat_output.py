"""Tests of chats' answers in the engine: parts of deltas, required calls, budgets, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.tiny_engine import tiny_model
from trivium.api import LLM
from trivium.api.outputs import CompletionOutput
from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import ChatOutput, Tool
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.grammar.parts import join_parts

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}
TOOLS = (Tool(name="f", parameters=SCHEMA, strict=True), Tool(name="g"))
CALLS = ChatOutput(tool_dialect="hermes", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
THINKS = ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True, max_reasoning_tokens=5)
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=120)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


def answer(llm: LLM, chat: ChatOutput, **changes: object) -> CompletionOutput:
    output = llm.generate("hello", replace(DRAWN, chat_output=chat, **changes))[0]
    assert output.error is None
    return output.outputs[0]


def text_of(found: CompletionOutput, kind: str) -> str:
    return "".join(part.text for part in found.parts or () if part.kind == kind)


@pytest.mark.parametrize("seed", range(8))
def test_a_required_call_is_made(llm: LLM, seed: int) -> None:
    found = answer(llm, CALLS, seed=seed)
    assert found.finish_reason == "tool_calls"
    assert [part.kind for part in join_parts(found.parts or ())] == ["tool_name", "tool_arguments"]
    arguments = json.loads(text_of(found, "tool_arguments"))
    assert arguments.keys() == ({"a"} if text_of(found, "tool_name") == "f" else set())


def test_only_allowed_tools_are_called(llm: LLM) -> None:
    names = {text_of(answer(llm, replace(CALLS, allowed_tools=("g",)), seed=k), "tool_name") for k in range(6)}
    assert names == {"g"}


def test_reasoning_ends_with_its_budget(llm: LLM) -> None:
    found = answer(llm, THINKS, logit_bias={67: 100.0}, ignore_eos=True)
    assert text_of(found, "reasoning") == "aaaaa"
    assert text_of(found, "content").startswith("aaaa")


def test_a_budget_goes_with_required_calls_and_with_constrained_content(llm: LLM) -> None:
    both = replace(CALLS, reasoning_dialect="qwen3", starts_in_reasoning=True, max_reasoning_tokens=4)
    called = answer(llm, both)
    assert text_of(called, "tool_name")
    assert not text_of(called, "content")
    bound = answer(llm, THINKS, structured_outputs=StructuredOutputs(regex="[0-9]{3}"))
    assert text_of(bound, "content").isdigit()
    assert len(text_of(bound, "content")) == 3


def test_what_cannot_be_enforced_is_refused_by_name(llm: LLM) -> None:
    asked = replace(CALLS, tools=(Tool(name="f", strict=True, parameters={"not": {"required": ["a"]}}),))
    with pytest.raises(InvalidParameterError, match="parameters of tool 'f' cannot be enforced") as refusal:
        answer(llm, asked)
    assert refusal.value.param == "tools"
    answer(llm, replace(asked, tools=(Tool(name="f", parameters={"not": {"required": ["a"]}}),)))


def test_a_structural_tag_is_of_the_whole_text(llm: LLM) -> None:
    text = 'hm</think>\n\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    tag = StructuredOutputs(structural_tag={"format": {"type": "const_string", "value": text}})
    free = ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True, tool_dialect="hermes", tools=(TOOLS[1],))
    found = answer(llm, free, structured_outputs=tag)
    assert (text_of(found, "reasoning"), text_of(found, "tool_name")) == ("hm", "g")
    with pytest.raises(InvalidParameterError, match="says what the whole answer is"):
        answer(llm, CALLS, structured_outputs=tag)


@pytest.mark.parametrize(
    ("chat", "param"),
    [
        (ChatOutput(tool_dialect="klingon"), "tool_dialect"),
        (ChatOutput(tool_dialect="qwen3"), "tool_dialect"),
        (ChatOutput(reasoning_dialect="hermes"), "reasoning_dialect"),
        (ChatOutput(tool_dialect="openai", reasoning_dialect="qwen3"), "tool_dialect"),
    ],
)
def test_dialects_that_say_nothing_of_it_are_refused(llm: LLM, chat: ChatOutput, param: str) -> None:
    with pytest.raises(InvalidParameterError) as refusal:
        answer(llm, chat)
    assert refusal.value.param == param
