"""What is known of a program before it runs, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trivium.lang.precache import MIN_LETTERS, prefix_ids
from trivium.program.foresight import beside, constraints, most_work, static_prefix, together, tools
from trivium.program.nodes import Body, Role, Say
from trivium.program.printer import to_text

if TYPE_CHECKING:
    from trivium.lang.recording import Obstacle
    from trivium.program.nodes import Program

MAX_SHOWN = 64
WIDTH = 18


def explained(program: Program, obstacle: Obstacle | None, backend: Any) -> str:
    """Tell of a program: itself, and a line per thing that is known.

    Args:
        program: It, or its beginning.
        obstacle: What ended its trace.
        backend: What counts tokens; `None` counts characters only.
    """
    rows = list(_rows(program, obstacle, backend))
    return to_text(program) + "\n" + "".join(f"{name:<{WIDTH}}{said}\n" for name, said in rows)


def _rows(program: Program, obstacle: Obstacle | None, backend: Any) -> Iterator[tuple[str, str]]:
    yield "static prefix", _prefix(program.body, backend)
    listed = [f"{kind} {_short(value)}" for kind, value in constraints(program)]
    yield "compiled ahead", "; ".join(listed) or "nothing"
    for name, count in together(program.body):
        yield "side by side", f"the {count} branches of {name}, over one prefix"
    for name in beside(program.body):
        yield "side by side", f"{name} and what follows its join, if the run draws greedily or with seeds"
    work = most_work(program.body)
    tokens = "tokens without a limit of the program's" if work.tokens is None else f"{work.tokens} tokens"
    yield (
        "at most",
        f"{work.model_calls} gens and selects, {work.tool_calls} tool calls, {work.branches} branches, {tokens}",
    )
    if called := tools(program):
        yield "tools", ", ".join(called)
    if obstacle is None:
        yield "traced", "to its end"
    else:
        yield "not traced", f"from {obstacle.line} on: {obstacle.reason}"
        yield "", "it runs as an ordinary program; what is known before that line is used all the same"


def _prefix(body: Body, backend: Any) -> str:
    text = _spoken(static_prefix(body))
    if not text:
        return "none"
    found = f"{len(text)} characters of text"
    if backend is not None:
        ids = prefix_ids(body, backend)
        found += f", {len(ids)} tokens with its roles" if ids else ""
        found += "" if ids else f", fewer than the {MIN_LETTERS} that are worth a request"
    return f"{found}: {_short(text)}"


def _spoken(body: Body) -> str:
    return "".join(
        node.text if isinstance(node, Say) else _spoken(node.body) if isinstance(node, Role) else "" for node in body
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
