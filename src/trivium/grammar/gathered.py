"""The parts of an answer put together: its reasoning, its content, its tool calls and what these are called."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.grammar.parts import OutputPart

_LETTERS = string.ascii_letters + string.digits


@dataclass(slots=True)
class GatheredCall:
    """One tool call."""

    name: str = ""
    arguments: str = ""
    """JSON, as the model wrote it."""


@dataclass(slots=True)
class Gathered:
    """An answer, or what has come of it."""

    content: str = ""
    reasoning: str = ""
    calls: list[GatheredCall] = field(default_factory=list)


def gather(parts: Iterable[OutputPart]) -> Gathered:
    """Put parts together, in their order."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[GatheredCall] = []
    for part in parts:
        if part.kind == "content":
            content.append(part.text)
        elif part.kind == "reasoning":
            reasoning.append(part.text)
        else:
            while len(calls) <= part.call:
                calls.append(GatheredCall())
            call = calls[part.call]
            if part.kind == "tool_name":
                call.name += part.text
            else:
                call.arguments += part.text
    return Gathered("".join(content), "".join(reasoning), calls)


def new_call_id(dialect: str | None, name: str, index: int) -> str:
    """Make up the id of a call, in the form that the templates of its dialect take back.

    Args:
        dialect: How the call was written.
        name: The tool's.
        index: Of the call in its conversation, from 0.
    """
    return _FORMS.get(dialect or "", _new_id)(name, index)


def _new_id(name: str, index: int) -> str:
    """OpenAI's form."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


def _nine_letters(name: str, index: int) -> str:
    """Mistral's form: its templates refuse any other length."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def _numbered(name: str, index: int) -> str:
    """Kimi's form, which its template writes into the prompt."""
    return f"functions.{name}:{index}"


_FORMS: Mapping[str, Callable[[str, int], str]] = {"mistral": _nine_letters, "kimi_k2": _numbered}
