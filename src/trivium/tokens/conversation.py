"""Chat messages made uniform, so that every template meets the same shapes.

Templates of real checkpoints join `message.content` with `+`: a missing, null or list content would raise inside them.
Here content becomes a text always; what cannot become text (pictures, sound, files) is refused, and nothing is fetched.
The same rules hold for the HTTP server and for `LLM.chat`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trivium.base.errors import InvalidParameterError, TemplateError, UnsupportedFeatureError

MAX_MESSAGES = 4096
MAX_SHOWN_CHARS = 60
PART_SEPARATOR = "\n"
"""Joins the text parts of one message."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role of the API to role of the template; open models know the developer's turn as the system's."""
_PLAIN_KEYS = frozenset({"name", "tool_call_id", "reasoning_content", "reasoning"})
_EMPTY_KEYS = frozenset({"refusal", "audio", "function_call", "annotations"})
"""Keys that a client sends back from an earlier answer; only empty values pass."""
_RESERVED_VARIABLES = frozenset({
    "self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now",
})  # fmt: skip


class Renders(Protocol):
    """What turns uniform messages into a prompt; `ChatTemplate` does."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Write a conversation as a prompt."""
        ...


def normalise_messages(messages: object, where: str = "messages") -> list[dict[str, Any]]:
    """Check a conversation and make it uniform.

    Args:
        messages: What the user wrote.
        where: What errors call it.

    Returns:
        Messages with the keys `role` and `content` (a text), and those of `name`, `tool_calls`, `tool_call_id`,
        `reasoning_content` and `reasoning` that were given.

    Raises:
        InvalidParameterError: A message has a wrong shape, an unknown role or an unknown key.
        UnsupportedFeatureError: A content part is no text.
    """
    if not isinstance(messages, list | tuple):
        raise _bad(where, f"it is {_shown(messages)}; it must be a list of messages")
    if not messages:
        raise _bad(where, "it is empty; at least one message is needed")
    if len(messages) > MAX_MESSAGES:
        raise _bad(where, f"it has {len(messages)} messages; at most {MAX_MESSAGES} are taken")
    return [_normalise(f"{where}[{idx}]", message) for idx, message in enumerate(messages)]


def render_prompt(
    template: Renders,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    variables: Mapping[str, Any],
) -> str:
    """Render uniform messages.

    Args:
        template: The chat template.
        messages: What `normalise_messages` returned.
        add_generation_prompt: End with the beginning of an answer; `None` does so unless the final one is continued.
        continue_final_message: End inside the final message, so that the answer goes on with it.
        variables: The request's own variables for the template (`chat_template_kwargs`).

    Raises:
        InvalidParameterError: The fields contradict each other.
        TemplateError: The template refused the messages.
    """
    taken = _RESERVED_VARIABLES.intersection(variables)
    if taken:
        raise _bad("chat_template_kwargs", f"it must not set {', '.join(sorted(taken))}")
    if not continue_final_message:
        adds_prompt = add_generation_prompt is not False
        return _render(template, messages, add_generation_prompt=adds_prompt, variables=variables)
    if add_generation_prompt:
        raise _bad("continue_final_message", "it cannot be combined with add_generation_prompt")
    # The final message is marked at its end, and the prompt cut at the mark, before whatever the template puts behind.
    mark = secrets.token_hex(16)
    final = {**messages[-1], "content": messages[-1]["content"] + mark}
    rendered = _render(template, [*messages[:-1], final], add_generation_prompt=False, variables=variables)
    before, found, _ = rendered.rpartition(mark)
    if not found:
        raise TemplateError("the chat template dropped the final message, so it cannot be continued", param="messages")
    return before


def _render(
    template: Renders,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    try:
        return template.render(messages, add_generation_prompt=add_generation_prompt, **variables)
    except TemplateError as error:
        error.param = error.param or "messages"
        raise
    except RecursionError:
        raise TemplateError("the messages are nested too deeply", param="messages") from None


def _normalise(where: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(where, f"it is {_shown(message)}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f"{where}.role", f"it is {_shown(role)}; it must be {', '.join(sorted(_ROLES))}")
    uniform: dict[str, Any] = {"role": _ROLES[role], "content": _content_text(where, role, message.get("content"))}
    for key, value in message.items():
        if key in {"role", "content"} or value is None:
            continue
        if key == "tool_calls" and role == "assistant":
            uniform["tool_calls"] = _tool_calls(f"{where}.tool_calls", value)
        else:
            _take_key(uniform, where, key, value)
    return uniform


def _take_key(uniform: dict[str, Any], where: str, key: str, value: object) -> None:
    """Keep one of the lesser keys of a message, or refuse it."""
    if key in _PLAIN_KEYS:
        if not isinstance(value, str):
            raise _bad(f"{where}.{key}", "it must be a text")
        uniform[key] = value
    elif key not in _EMPTY_KEYS:
        raise _bad(where, f"unknown key {_shown(key)}")
    elif value:
        raise UnsupportedFeatureError(f"{where}.{key} is not supported", param="messages")


def _content_text(where: str, role: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise _bad(f"{where}.content", "it is missing; it must be a text")
    if not isinstance(content, list | tuple):
        raise _bad(f"{where}.content", f"it is {_shown(content)}; it must be a text or a list of text parts")
    parts = [_part_text(f"{where}.content[{idx}]", role, part) for idx, part in enumerate(content)]
    return PART_SEPARATOR.join(parts)


def _part_text(where: str, role: str, part: object) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise _bad(where, "it must be an object with a type")
    kind = part["type"]
    key = "refusal" if kind == "refusal" and role == "assistant" else "text"
    if kind not in {"text", key}:
        raise UnsupportedFeatureError(
            f"{where} is of type '{kind[:MAX_SHOWN_CHARS]}'; this model takes text only, and nothing was fetched",
            param="messages",
        )
    value = part.get(key)
    if not isinstance(value, str):
        raise _bad(f"{where}.{key}", "it must be a text")
    return value


def _tool_calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise _bad(where, f"it is {_shown(calls)}; it must be a list")
    return [_tool_call(f"{where}[{idx}]", call) for idx, call in enumerate(calls)]


def _tool_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _bad(where, "it must be an object with a function and its name")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str | dict):
        raise _bad(f"{where}.function.arguments", "it must be a text")
    uniform = {"type": "function", "function": {"name": function["name"], "arguments": _parsed(arguments)}}
    if isinstance(call.get("id"), str):
        uniform["id"] = call["id"]
    return uniform


def _parsed(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Give templates the object they expect; arguments that are no JSON object stay the text they are."""
    if isinstance(arguments, dict):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _bad(where: str, reason: str) -> InvalidParameterError:
    return InvalidParameterError(f"{where}: {reason}", param=where.split("[", 1)[0].split(".", 1)[0])


def _shown(value: object) -> str:
    """What was given, short enough for a message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
