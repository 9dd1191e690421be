"""What has to be compiled for a request: a constraint on its text, on the parts of its answer, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from trivium.config.chat_output import ChatOutput
from trivium.config.structured import StructuredOutputs

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConstraint:
    """What the answer of a chat must be."""

    chat: ChatOutput
    content: StructuredOutputs | None = None

    @property
    def kind(self) -> str:
        """The field of a request that asks for it."""
        return "tools" if self.chat.callable_tools or self.content is None else self.content.kind


Constraint: TypeAlias = StructuredOutputs | ChatConstraint


def constraint_of(params: SamplingParams) -> Constraint | None:
    """Return what has to be compiled for a request, or `None` where nothing is to be made impossible."""
    chat, content = params.chat_output, params.structured_outputs
    if chat is None:
        return content
    tools = chat.callable_tools
    is_bound = chat.tool_choice == "required" or chat.allowed_tools is not None or not chat.parallel_tool_calls
    is_bound = is_bound or content is not None or any(tool.strict for tool in tools)
    if not (tools and is_bound) and (content is None or chat.reasoning_dialect is None):
        return content
    # a budget of reasoning is kept beside the grammar, which is the same whatever it is
    return ChatConstraint(chat=replace(chat, max_reasoning_tokens=None), content=content)
