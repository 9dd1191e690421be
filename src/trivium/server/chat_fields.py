"""Fields of a conversation: what its prompt is written from, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.config.chat_output import MAX_TOOLS
from trivium.server.fields import INT31, Field, count, flag, mapping, one_of, refused, whatever
from trivium.tokens.tool_request import DeclaredTool, WantedCalls, read_tool_choice, read_tools

MAX_DOCUMENTS = 1024
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""What `reasoning_effort` may be."""

_FUNCTION_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
        "strict": {"type": "boolean"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_TOOLS_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["function"]}, "function": _FUNCTION_SCHEMA},
        "required": ["type", "function"],
        "additionalProperties": False,
    },
    "maxItems": MAX_TOOLS,
}
_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["function"]},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
    "additionalProperties": False,
}
_ALLOWED_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["allowed_tools"]},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _NAMED_SCHEMA, "minItems": 1},
            },
            "required": ["mode", "tools"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "allowed_tools"],
    "additionalProperties": False,
}
_CHOICE_SCHEMA = {"anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, _NAMED_SCHEMA, _ALLOWED_SCHEMA]}
_DOCUMENTS_SCHEMA = {
    "type": "array",
    "items": {"type": "object", "additionalProperties": {"type": "string"}},
    "maxItems": MAX_DOCUMENTS,
}


def _tools(name: str, value: Any) -> tuple[DeclaredTool, ...]:
    return read_tools(value, name)


def _tool_choice(name: str, value: Any) -> WantedCalls:
    return read_tool_choice(value, name)


def _documents(name: str, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise refused(name, value, "a list of documents")
    if len(value) > MAX_DOCUMENTS:
        raise refused(name, f"{len(value)} documents", f"at most {MAX_DOCUMENTS}")
    for idx, document in enumerate(value):
        is_texts = isinstance(document, dict) and all(isinstance(part, str) for part in document.values())
        if not is_texts or not document:
            raise refused(f"{name}[{idx}]", document, "an object of texts, such as title and text")
    return value


PROMPT_FIELDS: Mapping[str, Field] = {
    "messages": whatever({"type": "array", "items": {"type": "object"}, "minItems": 1}, "The conversation."),
    "tools": Field(
        _tools,
        _TOOLS_SCHEMA,
        "Functions that the model may call. Arguments of those that are strict always satisfy their parameters.",
    ),
    "documents": Field(_documents, _DOCUMENTS_SCHEMA, "Texts for the template to show to the model, where it does."),
    "add_generation_prompt": flag("Whether the prompt ends with the beginning of an assistant turn."),
    "continue_final_message": flag("Go on with the last message instead of answering it."),
    "chat_template_kwargs": mapping("Further variables of the chat template."),
    "reasoning_effort": one_of(
        EFFORTS, "How long the model may reason: its template is told, or its reasoning ends at a number of tokens."
    ),
}
"""Fields that the prompt is written from."""

OUTPUT_FIELDS: Mapping[str, Field] = {
    "tool_choice": Field(
        _tool_choice,
        _CHOICE_SCHEMA,
        "Whether the answer may, must or must not call tools; a name, or a list of allowed ones. Auto unless given.",
    ),
    "parallel_tool_calls": flag("Whether one answer may call several tools; true unless said otherwise."),
    "max_reasoning_tokens": count(0, INT31, "Tokens of reasoning after which its end is written."),
    "thinking_token_budget": count(0, INT31, "As max_reasoning_tokens, in vLLM's words."),
    "include_reasoning": flag("Whether reasoning is reported; true unless said otherwise."),
    "separate_reasoning": flag("Whether reasoning is kept apart from content; true unless said otherwise."),
}
"""Fields that say what the answer is made of."""
