"""Random programs: well-formed, with every kind of node, and every variable set before it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from trivium.program.nodes import (
    AT_LIMIT,
    JOINS,
    METHODS,
    Body,
    Case,
    Fork,
    Gen,
    If,
    Join,
    Match,
    Node,
    Param,
    Program,
    Role,
    Say,
    Scope,
    Select,
    Set,
    Tool,
    While,
)
from trivium.program.values import Argument, Branch, Operation, Value, Variable, text_of

NAMES = st.one_of(st.sampled_from(["a", "b", "x_1", "else", "return", "branch"]), st.text(min_size=1, max_size=5))
WORDS = st.one_of(st.text(max_size=8), st.sampled_from(["yes", 'say "it"\n', "\\", "é", "// no comment", "+ $x"]))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False), WORDS
)
KEYS = st.one_of(WORDS, st.sampled_from(["$arg", "$var", "$text", "$op", "$literal", "$ref"]))
LITERALS: st.SearchStrategy[Value] = st.recursive(
    LEAVES, lambda own: st.lists(own, max_size=3) | st.dictionaries(KEYS, own, max_size=3), max_leaves=6
)
PATHS = st.lists(st.one_of(WORDS, st.integers(-3, 3)), max_size=2).map(tuple)


@dataclass(slots=True)
class State:
    """What may be read, and done, at a place of a program."""

    params: list[str]
    known: list[str] = field(default_factory=list)
    forks: dict[str, list[list[str]]] = field(default_factory=dict)
    """Forks that are not joined: per branch, what it has set."""
    in_role: bool = False

    def inside(self) -> State:
        """Return the state of a body that may not be done."""
        return State(self.params, list(self.known), {}, self.in_role)


@st.composite
def programs(draw: st.DrawFn, *, depth: int = 2) -> Program:
    """Draw a program that `verify` accepts."""
    names = draw(st.lists(st.sampled_from(["a", "q", "x_1", "é"]), max_size=2, unique=True))
    params = [
        Param(name=name) if draw(st.booleans()) else Param(name=name, is_required=False, default=draw(LITERALS))
        for name in names
    ]
    state = State(names)
    body = draw(bodies(state, depth))
    return Program(name=draw(NAMES), params=tuple(params), body=body, result=draw(values(state)))


@st.composite
def bodies(draw: st.DrawFn, state: State, depth: int) -> Body:
    """Draw nodes that are done one after the other; `state` is that behind them afterwards."""
    return tuple(draw(nodes(state, depth)) for _ in range(draw(st.integers(0, 4 if depth else 2))))


@st.composite
def nodes(draw: st.DrawFn, state: State, depth: int) -> Node:
    """Draw one node."""
    kinds = ["say", "gen", "select", "tool", "set"]
    if depth:
        kinds += ["scope", "fork", "if", "while", "match"] + ["role"] * (not state.in_role)
    kinds += ["join"] * bool(state.forks)
    made: Node = draw(_MAKERS[draw(st.sampled_from(kinds))](state, depth))
    return made


def values(state: State) -> st.SearchStrategy[Value]:
    """Draw a value of any kind."""
    return st.one_of(LITERALS, references(state), texts(state))


def references(state: State) -> st.SearchStrategy[Value]:
    """Draw an argument or a variable, or a text where there is none."""
    own: list[st.SearchStrategy[Value]] = [st.builds(Argument, st.just(name), PATHS) for name in state.params]
    own += [st.builds(Variable, st.just(name), PATHS, st.none(), st.booleans()) for name in state.known]
    own += [
        st.builds(Variable, st.just(name), PATHS, st.just(Branch(fork, idx)))
        for fork, branches in state.forks.items()
        for idx, known in enumerate(branches)
        for name in known
    ]
    return st.one_of(*own) if own else WORDS


def texts(state: State) -> st.SearchStrategy[Value]:
    """Draw a text with what is named in it."""
    return st.lists(st.one_of(WORDS, references(state)), max_size=3).map(lambda parts: text_of(*parts))


def conditions(state: State) -> st.SearchStrategy[Value]:
    """Draw a question."""
    asked = st.builds(
        lambda name, left, right: Operation(name, (left, right)),
        st.sampled_from(["==", "!=", "<", "contains"]),
        values(state),
        values(state),
    )
    several = st.sampled_from(["and", "or"])
    return st.recursive(
        asked,
        lambda own: (
            st.builds(lambda name, each: Operation(name, tuple(each)), several, st.lists(own, min_size=2, max_size=3))
            | own.map(lambda each: Operation("not", (each,)))
        ),
        max_leaves=3,
    )


TIMEOUTS = st.one_of(st.none(), st.floats(0.001, 100), st.integers(1, 9))


@st.composite
def _say(draw: st.DrawFn, state: State, _: int) -> Node:
    return Say(text=draw(texts(state)))


@st.composite
def _gen(draw: st.DrawFn, state: State, _: int) -> Node:
    options = draw(
        st.dictionaries(st.sampled_from(["max_tokens", "stop", "temperature", "n"]), values(state), max_size=2)
    )
    form = draw(st.sampled_from([None, "dtype", "regex", "json_schema"]))
    if form is not None:
        options[form] = "int" if form == "dtype" else draw(values(state))
    name = draw(st.none() | NAMES)
    made = Gen(name=name, options=options, timeout_s=draw(TIMEOUTS))
    state.known += [] if name is None else [name]
    return made


@st.composite
def _select(draw: st.DrawFn, state: State, _: int) -> Node:
    choices: Any = draw(st.lists(texts(state).filter(bool), min_size=1, max_size=3))
    made = Select(name=draw(NAMES), choices=choices, method=draw(st.sampled_from(METHODS)), timeout_s=draw(TIMEOUTS))
    state.known.append(str(made.name))
    return made


@st.composite
def _tool(draw: st.DrawFn, state: State, _: int) -> Node:
    args = draw(st.dictionaries(NAMES, values(state), max_size=2))
    made = Tool(tool=draw(NAMES), args=args, into=draw(NAMES), timeout_s=draw(TIMEOUTS))
    state.known.append(made.into)
    return made


@st.composite
def _set(draw: st.DrawFn, state: State, _: int) -> Node:
    made = Set(name=draw(NAMES), value=draw(values(state)))
    state.known.append(made.name)
    return made


@st.composite
def _role(draw: st.DrawFn, state: State, depth: int) -> Node:
    state.in_role = True
    made = Role(role=draw(st.sampled_from(["system", "user", "assistant"])), body=draw(bodies(state, depth - 1)))
    state.in_role = False
    return made


@st.composite
def _scope(draw: st.DrawFn, state: State, depth: int) -> Node:
    made = Scope(name=draw(NAMES), body=draw(bodies(state, depth - 1)))
    state.known.append(made.name)
    return made


@st.composite
def _fork(draw: st.DrawFn, state: State, depth: int) -> Node:
    name = draw(NAMES.filter(lambda each: each not in state.forks))
    branches, known = [], []
    for _ in range(draw(st.integers(1, 3))):
        inner = state.inside()
        branches.append(draw(bodies(inner, depth - 1)))
        known.append(inner.known)
    state.forks[name] = known
    return Fork(name=name, branches=tuple(branches))


@st.composite
def _join(draw: st.DrawFn, state: State, _: int) -> Node:
    name = draw(st.sampled_from(sorted(state.forks)))
    del state.forks[name]
    return Join(fork=name, mode=draw(st.sampled_from(JOINS)))


@st.composite
def _if(draw: st.DrawFn, state: State, depth: int) -> Node:
    condition = draw(conditions(state))
    then, otherwise = draw(bodies(state.inside(), depth - 1)), draw(bodies(state.inside(), depth - 1))
    return If(condition=condition, then=then, otherwise=otherwise)


@st.composite
def _while(draw: st.DrawFn, state: State, depth: int) -> Node:
    return While(
        condition=draw(conditions(state)),
        max_steps=draw(st.integers(1, 3)),
        at_limit=draw(st.sampled_from(AT_LIMIT)),
        body=draw(bodies(state.inside(), depth - 1)),
    )


@st.composite
def _match(draw: st.DrawFn, state: State, depth: int) -> Node:
    subject = draw(values(state))
    cases = tuple(
        Case(
            values=tuple(draw(st.lists(LITERALS, min_size=1, max_size=2))), body=draw(bodies(state.inside(), depth - 1))
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    return Match(subject=subject, cases=cases, otherwise=draw(bodies(state.inside(), depth - 1)))


_MAKERS: dict[str, Any] = {
    "say": _say, "gen": _gen, "select": _select, "tool": _tool, "set": _set, "role": _role, "scope": _scope,
    "fork": _fork, "join": _join, "if": _if, "while": _while, "match": _match,
}  # fmt: skip
