"""Unit tests of `trivium.config.chat_output`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import MAX_TOOLS, ChatOutput, Tool
from trivium.config.sampling import SamplingParams

WEATHER = Tool(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
TIME = Tool(name="time.now-2", strict=True)


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "wanted",
    [
        ChatOutput(),
        ChatOutput(tools=(WEATHER, TIME)),
        ChatOutput(tools=(WEATHER, TIME), tool_dialect="hermes", tool_choice="required", allowed_tools=("weather",)),
        ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True, max_reasoning_tokens=0),
    ],
)
def test_what_is_asked_for_is_taken_and_travels(wanted: ChatOutput) -> None:
    params = SamplingParams(chat_output=wanted)
    params.validate()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": (Tool(name="a b"),)}, "tools", "name of a tool is 'a b'; it must be 1 to 128 of letters"),
        ({"tools": (Tool(name=""),)}, "tools", "name of a tool is ''"),
        ({"tools": (Tool(name="a", parameters={"type": "array"}),)}, "tools", "parameters of 'a'"),
        ({"tools": (Tool(name="a", parameters=deep(64)),)}, "tools", "nested at most 64 deep"),
        ({"tools": (Tool(name="a", parameters={"x": b""}),)}, "tools", "a JSON Schema"),
        ({"tools": (Tool(name="a", parameters={"title": "x" * (1 << 18)}),)}, "tools", "at most 262144 bytes"),
        ({"tools": (Tool(name="a", strict=1),)}, "tools", "strict of 'a' is 1; it must be true or false"),  # type: ignore[arg-type]
        ({"tools": ({"name": "a"},)}, "tools", "a list of Tool"),
        ({"tools": (WEATHER, WEATHER)}, "tools", "tools holds 'weather' twice"),
        (
            {"tools": tuple(Tool(name=f"a{k}") for k in range(MAX_TOOLS + 1))},
            "tools",
            "'513 tools'; it must be",
        ),
        ({"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required'"),
        ({"tool_choice": "required", "tool_dialect": "hermes"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "required", "tools": (TIME,)}, "tool_choice", "--tool-call-parser"),
        ({"tools": (TIME,), "allowed_tools": ("weather",)}, "tool_choice", "names 'weather', which tools lacks"),
        ({"tools": (TIME,), "allowed_tools": ()}, "allowed_tools", "not empty"),
        ({"parallel_tool_calls": None}, "parallel_tool_calls", "true or false"),
        ({"reasoning_dialect": 7}, "reasoning_dialect", "a dialect's name"),
        ({"starts_in_reasoning": True}, "starts_in_reasoning", "no reasoning_dialect"),
        ({"max_reasoning_tokens": 7}, "max_reasoning_tokens", "--reasoning-parser"),
        ({"max_reasoning_tokens": -1, "reasoning_dialect": "qwen3"}, "max_reasoning_tokens", "a whole number from 0"),
    ],
)
def test_what_is_outside_the_limits_is_refused_by_name(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidParameterError) as refusal:
        ChatOutput(**fields).validate()
    assert refusal.value.param == param
    assert message in str(refusal.value)


def test_only_a_chat_output_is_taken() -> None:
    with pytest.raises(InvalidParameterError, match="must be a ChatOutput"):
        SamplingParams(chat_output={"tools": []}).validate()  # type: ignore[arg-type]


def test_the_tools_that_may_be_called() -> None:
    both = ChatOutput(tools=(WEATHER, TIME), tool_dialect="hermes")
    assert both.callable_tools == (WEATHER, TIME)
    assert ChatOutput(tools=both.tools).callable_tools == ()
    assert ChatOutput(tools=both.tools, tool_dialect="hermes", tool_choice="none").callable_tools == ()
    assert ChatOutput(tools=both.tools, tool_dialect="hermes", allowed_tools=("weather",)).callable_tools == (WEATHER,)
