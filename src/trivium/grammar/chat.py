"""What a chat's request comes to: the conversation that is rendered, and what its answer is made of.

The HTTP server and `LLM.chat` ask the same, so that both refuse the same in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.config.chat_output import ChatOutput
from trivium.grammar.detect import ModelDialects
from trivium.grammar.dialects import Reasoning, dialect_of
from trivium.tokens.conversation import Conversation, ends_inside, normalise_messages
from trivium.tokens.told_tools import DIALECT, tell_tools
from trivium.tokens.tool_request import DeclaredTool, WantedCalls, check_choice


class Shows(Protocol):
    """A chat template, as far as it says what it looks at."""

    def uses(self, variable: str) -> bool:
        """Whether it looks at a variable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a request of a chat brings besides its sampling parameters."""

    messages: object
    where: str = "messages"
    """What errors call the messages."""
    tools: Sequence[DeclaredTool] = ()
    calls: WantedCalls = field(default_factory=WantedCalls)
    parallel_tool_calls: bool = True
    documents: Sequence[Mapping[str, str]] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""
    separates_reasoning: bool = True
    max_reasoning_tokens: int | None = None
    budget_field: str = "max_reasoning_tokens"
    """What errors call the field before."""


def conversation_of(request: ChatRequest, template: Shows, dialects: ModelDialects) -> Conversation:
    """Check what the prompt is written from.

    A template that never shows tools is told of them in words, if calls are known to be written as those words ask.

    Raises:
        RequestError: A message is refused, fields contradict each other, or the template would not show to the model
            what the request brings.
    """
    check_choice(request.tools, request.calls)
    variables = dict(request.variables)
    is_told = bool(request.tools) and not template.uses("tools")
    if is_told and dialects.tools != DIALECT:
        raise _never_shown("tools", f", or they are told in words with --tool-call-parser {DIALECT}")
    if request.documents:
        if not template.uses("documents"):
            raise _never_shown("documents", "")
        if "documents" in variables:
            raise InvalidParameterError(
                "documents and chat_template_kwargs.documents contradict each other", param="documents"
            )
        variables["documents"] = request.documents
    messages = normalise_messages(request.messages, request.where)
    tools = [each.shown for each in request.tools]
    return Conversation(
        messages=tell_tools(messages, tools) if is_told else messages,
        tools=() if is_told else tools,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables=variables,
    )


def output_of(
    request: ChatRequest, dialects: ModelDialects, conversation: Conversation, prompt: str
) -> ChatOutput | None:
    """Say what the answer is made of, or return `None` where it is plain text.

    Args:
        request: What was asked.
        dialects: Those of the model.
        conversation: What `conversation_of` made of it.
        prompt: The conversation as the template wrote it.

    Raises:
        InvalidParameterError: A field is outside its limits.
        UnsupportedFeatureError: It is not known how the model writes what is asked for.
    """
    reasoning = dialects.reasoning if request.separates_reasoning else None
    if request.tools and dialects.tools is None and request.calls.mode != "none":
        raise UnsupportedFeatureError(
            "tools is not supported: it is not known how this model writes calls; say so with --tool-call-parser",
            param="tools",
        )
    if request.max_reasoning_tokens is not None and reasoning is None:
        why = (
            "it is not known how this model marks its reasoning; say so with --reasoning-parser"
            if request.separates_reasoning
            else "it needs separate_reasoning"
        )
        raise UnsupportedFeatureError(f"{request.budget_field} is not supported: {why}", param=request.budget_field)
    budget = request.max_reasoning_tokens
    if reasoning is not None and _has_closed_reasoning(reasoning, prompt):
        reasoning = budget = None
    if reasoning is None and not request.tools:
        return None
    output = ChatOutput(
        reasoning_dialect=reasoning,
        starts_in_reasoning=reasoning is not None and _starts_in_reasoning(reasoning, conversation, prompt),
        tool_dialect=dialects.tools if request.tools else None,
        tools=tuple(each.tool for each in request.tools),
        tool_choice=request.calls.mode,
        allowed_tools=request.calls.allowed,
        parallel_tool_calls=request.parallel_tool_calls and not request.calls.is_single,
        max_reasoning_tokens=budget,
    )
    output.validate()
    return output


def _has_closed_reasoning(name: str, prompt: str) -> bool:
    """Whether the template has closed the span of a model that would reason from the first letter on."""
    marks = _marks(name)
    return marks is not None and marks.is_open and prompt.rstrip().endswith(marks.end)


def _marks(name: str) -> Reasoning | None:
    dialect = dialect_of(name)
    return None if dialect is None else dialect.reasoning


def _starts_in_reasoning(name: str, conversation: Conversation, prompt: str) -> bool:
    marks = _marks(name)
    return marks is not None and ends_inside(prompt, conversation, marks.begin, marks.end)


def _never_shown(field: str, way_out: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{field} is not supported: the chat template of this model never shows them to the model; one that does can "
        f"be given with --chat-template{way_out}",
        param=field,
    )
