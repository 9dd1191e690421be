"""`tools` and `tool_choice` in OpenAI's words (case C02)."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.base.errors import InvalidParameterError, RequestError, UnsupportedFeatureError
from trivium.config.chat_output import MAX_TOOLS
from trivium.tokens.tool_request import WantedCalls, check_choice, read_tool_choice, read_tools

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_a_tool_is_shown_as_it_was_described_but_for_strictness() -> None:
    (declared,) = read_tools([tool(description="finds", parameters=PARAMETERS, strict=True)])
    assert declared.tool.strict
    assert declared.tool.parameters == PARAMETERS
    assert declared.shown == tool(description="finds", parameters=PARAMETERS)


def test_a_tool_without_parameters_is_shown_with_an_empty_object() -> None:
    (declared,) = read_tools([tool(parameters=None, description=None, strict=None)])
    assert declared.tool.parameters is None
    assert declared.shown == tool(parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    "tools",
    [
        "f",
        {"type": "function"},
        ["f"],
        [{}],
        [{"type": None, "function": {"name": "f"}}],
        [{"function": {"name": "f"}}],
        [{"type": "function"}],
        [{"type": "function", "function": "f"}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": "f"}, "extra": 1}],
        [{"type": "function", "name": "f"}],
        [tool(invented=1)],
        [tool("")],
        [tool("a b")],
        [tool("x" * 200)],
        [tool(5)],
        [tool(description=5)],
        [tool(description="x" * (1 << 17))],
        [tool(strict="yes")],
        [tool(parameters="{}")],
        [tool(parameters=[])],
        [tool(parameters={"type": "string"})],
        [tool("f"), tool("f")],
        [tool(f"f{idx}") for idx in range(MAX_TOOLS + 1)],
        [tool(f"f{idx}", parameters={"type": "object", "description": "x" * 200_000}) for idx in range(8)],
    ],
)
def test_tools_of_another_shape_or_too_many_are_refused_by_name(tools: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read_tools(tools)
    assert caught.value.param == "tools"
    assert len(str(caught.value)) < 600


def test_other_types_than_functions_are_unsupported() -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        read_tools([{"type": "custom", "custom": {"name": "f"}}])
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("none", WantedCalls("none")),
        ("auto", WantedCalls("auto")),
        ("required", WantedCalls("required")),
        (named("f"), WantedCalls("required", ("f",), is_single=True)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("f"), named("g"), named("f")]}},
            WantedCalls("auto", ("f", "g")),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("g")]}},
            WantedCalls("required", ("g",)),
        ),
    ],
)
def test_every_form_of_tool_choice_is_read(value: Any, wanted: WantedCalls) -> None:
    assert read_tool_choice(value) == wanted


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        5,
        True,
        "",
        "banana",
        "f",
        {"type": "function"},
        {"type": "function", "function": "f"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": 5}},
        {"type": "function", "name": "f"},
        {**named("f"), "extra": 1},
        {"type": "tool", "function": {"name": "f"}},
        {"function": {"name": "f"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [named("f")]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
    ],
)
def test_other_forms_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read_tool_choice(value)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "wanted"),
    [
        ([], WantedCalls("required")),
        ([], WantedCalls("required", ("f",))),
        ([tool("g")], WantedCalls("required", ("f",))),
        ([tool("g")], WantedCalls("auto", ("g", "f"))),
    ],
)
def test_a_choice_that_no_tool_can_meet_is_refused_by_name(tools: list[Any], wanted: WantedCalls) -> None:
    with pytest.raises(RequestError) as caught:
        check_choice(read_tools(tools), wanted)
    assert caught.value.param == "tool_choice"
    check_choice(read_tools([tool("f"), tool("g")]), wanted)
