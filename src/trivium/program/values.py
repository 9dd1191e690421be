"""What nodes speak of: texts, numbers and JSON, arguments, variables, and questions about them.

A value is a literal (JSON: `None`, `bool`, `int`, `float`, `str`, lists and objects of values) or one of the classes
below. `read` finds what a value is, once the variables that it names are there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trivium.base.errors import InvalidParameterError

Value = Any
"""A literal, or an `Argument`, a `Variable`, a `Text` or an `Operation`."""
Path = tuple[str | int, ...]
"""Keys and indices that lead from a value to a part of it."""


class Branch(NamedTuple):
    """A branch of a fork of the same state."""

    fork: str
    idx: int


@dataclass(frozen=True, slots=True)
class Argument:
    """What a run was given, or a part of it."""

    name: str
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """What a node has set, or a part of it."""

    name: str
    path: Path = ()
    branch: Branch | None = None
    """Whose variable it is; `None` is the state that reads it."""
    is_parsed: bool = False
    """Whether its text is read as what it says: a number, an object."""


@dataclass(frozen=True, slots=True)
class Text:
    """Texts, one after the other; each part is a `str`, an `Argument` or a `Variable`."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """A question about values, one of `OPERATIONS`."""

    name: str
    operands: tuple[Value, ...]


def _contains(whole: Any, part: Any) -> bool:
    return part in whole


class Operator(NamedTuple):
    """How a question is answered, and between which operands."""

    least: int
    most: int
    apply: Callable[..., bool]


OPERATIONS: Mapping[str, Operator] = {
    "==": Operator(2, 2, operator.eq),
    "!=": Operator(2, 2, operator.ne),
    "<": Operator(2, 2, operator.lt),
    "<=": Operator(2, 2, operator.le),
    ">": Operator(2, 2, operator.gt),
    ">=": Operator(2, 2, operator.ge),
    "contains": Operator(2, 2, _contains),
    "and": Operator(2, 64, lambda *each: all(each)),
    "or": Operator(2, 64, lambda *each: any(each)),
    "not": Operator(1, 1, operator.not_),
}
"""Questions by name. All operands are read, whatever the first one says."""


def references(value: Value) -> Iterator[Argument | Variable]:
    """Yield the arguments and variables that a value names."""
    match value:
        case Argument() | Variable():
            yield value
        case Text(parts) | Operation(_, parts):
            for part in parts:
                yield from references(part)
        case list():
            for part in value:
                yield from references(part)
        case dict():
            for part in value.values():
                yield from references(part)


def is_constant(value: Value) -> bool:
    """Say whether a value names nothing, so that it is the same in every run."""
    return next(references(value), None) is None


def text_of(*parts: Value) -> Value:
    """Return texts one after the other: a `str` where nothing is named, else a `Text` without neighbouring texts."""
    joined: list[Value] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Text) else (part,):
            if isinstance(piece, str) and joined and isinstance(joined[-1], str):
                joined[-1] += piece
            elif piece != "":
                joined.append(piece)
    if not joined:
        return ""
    return joined[0] if len(joined) == 1 and isinstance(joined[0], str) else Text(tuple(joined))


def read(value: Value, look_up: Callable[[Argument | Variable], Any]) -> Any:
    """Return what a value is.

    Args:
        value: It.
        look_up: Returns what an argument or variable holds, of which `read` then takes the part that is named.

    Raises:
        InvalidParameterError: A part is not there, a text is of something else, or operands cannot be compared.
    """
    match value:
        case Argument() | Variable():
            return _part(value, look_up(value))
        case Text(parts):
            return "".join(_text(part, read(part, look_up)) for part in parts)
        case Operation(name, operands):
            found = [read(operand, look_up) for operand in operands]
            try:
                return OPERATIONS[name].apply(*found)
            except TypeError as error:
                raise InvalidParameterError(f"{shown(value)} cannot be answered: {error}") from None
        case list():
            return [read(part, look_up) for part in value]
        case dict():
            return {key: read(part, look_up) for key, part in value.items()}
    return value


def _part(reference: Argument | Variable, whole: Any) -> Any:
    for step in reference.path:
        try:
            whole = whole[step]
        except (LookupError, TypeError) as error:
            raise InvalidParameterError(f"{shown(reference)} is not there: {error!r}") from None
    return whole


def _text(part: Value, found: Any) -> str:
    if not isinstance(found, str):
        raise InvalidParameterError(f"{shown(part)} is {type(found).__name__}, where a text is needed; give it as text")
    return found


def shown(value: Value) -> str:
    """Return a value as the text form writes it."""
    from trivium.program.printer import value_text  # noqa: PLC0415  (the printer knows values)

    return value_text(value)
