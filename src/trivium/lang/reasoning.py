"""Reasoning split off the answers of a program, by the dialects of `grammar.dialects`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.config.chat_output import ChatOutput
from trivium.grammar.dialects import ALIASES, DIALECTS, dialect_of
from trivium.lang.expressions import Expr, Gen, Sum, leaves

if TYPE_CHECKING:
    from trivium.grammar.parts import OutputPart

_SGLANG_NAMES: Mapping[str, str] = {
    "deepseek_v3": "deepseek_r1",
    "gpt_oss": "openai_gptoss",
    "kimi_k2": "kimi_k2",
    "minimax": "minimax_m2",
    "qwen3_thinking": "deepseek_r1",
}
"""What SGLang calls dialects that have another name here, with `_` for `-`."""


def separate(expr: Expr, model_type: str) -> Expr:
    """Return a node whose `gen`s keep their reasoning apart.

    Raises:
        InvalidParameterError: There is no `gen` in it.
        UnsupportedFeatureError: No dialect of that name marks reasoning.
    """
    name = _dialect_name(model_type)
    parts = tuple(replace(leaf, reasoning=name) if isinstance(leaf, Gen) else leaf for leaf in leaves(expr))
    if not any(isinstance(part, Gen) for part in parts):
        raise InvalidParameterError("separate_reasoning is given no gen", param="separate_reasoning")
    return parts[0] if len(parts) == 1 else Sum(parts=parts)


def output_of(dialect_name: str, text: str) -> ChatOutput | None:
    """Say how an answer behind a text is read; `None` where the text has ended the reasoning already."""
    dialect = dialect_of(dialect_name)
    marks = None if dialect is None else dialect.reasoning
    before = text.rstrip()
    if marks is not None and marks.is_open and before.endswith(marks.end):
        return None
    opened = marks is not None and before.endswith(marks.begin)
    return ChatOutput(reasoning_dialect=dialect_name, starts_in_reasoning=opened)


def content_of(text: str, parts: Sequence[OutputPart] | None) -> str:
    """Return what of a text is no reasoning."""
    return text if parts is None else "".join(part.text for part in parts if part.kind == "content")


def reasoning_of(parts: Sequence[OutputPart] | None) -> str:
    """Return what of an answer is reasoning."""
    return "".join(part.text for part in parts or () if part.kind == "reasoning")


def _dialect_name(model_type: str) -> str:
    given = str(model_type).lower().replace("-", "_")
    name = _SGLANG_NAMES.get(given, given)
    dialect = dialect_of(name)
    if dialect is None or not dialect.reads_reasoning:
        known = [each for each, row in DIALECTS.items() if row.reads_reasoning]
        names = ", ".join(sorted([*known, *(alias for alias, own in ALIASES.items() if own in known)]))
        raise UnsupportedFeatureError(
            f"model_type is {model_type!r}, whose reasoning is not known; known are {names}", param="model_type"
        )
    return name
