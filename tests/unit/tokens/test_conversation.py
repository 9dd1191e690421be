"""History made uniform, and where a prompt ends (cases C04, C05)."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.base.errors import InvalidParameterError, TemplateError
from trivium.tokens.chat import ChatTemplate
from trivium.tokens.conversation import Conversation, ends_inside, normalise_messages, render_prompt

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for c in m.tool_calls %}CALL{{ WRITTEN }}{%- endfor %}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{{ opening }}{%- endif %}"
)
AS_JSON = CHATML.replace("WRITTEN", "c.function.arguments | tojson")
AS_ITEMS = CHATML.replace("{{ WRITTEN }}", "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}")
JOINED = CHATML.replace("WRITTEN", "c.function.name + c.function.arguments")
SPELLED = CHATML.replace("WRITTEN", "c.function.arguments")


def turn(**call: Any) -> list[dict[str, Any]]:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", **call}}]
    return [{"role": "user", "content": "u"}, {"role": "assistant", "content": None, "tool_calls": calls}]


def written(source: str, messages: list[dict[str, Any]]) -> str:
    text = render_prompt(ChatTemplate(source), Conversation(messages=normalise_messages(messages)))
    return text.split("CALL", 1)[1].split("<|im_end|>", 1)[0]


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
@pytest.mark.parametrize(
    ("source", "shown"), [(AS_JSON, '{"x": 1}'), (AS_ITEMS, "x=1;"), (JOINED, 'f{"x": 1}'), (SPELLED, '{"x": 1}')]
)
def test_arguments_reach_a_template_in_the_form_that_it_takes(source: str, shown: str, arguments: Any) -> None:
    assert written(source, turn(arguments=arguments)) == shown


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), (None, "{}"), ("{", '"{"'), ("[1]", '"[1]"')])
def test_arguments_that_are_no_object_stay_text(arguments: Any, shown: str) -> None:
    assert written(AS_JSON, turn(arguments=arguments)) == shown


def test_arguments_that_a_template_cannot_take_are_refused_in_its_words() -> None:
    with pytest.raises(TemplateError):
        written(AS_ITEMS, turn(arguments="{"))


def test_results_are_named_after_the_call_that_they_answer() -> None:
    history = [
        *turn(arguments="{}"),
        {"role": "tool", "tool_call_id": "c1", "content": None},
        {"role": "tool", "tool_call_id": "unknown", "content": "42"},
        {"role": "tool", "content": "43"},
        {"role": "tool", "tool_call_id": "c1", "name": "own", "content": "44"},
    ]
    results = [message for message in normalise_messages(history) if message["role"] == "tool"]
    assert [result.get("name") for result in results] == ["f", None, None, "own"]
    assert results[0]["content"] == ""


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_reaches_templates_by_all_its_names(key: str) -> None:
    (message,) = normalise_messages([{"role": "assistant", "content": "a", key: "b"}])
    assert message == {"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning": "b", "thinking": "b"}


def test_no_calls_are_no_key() -> None:
    (message,) = normalise_messages([{"role": "assistant", "content": "a", "tool_calls": []}])
    assert message == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize("opening", ["<think>", "<think>\n", "<think>\n\n", "<think>\n\n</think>\n\n", ""])
def test_an_answer_starts_in_reasoning_where_the_template_opened_it(opening: str) -> None:
    said = [{"role": "user", "content": "what does <think> mean? <think>"}]
    conversation = Conversation(messages=normalise_messages(said), variables={"opening": opening})
    prompt = render_prompt(ChatTemplate(CHATML), conversation)
    assert ends_inside(prompt, conversation, "<think>", "</think>") == (opening.rstrip() == "<think>")


def test_what_the_user_wrote_opens_nothing() -> None:
    said = Conversation(messages=[{"role": "user", "content": "<think>"}], add_generation_prompt=False)
    assert not ends_inside("... <think>", said, "<think>", "</think>")


@pytest.mark.parametrize(
    ("begun", "opening", "is_inside"),
    [
        ("<think>so", "", True),
        ("<think>so</think>yes", "", False),
        ("so</think>yes", "<think>\n", False),
        ("so", "<think>\n", True),
        ("so", "", False),
    ],
)
def test_a_continued_message_starts_in_reasoning_where_it_left_off(begun: str, opening: str, is_inside: bool) -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ opening if loop.last }}{{ m.content }}[end]{% endfor %}"
    said = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": begun}]
    conversation = Conversation(
        messages=normalise_messages(said), continue_final_message=True, variables={"opening": opening}
    )
    prompt = render_prompt(ChatTemplate(source), conversation)
    assert prompt.endswith(opening + begun)
    assert ends_inside(prompt, conversation, "<think>", "</think>") == is_inside


def test_a_message_with_calls_cannot_be_continued() -> None:
    conversation = Conversation(messages=normalise_messages(turn(arguments="{}")), continue_final_message=True)
    with pytest.raises(InvalidParameterError) as caught:
        render_prompt(ChatTemplate(AS_JSON), conversation)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("source", "is_used"),
    [
        ("{{ messages }}", False),
        ("{# tools #}{{ 'tools' }}{{ message.tools }}", False),
        ("{% for t in tools %}{{ t | tojson }}{% endfor %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}", True),
        ("{% macro show(x) %}{{ tools }}{% endmacro %}{{ show(1) }}", True),
    ],
)
def test_a_template_says_what_it_looks_at(source: str, is_used: bool) -> None:
    assert ChatTemplate(source).uses("tools") == is_used
    assert ChatTemplate({"default": "x", "tool_use": source}).uses("tools")
    assert not ChatTemplate(source).uses("documents")
