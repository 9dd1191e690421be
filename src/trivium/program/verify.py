"""What makes a program a good one, whoever wrote it: names, limits, and every variable set before it is read.

A variable is set where every way to that place sets it: in both bodies of an `if`, before a `while` rather than inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, NoReturn

from trivium.base.errors import InvalidParameterError
from trivium.program import limits
from trivium.program.nodes import (
    AT_LIMIT,
    FORMS,
    GEN_OPTIONS,
    JOINS,
    METHODS,
    ROLES,
    Body,
    Fork,
    Gen,
    If,
    Join,
    Match,
    Node,
    Program,
    Role,
    Scope,
    Select,
    Set,
    Tool,
    While,
    bodies,
    values,
    walk,
)  # fmt: skip
from trivium.program.values import OPERATIONS, Argument, Operation, Text, Value, Variable, is_constant, shown

STATE = "s"
"""What a program's function calls its state."""
DTYPES = ("int", "float", "bool", "str")


def verify(program: Program) -> None:
    """Check a program.

    Raises:
        InvalidParameterError: It is no good one; the message says where and why.
    """
    _check_names(program)
    _check_size(program)
    arguments = {param.name for param in program.params}
    for place, node in walk(program.body):
        for value in values(node):
            _check_value(value, place, arguments)
        check = _CHECKS.get(type(node))
        if check is not None:
            check(node, place)
    state = _State()
    state.body(program.body, "body")
    _check_value(program.result, "result", arguments)
    state.reads(program.result, "result")


def variables_of(body: Body) -> tuple[str, ...]:
    """Return the names that a body may set in its own state, in order, those of branches left out."""
    found: dict[str, None] = {}
    _collect(body, found)
    return tuple(found)


def _collect(body: Body, found: dict[str, None]) -> None:
    gathered: dict[str, tuple[str, ...]] = {}
    for node in body:
        if isinstance(node, Fork):
            gathered[node.name] = tuple(dict.fromkeys(name for each in node.branches for name in variables_of(each)))
            continue
        if isinstance(node, Join) and node.mode == JOINS[0]:
            found.update(dict.fromkeys(gathered.get(node.fork, ())))
        found.update(dict.fromkeys(sets(node)))
        for _, inner in bodies(node):
            _collect(inner, found)


def sets(node: Node) -> tuple[str, ...]:
    """Return the variables that a node itself sets."""
    match node:
        case Gen(name=str(name), options=options) if "reasoning" in options:
            return name, f"{name}_reasoning_content"
        case Gen(name=str(name)) | Select(name=str(name)) | Set(name=name) | Scope(name=name) | Tool(into=name):
            return (name,)
    return ()


# -- variables


@dataclass(slots=True)
class _State:
    """What one state has set so far, on every way to here."""

    known: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    """Set on some ways only."""
    forks: dict[str, list[_State]] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    role: str | None = None

    def body(self, body: Body, place: str) -> None:
        for idx, node in enumerate(body):
            self._node(node, f"{place}[{idx}]")

    def reads(self, value: Value, place: str) -> None:
        match value:
            case Variable():
                self._read(value, place)
            case Text(parts) | Operation(_, parts):
                for part in parts:
                    self.reads(part, place)
            case list():
                for part in value:
                    self.reads(part, place)
            case dict():
                for part in value.values():
                    self.reads(part, place)

    def _read(self, variable: Variable, place: str) -> None:
        owner = self
        if variable.branch is not None:
            name, idx = variable.branch
            branches = self.forks.get(name)
            if branches is None:
                _refuse(place, f"reads {shown(variable)}, but nothing before it forks '{name}'")
            if idx >= len(branches):
                _refuse(place, f"reads {shown(variable)}, but '{name}' has {len(branches)} branches")
            owner = branches[idx]
        if variable.name in owner.known:
            return
        if variable.name in owner.maybe:
            _refuse(
                place, f"reads {shown(variable)}, which is not set on every way there; set it before, if only to ''"
            )
        known = ", ".join(sorted(owner.known)) or "none"
        _refuse(place, f"reads {shown(variable)}, which nothing before it sets; known are {known}")

    def _node(self, node: Node, place: str) -> None:
        for value in values(node):
            self.reads(value, place)
        match node:
            case Role(role=role, body=inner):
                if self.role is not None:
                    _refuse(place, f"begins {role} inside {self.role}; roles do not nest")
                self.role = role
                self.body(inner, f"{place}.body")
                self.role = None
            case Fork():
                self._fork(node, place)
            case Join():
                self._join(node, place)
            case While(body=inner):
                outside = set(self.forks) - self.joined
                self._ways([("body", inner), ("", ())], place)
                if again := outside & self.joined:
                    _refuse(place, f"joins '{min(again)}' in every step; it can be joined once")
            case If() | Match():
                self._ways(bodies(node), place)
            case Scope(body=inner):
                self.body(inner, f"{place}.body")
        self.known |= set(sets(node))

    def _ways(self, ways: Iterable[tuple[str, Body]], place: str) -> None:
        ends = []
        for name, inner in ways:
            way = self._copy()
            way.body(inner, f"{place}.{name}")
            ends.append(way)
        self.maybe = set().union(*(way.known | way.maybe for way in ends))
        self.known = set.intersection(*(way.known for way in ends))
        self.joined = set().union(*(way.joined for way in ends))

    def _copy(self) -> _State:
        return _State(set(self.known), set(self.maybe), dict(self.forks), set(self.joined), self.role)

    def _fork(self, node: Fork, place: str) -> None:
        if node.name in self.forks and node.name not in self.joined:
            _refuse(place, f"forks '{node.name}' again before it was joined")
        self.joined.discard(node.name)
        self.forks[node.name] = []
        for name, inner in bodies(node):
            branch = _State(set(self.known), set(self.maybe), {}, set(), self.role)
            branch.body(inner, f"{place}.{name}")
            self.forks[node.name].append(branch)

    def _join(self, node: Join, place: str) -> None:
        branches = self.forks.get(node.fork)
        if branches is None:
            _refuse(place, f"joins '{node.fork}', which nothing before it forks")
        if node.fork in self.joined:
            _refuse(place, f"joins '{node.fork}', which has been joined")
        self.joined.add(node.fork)
        if node.mode == JOINS[0]:
            self.known |= set().union(*(branch.known for branch in branches))
            self.maybe |= set().union(*(branch.maybe for branch in branches))


# -- each node by itself


def _check_names(program: Program) -> None:
    _check_name(program.name, "name")
    names = [param.name for param in program.params]
    if len(names) > limits.MAX_PARAMS:
        _refuse("params", f"are {len(names)}; at most {limits.MAX_PARAMS} are taken")
    for idx, param in enumerate(program.params):
        _check_name(param.name, f"params[{idx}].name")
        if not param.name.isidentifier() or iskeyword(param.name) or param.name == STATE:
            _refuse(
                f"params[{idx}].name", f"is '{param.name}'; a parameter's name is a word of Python, and not '{STATE}'"
            )
        if names.index(param.name) != idx:
            _refuse(f"params[{idx}]", f"is '{param.name}', as an earlier one is")
        if not is_constant(param.default):
            _refuse(f"params[{idx}].default", "names something; it must be a literal")
        _check_value(param.default, f"params[{idx}].default", set())


def _check_size(program: Program) -> None:
    pending = [(program.body, 0, "body")]
    num_nodes = 0
    while pending:
        body, depth, place = pending.pop()
        if depth > limits.MAX_DEPTH:
            _refuse(place, f"is nested {depth} deep; at most {limits.MAX_DEPTH} bodies are")
        num_nodes += len(body)
        if num_nodes > limits.MAX_NODES:
            _refuse(place, f"has one node more than the {limits.MAX_NODES} that a program may have")
        for idx, node in enumerate(body):
            pending += [(inner, depth + 1, f"{place}[{idx}].{name}") for name, inner in bodies(node)]


def _check_value(value: Value, place: str, arguments: set[str], depth: int = 0) -> None:
    if depth > limits.MAX_VALUE_DEPTH:
        _refuse(place, f"has a value nested {depth} deep; at most {limits.MAX_VALUE_DEPTH} are taken")
    check = next((check for kind, check in _VALUE_CHECKS.items() if isinstance(value, kind)), None)
    if check is None:
        _refuse(place, f"holds a {type(value).__name__}; values are those of JSON, arguments and variables")
    for part in check(value, place, arguments):
        _check_value(part, place, arguments, depth + 1)


def _check_float(value: float, place: str, _: set[str]) -> Sequence[Value]:
    if not math.isfinite(value):
        _refuse(place, f"holds {value}, which is no number of JSON")
    return ()


def _check_argument(value: Argument, place: str, arguments: set[str]) -> Sequence[Value]:
    if value.name not in arguments:
        known = ", ".join(sorted(arguments)) or "none"
        _refuse(place, f"reads {shown(value)}, which is no parameter; those are {known}")
    return ()


def _check_variable(value: Variable, place: str, _: set[str]) -> Sequence[Value]:
    _check_name(value.name, place)
    return ()


def _check_text(value: Text, place: str, _: set[str]) -> Sequence[Value]:
    for part in value.parts:
        if not isinstance(part, str | Argument | Variable):
            _refuse(place, f"has a text with {type(part).__name__} in it; it takes texts, arguments and variables")
    return value.parts


def _check_operation(value: Operation, place: str, _: set[str]) -> Sequence[Value]:
    row = OPERATIONS.get(value.name)
    if row is None:
        _refuse(place, f"asks {value.name!r:.60}; known are {', '.join(OPERATIONS)}")
    if not row.least <= len(value.operands) <= row.most:
        _refuse(place, f"asks '{value.name}' of {len(value.operands)} values; it takes {row.least} to {row.most}")
    return value.operands


def _check_object(value: dict[Any, Value], place: str, _: set[str]) -> Sequence[Value]:
    for key in value:
        if not isinstance(key, str):
            _refuse(place, f"has an object whose key is {key!r:.60}; keys are texts")
    return tuple(value.values())


_VALUE_CHECKS: Mapping[type, Callable[[Any, str, set[str]], Sequence[Value]]] = {
    type(None): lambda _value, _place, _arguments: (),
    int: lambda _value, _place, _arguments: (),  # bool, too
    str: lambda _value, _place, _arguments: (),
    float: _check_float,
    Argument: _check_argument,
    Variable: _check_variable,
    Text: _check_text,
    Operation: _check_operation,
    list: lambda value, _place, _arguments: value,
    dict: _check_object,
}
"""Per class of values, a check that returns their parts."""


def _check_name(name: object, place: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= limits.MAX_NAME_LEN:
        _refuse(place, f"is {name!r:.60}; it must be a name of at most {limits.MAX_NAME_LEN} characters")


def _check_gen(node: Gen, place: str) -> None:
    for name in node.options:
        if name not in GEN_OPTIONS:
            _refuse(place, f"gives gen {name!r}; known are {', '.join(GEN_OPTIONS)}")
    forms = [name for name in FORMS if name in node.options]
    if len(forms) > 1:
        _refuse(place, f"gives gen {' and '.join(forms)}; it takes one of them")
    dtype = node.options.get("dtype")
    if "dtype" in node.options and is_constant(dtype) and dtype not in DTYPES:
        _refuse(place, f"gives gen the dtype {dtype!r:.60}; it must be one of {', '.join(DTYPES)}")
    if node.options.get("reasoning") is not None and not isinstance(node.options["reasoning"], str):
        _refuse(place, "gives gen a reasoning that is no dialect's name")
    _check_timeout(node.timeout_s, place)


def _check_select(node: Select, place: str) -> None:
    choices = node.choices
    if isinstance(choices, list):
        if not choices:
            _refuse(place, "selects among no choices")
        for choice in choices:
            if not isinstance(choice, str | Argument | Variable | Text) or choice == "":
                _refuse(place, f"has the choice {choice!r:.60}; choices are texts")
    elif not isinstance(choices, Argument | Variable):
        _refuse(place, f"has the choices {choices!r:.60}; they are a list, or what holds one")
    _check_word(node.method, METHODS, place)
    _check_timeout(node.timeout_s, place)


def _check_tool(node: Tool, place: str) -> None:
    _check_name(node.tool, place)
    _check_name(node.into, place)
    _check_timeout(node.timeout_s, place)


def _check_fork(node: Fork, place: str) -> None:
    _check_name(node.name, place)
    if not 1 <= len(node.branches) <= limits.MAX_BRANCHES:
        _refuse(place, f"forks into {len(node.branches)} branches; it takes 1 to {limits.MAX_BRANCHES}")


def _check_while(node: While, place: str) -> None:
    if not 1 <= node.max_steps <= limits.MAX_STEPS:
        _refuse(place, f"may take {node.max_steps!r} steps; it must be a whole number from 1 to {limits.MAX_STEPS}")
    _check_word(node.at_limit, AT_LIMIT, place)


def _check_match(node: Match, place: str) -> None:
    for idx, case in enumerate(node.cases):
        if not case.values:
            _refuse(f"{place}.cases[{idx}]", "has no value")
        if not all(map(is_constant, case.values)):
            _refuse(f"{place}.cases[{idx}]", "has a value that names something; cases are literals")
        for value in case.values:
            _check_value(value, f"{place}.cases[{idx}]", set())


def _check_timeout(timeout_s: object, place: str) -> None:
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0
    ):
        _refuse(place, f"has the timeout {timeout_s!r:.60}; it must be a number of seconds above 0")


def _check_word(word: object, known: tuple[str, ...], place: str) -> None:
    if word not in known:
        _refuse(place, f"says {word!r:.60}; it must be one of {', '.join(known)}")


_CHECKS: Mapping[type[Node], Callable[[Any, str], None]] = {
    Gen: _check_gen,
    Select: _check_select,
    Tool: _check_tool,
    Set: lambda node, place: _check_name(node.name, place),
    Role: lambda node, place: _check_word(node.role, ROLES, place),
    Scope: lambda node, place: _check_name(node.name, place),
    Fork: _check_fork,
    Join: lambda node, place: _check_word(node.mode, JOINS, place),
    While: _check_while,
    Match: _check_match,
}


def _refuse(place: str, message: str) -> NoReturn:
    raise InvalidParameterError(f"{place} {message}", param=place)
