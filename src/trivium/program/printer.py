"""Programs as text: one line per node, stable, readable, diffable; `program.parser` reads it back.

::

    program advise(topic, style="short") {
        role user {
            say "Advise me on " + @topic
        }
        fork tips {
            branch {
                gen tip max_tokens=16 stop="."
            }
        }
        say $tips#0.tip
        select kind choices=["yes", "no"]
        tool search args={"query": $kind} into=found
        if ($kind == "yes") {
            gen why regex=$found["pattern"]
        } else {
            set why = ""
        }
        return $why
    }

A name that is no plain word stands in quotes. Lines of the author are not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any

from trivium.program.nodes import WORD_OF, Body, Kind, Node, Param, Program, parts
from trivium.program.values import Argument, Operation, Text, Value, Variable

INDENT = "    "
PLACES: Mapping[str, tuple[str, ...]] = {
    "say": ("text",),
    "gen": ("name",),
    "select": ("name",),
    "tool": ("tool",),
    "set": ("name", "value"),
    "role": ("role",),
    "scope": ("name",),
    "fork": ("name",),
    "join": ("fork", "mode"),
    "if": ("condition",),
    "while": ("condition",),
    "match": ("subject",),
}
"""Fields that are written without their names, in this order."""
SPREAD = "options"
"""The field whose entries are written as if they were fields."""
BLOCKS = (Kind.BODY, Kind.BODIES, Kind.CASES)
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def to_text(program: Program) -> str:
    """Write a program, ending in a newline."""
    params = ", ".join(map(_param_text, program.params))
    lines = [f"program {name_text(program.name)}({params}) {{", *_body_lines(program.body, 1)]
    if program.result is not None:
        lines.append(f"{INDENT}return {value_text(program.result)}")
    return "\n".join([*lines, "}"]) + "\n"


def node_line(node: Node) -> str:
    """Write a node without its bodies."""
    word = WORD_OF[type(node)]
    written = [word]
    held = {each.name: (getattr(node, each.name), kind, each) for each, kind in parts(node)}
    for name in PLACES[word]:
        value, kind, _ = held.pop(name)
        if value is not None or kind is Kind.VALUE:
            written += ["="] if name == "value" else []
            written.append(value_text(value) if kind is Kind.VALUE else name_text(value))
    for name, (value, kind, each) in held.items():
        if kind in BLOCKS:
            continue
        if name == SPREAD:
            written += [f"{key}={value_text(option)}" for key, option in value.items()]
        elif value != (each.default_factory() if each.default_factory is not MISSING else each.default):
            is_name = kind in {Kind.NAME, Kind.WORD}
            written.append(f"{name}={name_text(value) if is_name else value_text(value)}")
    return " ".join(written)


def name_text(name: str) -> str:
    """Write a name: as it is, or in quotes."""
    return name if PLAIN.match(name) else _string(name)


def value_text(value: Value) -> str:  # noqa: PLR0911  (one return per class)
    """Write a value."""
    match value:
        case Argument(name, path):
            return f"@{name_text(name)}{_path_text(path)}"
        case Variable(name, path, branch, is_parsed):
            owner = "" if branch is None else f"{name_text(branch.fork)}#{branch.idx}."
            return f"${owner}{name_text(name)}{'.parsed' if is_parsed else ''}{_path_text(path)}"
        case Text(pieces):
            written = [value_text(piece) for piece in pieces]
            return " + ".join(written if len(written) > 1 else ['""', *written])
        case Operation(name, operands):
            written = [value_text(operand) for operand in operands]
            return f"({name} {written[0]})" if len(written) == 1 else f"({f' {name} '.join(written)})"
        case list():
            return f"[{', '.join(map(value_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{_string(key)}: {value_text(each)}' for key, each in value.items())}}}"
        case str():
            return _string(value)
    return json.dumps(value)


def _body_lines(body: Body, depth: int) -> Iterator[str]:
    indent = INDENT * depth
    for node in body:
        held = [(getattr(node, each.name), kind) for each, kind in parts(node) if kind in BLOCKS]
        if not held:
            yield indent + node_line(node)
            continue
        yield f"{indent}{node_line(node)} {{"
        first, kind = held[0]
        yield from _block_lines(first, kind, depth + 1)
        for otherwise, _ in held[1:]:
            if otherwise:
                yield f"{indent}}} else {{"
                yield from _body_lines(otherwise, depth + 1)
        yield f"{indent}}}"


def _block_lines(held: Any, kind: Kind, depth: int) -> Iterator[str]:
    if kind is Kind.BODY:
        yield from _body_lines(held, depth)
        return
    indent = INDENT * depth
    for each in held:
        head = "branch" if kind is Kind.BODIES else f"case {', '.join(map(value_text, each.values))}"
        yield f"{indent}{head} {{"
        yield from _body_lines(each if kind is Kind.BODIES else each.body, depth + 1)
        yield f"{indent}}}"


def _param_text(param: Param) -> str:
    return name_text(param.name) + ("" if param.is_required else f"={value_text(param.default)}")


def _path_text(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{_string(step) if isinstance(step, str) else step}]" for step in path)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
