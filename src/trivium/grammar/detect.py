"""Which dialects a model speaks, found in its chat template.

A template that shows tool calls of earlier turns writes them as the model does, so it holds the marks of the dialect
itself. The first entry whose marks are all there decides; what tells a dialect from those that share marks with it
stands before them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from trivium.base.errors import ConfigError
from trivium.grammar.dialects import ALIASES, DIALECTS, dialect_of

AUTO, NONE = "auto", "none"
TOOLS, REASONING = "tool_call_parser", "reasoning_parser"
"""The options' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDialects:
    """How a model writes tool calls and marks reasoning: names in `DIALECTS`, or `None` where that is not known."""

    tools: str | None = None
    reasoning: str | None = None


def choose_dialects(sources: Iterable[str], *, tool_call_parser: str, reasoning_parser: str) -> ModelDialects:
    """Take the dialects that were named, or find them.

    Args:
        sources: Texts of the chat template.
        tool_call_parser: A name, `auto` or `none`.
        reasoning_parser: Likewise.

    Raises:
        ConfigError: A name is no dialect's.
    """
    found = detect("\n".join(sources))
    return ModelDialects(
        tools=_chosen(TOOLS, tool_call_parser, found.tools),
        reasoning=_chosen(REASONING, reasoning_parser, found.reasoning),
    )


def detect(source: str) -> ModelDialects:
    """Find the dialects of a template's text; `None` where it has the marks of none."""
    tools = _first(_CALL_MARKS, source)
    own = None if tools is None else DIALECTS[tools].reasoning
    is_own = own is not None and own.end in source  # the row of its calls knows the model best
    return ModelDialects(tools=tools, reasoning=tools if is_own else _first(_REASONING_MARKS, source))


def _first(table: tuple[tuple[str, tuple[str, ...]], ...], source: str) -> str | None:
    return next((name for name, marks in table if all(mark in source for mark in marks)), None)


def _chosen(option: str, given: str, found: str | None) -> str | None:
    if given == AUTO:
        return found
    if given == NONE:
        return None
    known = [name for name in (*DIALECTS, *ALIASES) if _says(option, name)]
    if given in known:
        return given
    close = difflib.get_close_matches(given, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ConfigError(f"{option} is '{given}'; it must be auto, none or one of {', '.join(sorted(known))}{hint}")


def _says(option: str, name: str) -> bool:
    """Whether a dialect says what an option is about."""
    dialect = dialect_of(name)
    return dialect is not None and (dialect.reads_calls if option == TOOLS else dialect.reads_reasoning)


_CALL_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "commentary")),
    ("functiongemma", ("<start_function_call>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v32", ("DSML", "function_calls")),
    ("deepseek_v4", ("DSML", "tool_calls>")),
    ("deepseek_v3", ("tool▁calls▁begin", "```json")),
    ("deepseek_v31", ("tool▁calls▁begin",)),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("granite", ("<|tool_call|>", "<|start_of_role|>")),
    ("granite-20b-fc", ("<function_call>",)),
    ("internlm", ("<|action_start|>",)),
    ("olmo3", ("<function_calls>",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("phi4_mini_json", ("functools[",)),
    ("hermes", ("<tool_call>",)),
    ("hunyuan_a13b", ("<tool_calls>", "<think>")),
    ("jamba", ("<tool_calls>",)),
    ("pythonic", ("[func_name1(",)),
    ("xlam", ("xLAM team", "JSON array")),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
)
_REASONING_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "analysis")),
    ("mistral", ("[THINK]",)),
    ("seed_oss", ("<seed:think>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("granite", ("Here is my thought process:",)),
    ("qwen3", ("</think>",)),
)
