"""Chat messages made uniform, so that every template meets the same shapes.

Templates of real checkpoints join `message.content` with `+`: a missing, null or list content would raise inside them.
Here content becomes a text always; what cannot become text (pictures, sound, files) is refused, and nothing is fetched.
The same rules hold for the HTTP server and for `LLM.chat`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trivium.base.errors import InvalidParameterError, TemplateError, UnsupportedFeatureError
from trivium.tokens.tool_messages import name_results, tool_calls, with_arguments

MAX_MESSAGES = 4096
MAX_SHOWN_CHARS = 60
PART_SEPARATOR = "\n"
"""Joins the text parts of one message."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role of the API to role of the template; open models know the developer's turn as the system's."""
_PLAIN_KEYS = frozenset({"name", "tool_call_id"})
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What clients and templates call an earlier turn's reasoning; a template gets what was given by all these names."""
_EMPTY_KEYS = frozenset({"refusal", "audio", "function_call", "annotations"})
"""Keys that a client sends back from an earlier answer; only empty values pass."""
_RESERVED_VARIABLES = frozenset({
    "self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now",
})  # fmt: skip


class Renders(Protocol):
    """What turns uniform messages into a prompt; `ChatTemplate` does."""

    @property
    def takes_text_arguments(self) -> bool:
        """Whether it wants the arguments of calls as texts, not as objects."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Write a conversation as a prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a prompt is written from."""

    messages: Sequence[dict[str, Any]]
    """What `normalise_messages` returned."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Descriptions of functions, as the template shows them to the model."""
    add_generation_prompt: bool | None = None
    """Whether to end with the beginning of an answer; `None` does so unless the final message is continued."""
    continue_final_message: bool = False
    """Whether to end inside the final message, so that the answer goes on with it."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The request's own variables for the template (`chat_template_kwargs`, `documents`)."""


def normalise_messages(messages: object, where: str = "messages") -> list[dict[str, Any]]:
    """Check a conversation and make it uniform.

    Args:
        messages: What the user wrote.
        where: What errors call it.

    Returns:
        Messages with the keys `role` and `content` (a text), and those of `name`, `tool_calls`, `tool_call_id` and
        `reasoning_content` (also as `reasoning` and `thinking`) that were given.

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
    uniform = [_normalise(f"{where}[{idx}]", message) for idx, message in enumerate(messages)]
    name_results(uniform)
    return uniform


def render_prompt(template: Renders, conversation: Conversation) -> str:
    """Write a conversation as a prompt.

    Raises:
        InvalidParameterError: The fields contradict each other.
        TemplateError: The template refused the messages.
    """
    taken = _RESERVED_VARIABLES.intersection(conversation.variables)
    if taken:
        raise _bad("chat_template_kwargs", f"it must not set {', '.join(sorted(taken))}")
    messages = with_arguments(conversation.messages, as_text=template.takes_text_arguments)
    if not conversation.continue_final_message:
        adds_prompt = conversation.add_generation_prompt is not False
        return _render(template, messages, conversation, add_generation_prompt=adds_prompt)
    if conversation.add_generation_prompt:
        raise _bad("continue_final_message", "it cannot be combined with add_generation_prompt")
    if messages[-1].get("tool_calls"):
        raise _bad("continue_final_message", "the final message has tool calls, behind which nothing can go on")
    # The final message is marked at its end, and the prompt cut at the mark, before whatever the template puts behind.
    mark = secrets.token_hex(16)
    final = {**messages[-1], "content": messages[-1]["content"] + mark}
    rendered = _render(template, [*messages[:-1], final], conversation, add_generation_prompt=False)
    before, found, _ = rendered.rpartition(mark)
    if not found:
        raise TemplateError("the chat template dropped the final message, so it cannot be continued", param="messages")
    return before


def ends_inside(prompt: str, conversation: Conversation, opening: str, closing: str) -> bool:
    """Whether a prompt ends inside a span, so that the answer begins in it.

    What users wrote does not count: looked at are the end of the prompt, which is the template's own, and the final
    message where that is continued.

    Args:
        prompt: What `render_prompt` returned.
        conversation: What it was written from.
        opening: What opens the span, such as `<think>`.
        closing: What closes it.
    """
    if conversation.continue_final_message:
        begun = conversation.messages[-1]["content"]
        if opening in begun or closing in begun:
            return bool(begun.rfind(opening) > begun.rfind(closing))
        return prompt.removesuffix(begun).rstrip().endswith(opening)
    return conversation.add_generation_prompt is not False and prompt.rstrip().endswith(opening)


def _render(
    template: Renders,
    messages: Sequence[Mapping[str, Any]],
    conversation: Conversation,
    *,
    add_generation_prompt: bool,
) -> str:
    try:
        return template.render(
            messages,
            tools=conversation.tools or None,
            add_generation_prompt=add_generation_prompt,
            **conversation.variables,
        )
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
            if calls := tool_calls(f"{where}.tool_calls", value):
                uniform["tool_calls"] = calls
        else:
            _take_key(uniform, where, key, value)
    if uniform["content"] and "tool_calls" in uniform:
        uniform.pop("thinking", None)  # harmony's template refuses both
    return uniform


def _take_key(uniform: dict[str, Any], where: str, key: str, value: object) -> None:
    """Keep one of the lesser keys of a message, or refuse it."""
    if key in _PLAIN_KEYS or key in _REASONING_KEYS:
        if not isinstance(value, str):
            raise _bad(f"{where}.{key}", "it must be a text")
        uniform |= dict.fromkeys(_REASONING_KEYS if key in _REASONING_KEYS else (key,), value)
    elif key not in _EMPTY_KEYS:
        raise _bad(where, f"unknown key {_shown(key)}")
    elif value:
        raise UnsupportedFeatureError(f"{where}.{key} is not supported", param="messages")


def _content_text(where: str, role: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role in {"assistant", "tool"}:
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


def _bad(where: str, reason: str) -> InvalidParameterError:
    return InvalidParameterError(f"{where}: {reason}", param=where.split("[", 1)[0].split(".", 1)[0])


def _shown(value: object) -> str:
    """What was given, short enough for a message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
