"""From a conversation's fields to its prompt; what `/v1/chat/completions`, `/tokenize` and pins have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from trivium.base.errors import UnsupportedFeatureError
from trivium.config.chat_output import ChatOutput
from trivium.grammar.chat import ChatRequest, conversation_of, output_of
from trivium.server.job import check_prompt_ids
from trivium.server.ports import ChatTemplatePort
from trivium.server.reasoning import BUDGET_FIELDS, budget_of, effort_of
from trivium.server.service import LONG_TEXT_CHARS, Service
from trivium.tokens.conversation import Conversation, render_prompt
from trivium.tokens.tool_messages import count_calls
from trivium.tokens.tool_request import WantedCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation as the engine takes it."""

    ids: list[int]
    output: ChatOutput | None
    """What the answer is made of."""
    num_calls: int
    """Tool calls of its history."""


async def chat_prompt(service: Service, values: Mapping[str, Any]) -> ChatPrompt:
    """Render the conversation and tokenize it; the template writes the start token, so none is added to it.

    Raises:
        RequestError: The messages are refused, the template does not show what the request brings, or there is none.
    """
    template = service.chat_template
    if template is None:
        raise UnsupportedFeatureError(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template",
            param="messages",
        )
    request = _request(values, template, has_reasoning=service.dialects.reasoning is not None)
    conversation = conversation_of(request, template, service.dialects)

    def render() -> str:
        return render_prompt(template, conversation)

    text = render() if _size(conversation) < LONG_TEXT_CHARS else await asyncio.to_thread(render)
    output = output_of(request, service.dialects, conversation, text)
    (ids,) = await service.encode([text], add_special_tokens=values.get("add_special_tokens", False))
    check_prompt_ids("messages", ids, service.vocab_size)
    return ChatPrompt(ids=ids, output=output, num_calls=count_calls(conversation.messages))


def _request(values: Mapping[str, Any], template: ChatTemplatePort, *, has_reasoning: bool) -> ChatRequest:
    effort = effort_of(values, template, has_reasoning=has_reasoning)
    return ChatRequest(
        messages=values.get("messages"),
        tools=values.get("tools", ()),
        calls=values.get("tool_choice", WantedCalls()),
        parallel_tool_calls=values.get("parallel_tool_calls", True),
        documents=values.get("documents", ()),
        add_generation_prompt=values.get("add_generation_prompt"),
        continue_final_message=values.get("continue_final_message", False),
        variables={**values.get("chat_template_kwargs", {}), **effort.variables},
        separates_reasoning=values.get("separate_reasoning", True),
        max_reasoning_tokens=budget_of(values, effort),
        budget_field=next((name for name in BUDGET_FIELDS if name in values), "reasoning_effort"),
    )


def _size(conversation: Conversation) -> int:
    """Characters of what is rendered, roughly."""
    size = sum(len(message["content"]) for message in conversation.messages)
    return size + sum(len(msgspec.json.encode(tool)) for tool in conversation.tools)
