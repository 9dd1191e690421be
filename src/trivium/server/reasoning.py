"""`reasoning_effort`, from a word to what a model understands: variables of its template, or a number of tokens.

A template that knows the word itself is given it. One that only knows a switch is told whether to reason, and the
tokens of the reasoning are limited. What can be told neither is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.server.ports import ChatTemplatePort

BUDGETS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": None,
    "xhigh": None,
}
"""Most tokens of reasoning by effort, for templates that do not know the word; `None` is no limit."""
BUDGET_FIELDS = ("max_reasoning_tokens", "thinking_token_budget")
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on and off: Qwen's, GLM's and SmolLM's; DeepSeek's and Granite's."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a request's effort comes to."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """For the template."""
    max_tokens: int | None = None


def effort_of(values: Mapping[str, Any], template: ChatTemplatePort, *, has_reasoning: bool) -> Effort:
    """Translate `reasoning_effort`.

    Args:
        values: Honoured fields that were given.
        template: The model's.
        has_reasoning: Whether it is known how the model marks its reasoning.

    Raises:
        InvalidParameterError: `chat_template_kwargs` contradicts it.
        UnsupportedFeatureError: The model cannot be told.
    """
    word = values.get("reasoning_effort")
    if word is None:
        return Effort()
    if template.uses("reasoning_effort"):
        return Effort(_without_contradiction(values, {"reasoning_effort": word}))
    switches = {name: word != "none" for name in SWITCHES if template.uses(name)}
    if not has_reasoning and not switches:
        if word == "none":
            return Effort()
        raise UnsupportedFeatureError(
            f"reasoning_effort '{word}' is not supported: this model's chat template knows no effort, and it is not "
            "known how the model marks its reasoning (--reasoning-parser)",
            param="reasoning_effort",
        )
    variables = _without_contradiction(values, switches)
    if not has_reasoning or (word == "none" and switches):
        return Effort(variables)
    return Effort(variables, BUDGETS[word])


def budget_of(values: Mapping[str, Any], effort: Effort) -> int | None:
    """Return the most tokens of reasoning: what was asked for in numbers, else what the effort comes to.

    Raises:
        InvalidParameterError: Two fields contradict each other.
    """
    names = [name for name in BUDGET_FIELDS if name in values]
    if len({values[name] for name in names}) > 1:
        raise InvalidParameterError(f"{names[0]} and {names[1]} contradict each other", param=names[1])
    return int(values[names[0]]) if names else effort.max_tokens


def _without_contradiction(values: Mapping[str, Any], variables: Mapping[str, Any]) -> Mapping[str, Any]:
    given = values.get("chat_template_kwargs", {})
    for name, value in variables.items():
        if name in given and given[name] != value:
            raise InvalidParameterError(
                f"reasoning_effort and chat_template_kwargs.{name} contradict each other", param="reasoning_effort"
            )
    return variables
