"""What is known of a program before it runs: how it begins, what it will compile, how much it may do.

`static_prefix` are the nodes that every run begins with, whatever it is given::

    system "You are ..." │ user "Summarise: " + @text │ assistant gen
    ────────────── static prefix ────────┘
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trivium.program.nodes import (
    JOINS,
    Body,
    Fork,
    Gen,
    If,
    Join,
    Match,
    Node,
    Program,
    Role,
    Say,
    Scope,
    Select,
    Set,
    Tool,
    While,
    bodies,
    walk,
)  # fmt: skip
from trivium.program.values import Text, Value, is_constant


def static_prefix(body: Body) -> Body:
    """Return the nodes with which every run's text begins; the last message may be open in it."""
    return _prefix(body)[0]


def _prefix(body: Body) -> tuple[Body, bool]:
    """Return the static beginning, and whether it is all of `body`."""
    found: list[Node] = []
    for node in body:
        match node:
            case Say(text=str()):
                found.append(node)
            case Say(text=Text(parts)) if isinstance(parts[0], str):
                found.append(replace(node, text=parts[0]))
                return tuple(found), False
            case Role() | Scope():
                inner, is_whole = _prefix(node.body)
                if inner or is_whole:
                    found += [replace(node, body=inner)] if isinstance(node, Role) else inner
                if not is_whole:
                    return tuple(found), False
            case Set() | Tool():
                continue
            case _:
                return tuple(found), False
    return tuple(found), True


def ends_open(body: Body, prefix: Body) -> bool:
    """Say whether the last message of a static prefix goes on behind it."""
    if not prefix or not isinstance(prefix[-1], Role):
        return False
    roles = [node for node in body if isinstance(node, Role)]
    own = [node for node in prefix if isinstance(node, Role)]
    return roles[len(own) - 1].body != own[-1].body


def constraints(program: Program) -> list[tuple[str, Value]]:
    """Return the forms that `gen`s may be held to and that no run changes: kind and value, each once."""
    found: dict[str, tuple[str, Value]] = {}
    for _, node in walk(program.body):
        form = node.form if isinstance(node, Gen) else None
        if form is not None and is_constant(form[1]):
            found.setdefault(json.dumps(form, sort_keys=True), form)
    return list(found.values())


def tools(program: Program) -> list[str]:
    """Return the names of the tools that a program may call, each once."""
    return list(dict.fromkeys(node.tool for _, node in walk(program.body) if isinstance(node, Tool)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The most that a run can do."""

    nodes: int = 0
    """Nodes that are done, repetitions included."""
    model_calls: int = 0
    """`gen`s and `select`s."""
    tool_calls: int = 0
    branches: int = 0
    tokens: int | None = 0
    """Tokens that `gen`s may write; `None` where one does not say."""

    def __add__(self, other: Work) -> Work:
        return _combined(self, other, lambda left, right: left + right)

    def most(self, other: Work) -> Work:
        """Return the larger of each."""
        return _combined(self, other, max)

    def times(self, count: int) -> Work:
        """Return the work of repeating it."""
        return _combined(self, self, lambda each, _: each * count)


def most_work(body: Body, default_max_tokens: int | None = None) -> Work:
    """Return the most that a body can do.

    Args:
        body: It.
        default_max_tokens: What a `gen` that does not say may write.
    """
    total = Work()
    for node in body:
        total += _own_work(node, default_max_tokens)
        inner = [most_work(each, default_max_tokens) for _, each in bodies(node)]
        if isinstance(node, While):
            total += inner[0].times(node.max_steps)
        elif isinstance(node, If | Match):
            most = Work()
            for each in inner:
                most = most.most(each)
            total += most
        else:
            total = sum(inner, total)
    return total


def together(body: Body) -> Iterator[tuple[str, int]]:
    """Yield the forks of a body with the number of their branches, which run side by side."""
    for _, node in walk(body):
        if isinstance(node, Fork) and len(node.branches) > 1:
            yield node.name, len(node.branches)


def beside(body: Body) -> Iterator[str]:
    """Yield the forks whose join need not be waited for, if their `gen`s draw the same in any order.

    Such a join only makes variables: no text, and no tool that might do something to the world.
    """
    for _, own in _bodies_below(body):
        forks = {node.name: node for node in own if isinstance(node, Fork)}
        for node in own:
            fork = forks.get(node.fork) if isinstance(node, Join) and node.mode == JOINS[0] else None
            if fork is not None and not any(isinstance(inner, Tool | Fork) for _, inner in _inside(fork)):
                yield fork.name


def _bodies_below(body: Body) -> Iterator[tuple[str, Body]]:
    yield "", body
    for _, node in walk(body):
        yield from bodies(node)


def _inside(fork: Fork) -> Iterator[tuple[str, Node]]:
    for _, branch in bodies(fork):
        yield from walk(branch)


def _own_work(node: Node, default_max_tokens: int | None) -> Work:
    match node:
        case Gen():
            tokens = node.options.get("max_tokens", default_max_tokens)
            count = node.options.get("n", 1)
            known = isinstance(tokens, int) and isinstance(count, int)
            return Work(nodes=1, model_calls=1, tokens=tokens * count if known else None)
        case Select():
            return Work(nodes=1, model_calls=1)
        case Tool():
            return Work(nodes=1, tool_calls=1)
        case Fork():
            return Work(nodes=1, branches=len(node.branches))
    return Work(nodes=1)


def _combined(left: Work, right: Work, join: Callable[[int, int], int]) -> Work:
    tokens = None if left.tokens is None or right.tokens is None else join(left.tokens, right.tokens)
    return Work(
        nodes=join(left.nodes, right.nodes),
        model_calls=join(left.model_calls, right.model_calls),
        tool_calls=join(left.tool_calls, right.tool_calls),
        branches=join(left.branches, right.branches),
        tokens=tokens,
    )
