"""Tool calls and their results in a conversation's history, made uniform.

Templates differ in what they take the arguments of a call for: most write an object as JSON, some join a text with `+`.
History keeps what the client sent; `with_arguments` gives a template the form that it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trivium.base.errors import InvalidParameterError

Message = dict[str, Any]


def tool_calls(where: str, calls: object) -> list[dict[str, Any]]:
    """Check the calls of an assistant's turn; arguments stay the text, or become the object, that they are.

    Raises:
        InvalidParameterError: A call has no function, no name, or arguments that are neither text nor object.
    """
    if not isinstance(calls, list | tuple):
        raise _bad(where, "it must be a list of calls")
    return [_tool_call(f"{where}[{idx}]", call) for idx, call in enumerate(calls)]


def _tool_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _bad(where, "it must be an object with a function and its name")
    arguments = function.get("arguments", "")
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str | Mapping):
        raise _bad(f"{where}.function.arguments", "it must be a text")
    kept = arguments if isinstance(arguments, str) else dict(arguments)
    uniform: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": kept}}
    if isinstance(call.get("id"), str):
        uniform["id"] = call["id"]
    return uniform


def name_results(messages: Iterable[Message]) -> None:
    """Give each tool's result the name of the tool that was called, where only the call's id says it.

    Effects:
        Adds `name` to messages of the role `tool`. A result of an unknown call stays as it is.
    """
    names: dict[str, str] = {}
    for message in messages:
        names.update({call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if "id" in call})
        name = names.get(message.get("tool_call_id", ""))
        if message["role"] == "tool" and "name" not in message and name is not None:
            message["name"] = name


def count_calls(messages: Iterable[Mapping[str, Any]]) -> int:
    """Count the calls that a history holds."""
    return sum(len(message.get("tool_calls", ())) for message in messages)


def with_arguments(messages: Sequence[Message], *, as_text: bool) -> list[Message]:
    """Copy messages so that the arguments of all calls are texts, or objects where they are JSON objects."""
    convert = _as_text if as_text else _as_object
    return [
        {**message, "tool_calls": [_converted(call, convert(call["function"]["arguments"])) for call in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


def _converted(call: Mapping[str, Any], arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _as_object(arguments: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Parse; what is no JSON object stays the text that it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _as_text(arguments: str | Mapping[str, Any]) -> str:
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments or "{}"


def _bad(where: str, reason: str) -> InvalidParameterError:
    return InvalidParameterError(f"{where}: {reason}", param=where.split("[", 1)[0].split(".", 1)[0])
