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
    if chat is None or (content is not None and not binds_content(params)):
        return content
    is_bound = chat.limits_calls or (content is not None and bool(chat.callable_tools))
    if not is_bound and (content is None or chat.reasoning_dialect is None):
        return content
    # a budget of reasoning is kept beside the grammar, which is the same whatever it is
    return ChatConstraint(chat=replace(chat, max_reasoning_tokens=None), content=content)


def binds_content(params: SamplingParams) -> bool:
    """Return whether content is under a constraint of its own; a structural tag is of the whole text."""
    return params.structured_outputs is not None and params.structured_outputs.kind != "structural_tag"
