"""The tools of a request in OpenAI's words: `tools` and `tool_choice`, read for the template and for the answer.

::

    tools        [{"type": "function", "function": {name, description?, parameters?, strict?}}, ...]
    tool_choice  "none" | "auto" | "required" | {"type": "function", "function": {"name": ...}}
                 | {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [...]}}

Source: OpenAI's API reference of chat completions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.config.chat_output import ChatOutput, Tool, ToolChoice

MAX_SHOWN_CHARS = 60
MAX_DESCRIPTION_CHARS = 1 << 16
_MODES: Mapping[str, ToolChoice] = {"none": "none", "auto": "auto", "required": "required"}
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict"})
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool twice: as its calls are read and enforced, and as the template shows it to the model."""

    tool: Tool
    shown: Mapping[str, Any]
    """In OpenAI's shape, always with parameters and never with `strict`, which is not the model's business."""


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """Which calls an answer may, or must, have."""

    mode: ToolChoice = "auto"
    allowed: tuple[str, ...] | None = None
    """Names of the tools that may be called; `None`: all."""
    is_single: bool = False
    """Whether there is one call and no other, as where a function is named."""


def read_tools(value: object, where: str = "tools") -> tuple[DeclaredTool, ...]:
    """Read descriptions of tools.

    Raises:
        InvalidParameterError: One has a wrong shape, or they are too many or too long.
        UnsupportedFeatureError: One is of another type than `function`.
    """
    if not isinstance(value, list | tuple):
        raise _bad(where, value, "a list of tools")
    declared = tuple(_read_tool(f"{where}[{idx}]", entry) for idx, entry in enumerate(value))
    ChatOutput(tools=tuple(each.tool for each in declared)).validate()
    return declared


def read_tool_choice(value: object, where: str = "tool_choice") -> WantedCalls:
    """Read which calls an answer may or must have; whether the names are those of tools is checked with them.

    Raises:
        InvalidParameterError: It has none of the shapes above.
    """
    if isinstance(value, str) and value in _MODES:
        return WantedCalls(_MODES[value])
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and kind == "function":
        _check_keys(where, value, {"type", "function"})
        return WantedCalls("required", (_name_of(where, value),), is_single=True)
    if isinstance(value, Mapping) and kind == "allowed_tools":
        _check_keys(where, value, {"type", "allowed_tools"})
        return _read_allowed(f"{where}.allowed_tools", value.get("allowed_tools"))
    named = '{"type": "function", "function": {"name": ...}}'
    raise _bad(where, value, f"'none', 'auto', 'required', {named}, or of type 'allowed_tools'")


def check_choice(declared: Sequence[DeclaredTool], wanted: WantedCalls) -> None:
    """Check a choice against the tools that there are.

    Raises:
        InvalidParameterError: A call is required and there are no tools, or a name is none of theirs.
    """
    names = {each.tool.name for each in declared}
    for name in wanted.allowed or ():
        if name not in names:
            known = ", ".join(sorted(names))[: 5 * MAX_SHOWN_CHARS] or "none"
            raise InvalidParameterError(
                f"tool_choice names {_shown(name)}, which is not among tools: {known}", param="tool_choice"
            )
    if wanted.mode == "required" and not names:
        raise InvalidParameterError("tool_choice requires a call, but there are no tools", param="tool_choice")


def _read_tool(where: str, entry: object) -> DeclaredTool:
    if not isinstance(entry, Mapping):
        raise _bad(where, entry, "an object with type and function")
    if entry.get("type") != "function":
        if isinstance(entry.get("type"), str):
            kind = entry["type"][:MAX_SHOWN_CHARS]
            raise UnsupportedFeatureError(f"{where}.type is '{kind}'; only function is supported", param="tools")
        raise _bad(f"{where}.type", entry.get("type"), "'function'")
    _check_keys(where, entry, {"type", "function"})
    function = entry.get("function")
    if not isinstance(function, Mapping):
        raise _bad(f"{where}.function", function, "an object with a name")
    _check_keys(f"{where}.function", function, _FUNCTION_KEYS)
    given = {key: value for key, value in function.items() if value is not None}
    if "name" not in given:
        raise _bad(f"{where}.function.name", None, "a text")
    description = given.get("description")
    if description is not None and not (isinstance(description, str) and len(description) <= MAX_DESCRIPTION_CHARS):
        raise _bad(f"{where}.function.description", description, f"a text of at most {MAX_DESCRIPTION_CHARS} letters")
    tool = Tool(name=given["name"], parameters=given.get("parameters"), strict=given.get("strict", False))
    tool.validate()
    shown: dict[str, Any] = {"name": tool.name}
    if description is not None:
        shown["description"] = description
    shown["parameters"] = _NO_ARGUMENTS if tool.parameters is None else tool.parameters
    return DeclaredTool(tool, {"type": "function", "function": shown})


def _read_allowed(where: str, value: object) -> WantedCalls:
    if not isinstance(value, Mapping):
        raise _bad(where, value, "an object with mode and tools")
    _check_keys(where, value, {"mode", "tools"})
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise _bad(f"{where}.mode", mode, "'auto' or 'required'")
    if not isinstance(tools, list | tuple) or not tools:
        raise _bad(f"{where}.tools", tools, "a list of tools that is not empty")
    names = (_name_of(f"{where}.tools[{idx}]", entry) for idx, entry in enumerate(tools))
    return WantedCalls(mode, tuple(dict.fromkeys(names)))


def _name_of(where: str, value: object) -> str:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _bad(f"{where}.function", function, "an object with the name of a tool")
    return name


def _check_keys(where: str, value: Mapping[Any, Any], known: Iterable[str]) -> None:
    for key in value:
        if key not in known:
            raise InvalidParameterError(
                f"unknown field {_shown(f'{where}.{key}')}; known are {', '.join(sorted(known))}", param=_root(where)
            )


def _root(where: str) -> str:
    return where.split("[", 1)[0].split(".", 1)[0]


def _bad(where: str, value: object, limit: str) -> InvalidParameterError:
    return InvalidParameterError(f"{where} is {_shown(value)}; it must be {limit}", param=_root(where))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
