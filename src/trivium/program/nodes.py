"""The nouns of a program: what it is given, and what it does, as data.

::

    Program  params, body, result
      Say      a text                       Fork   branches that go on side by side
      Gen      the model writes             Join   what they have set, or their texts
      Select   the model chooses            If, While, Match    on variables
      Tool     a call of the author's       Role, Scope         around a body
      Set      a variable's value

Each node is a frozen record whose fields say what they hold (`Kind`), so that codec, printer, parser and checks are
written once over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum, auto
from typing import Any

from trivium.program.values import Value


class Kind(Enum):
    """What a field of a node holds."""

    NAME = auto()
    NAME_OR_NONE = auto()
    WORD = auto()
    """One of the words that `WORDS` lists for the field."""
    VALUE = auto()
    VALUES = auto()
    """Names to values."""
    COUNT = auto()
    SECONDS = auto()
    """Above 0, or `None`."""
    BODY = auto()
    BODIES = auto()
    CASES = auto()


_NAME = {"kind": Kind.NAME}
_NAME_OR_NONE = {"kind": Kind.NAME_OR_NONE}
_WORD = {"kind": Kind.WORD}
_VALUE = {"kind": Kind.VALUE}
_VALUES = {"kind": Kind.VALUES}
_COUNT = {"kind": Kind.COUNT}
_SECONDS = {"kind": Kind.SECONDS}
_BODY = {"kind": Kind.BODY}
_BODIES = {"kind": Kind.BODIES}
_CASES = {"kind": Kind.CASES}

ROLES = ("system", "user", "assistant")
JOINS = ("gather_variable", "concate_and_append")
AT_LIMIT = ("fail", "go_on")
METHODS = (
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized", "joint_probability",
)  # fmt: skip
WORDS: Mapping[str, tuple[str, ...]] = {"role": ROLES, "mode": JOINS, "at_limit": AT_LIMIT, "method": METHODS}
"""What fields of the kind `WORD` may say."""

FORMS = ("dtype", "regex", "json_schema", "ebnf", "structural_tag")
GEN_OPTIONS = (
    "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "ignore_eos", "seed", "return_logprob", "logprob_start_len",
    "top_logprobs_num", "return_text_in_logprobs", *FORMS, "reasoning",
)  # fmt: skip
"""Arguments of `gen` that a program may give, with their names; `dtype` is one of `int`, `float`, `bool`, `str`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step of a program."""

    line: str | None = field(default=None, compare=False)
    """`FILE:LINE` where the author wrote it."""


Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Say(Node):
    """Append a text."""

    text: Value = field(metadata=_VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Node):
    """Let the model write."""

    name: str | None = field(metadata=_NAME_OR_NONE, default=None)
    options: Mapping[str, Value] = field(metadata=_VALUES, default_factory=dict)
    """Those of `GEN_OPTIONS` that are given."""
    timeout_s: float | None = field(metadata=_SECONDS, default=None)

    @property
    def form(self) -> tuple[str, Value] | None:
        """What constrains it: one of `FORMS` and its value."""
        return next(((name, self.options[name]) for name in FORMS if name in self.options), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Node):
    """Let the model choose one of several texts."""

    name: str | None = field(metadata=_NAME_OR_NONE, default=None)
    choices: Value = field(metadata=_VALUE)
    method: str = field(metadata=_WORD, default=METHODS[0])
    timeout_s: float | None = field(metadata=_SECONDS, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Node):
    """Call a tool; what it returns becomes a variable."""

    tool: str = field(metadata=_NAME)
    args: Mapping[str, Value] = field(metadata=_VALUES, default_factory=dict)
    into: str = field(metadata=_NAME)
    timeout_s: float | None = field(metadata=_SECONDS, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Set(Node):
    """Give a variable a value."""

    name: str = field(metadata=_NAME)
    value: Value = field(metadata=_VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Node):
    """A message of a role."""

    role: str = field(metadata=_WORD)
    body: Body = field(metadata=_BODY, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Node):
    """Collect all text that is appended inside in a variable."""

    name: str = field(metadata=_NAME)
    body: Body = field(metadata=_BODY, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Node):
    """Go on in branches, side by side with each other and with what follows."""

    name: str = field(metadata=_NAME)
    branches: tuple[Body, ...] = field(metadata=_BODIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """End a fork's branches and take what they made."""

    fork: str = field(metadata=_NAME)
    mode: str = field(metadata=_WORD, default=JOINS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class If(Node):
    """Do one of two bodies."""

    condition: Value = field(metadata=_VALUE)
    then: Body = field(metadata=_BODY, default=())
    otherwise: Body = field(metadata=_BODY, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class While(Node):
    """Do a body as long as a condition holds."""

    condition: Value = field(metadata=_VALUE)
    max_steps: int = field(metadata=_COUNT)
    at_limit: str = field(metadata=_WORD, default=AT_LIMIT[0])
    """Whether one step too many fails, or ends the loop."""
    body: Body = field(metadata=_BODY, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way of a `Match`."""

    values: tuple[Value, ...]
    """Literals of which the subject equals one."""
    body: Body = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Node):
    """Do the body of the first case whose values hold the subject."""

    subject: Value = field(metadata=_VALUE)
    cases: tuple[Case, ...] = field(metadata=_CASES)
    otherwise: Body = field(metadata=_BODY, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """What a run is given by name."""

    name: str
    is_required: bool = True
    default: Value = None
    """A literal, for a parameter that may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program."""

    name: str
    params: tuple[Param, ...] = ()
    body: Body = ()
    result: Value = None
    """What the run returns, besides its variables."""


NODES: Mapping[str, type[Node]] = {
    "say": Say,
    "gen": Gen,
    "select": Select,
    "tool": Tool,
    "set": Set,
    "role": Role,
    "scope": Scope,
    "fork": Fork,
    "join": Join,
    "if": If,
    "while": While,
    "match": Match,
}
"""Kinds of nodes by the word that stands for them."""
WORD_OF: Mapping[type[Node], str] = {node: word for word, node in NODES.items()}


def parts(node: Node | type[Node]) -> Iterator[tuple[Field[Any], Kind]]:
    """Yield the fields of a node that hold something, in order, with what they hold."""
    for each in fields(node):
        if "kind" in each.metadata:
            yield each, each.metadata["kind"]


def bodies(node: Node) -> Iterator[tuple[str, Body]]:
    """Yield the bodies that a node has, each with its place in the node."""
    for each, kind in parts(node):
        held = getattr(node, each.name)
        if kind is Kind.BODY:
            yield each.name, held
        elif kind is Kind.BODIES:
            yield from ((f"{each.name}[{idx}]", body) for idx, body in enumerate(held))
        elif kind is Kind.CASES:
            yield from ((f"{each.name}[{idx}].body", case.body) for idx, case in enumerate(held))


def values(node: Node) -> Iterator[Value]:
    """Yield the values that a node itself holds."""
    for each, kind in parts(node):
        if kind is Kind.VALUE:
            yield getattr(node, each.name)
        elif kind is Kind.VALUES:
            yield from getattr(node, each.name).values()


def walk(body: Body, place: str = "body") -> Iterator[tuple[str, Node]]:
    """Yield all nodes of a body with their places, each before those that it holds."""
    for idx, node in enumerate(body):
        here = f"{place}[{idx}]"
        yield here, node
        for name, inner in bodies(node):
            yield from walk(inner, f"{here}.{name}")
