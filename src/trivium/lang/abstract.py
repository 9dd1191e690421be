"""What a program is traced with: values that are not known yet.

They can be appended, joined with texts by `+`, looked into with `[...]`, compared, and given to primitives. All that
needs to know them ends the trace, and the message says what would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from trivium.program.values import Argument, Operation, Path, Text, Value, shown, text_of

tracing: ContextVar[bool] = ContextVar("tracing", default=False)
"""Whether a program is being traced in this context."""


class Untraceable(BaseException):
    """What ends a trace; no `except Exception` of an author's may hold it back."""


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """A variable as it was when the author read it."""

    owner: object
    """The strand that it was read from."""
    name: str
    version: int
    """Which of the values that the name has had."""
    read_at: int
    """How many reads came before."""
    path: Path = ()
    is_parsed: bool = False


class Abstract:
    """A value that is known when the program runs."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value
        """An `Argument`, a `Promise`, or a `Text` or an `Operation` of such."""

    # -- what can be done

    def __add__(self, other: object) -> Any:
        if isinstance(other, str | Abstract):
            return Abstract(text_of(_text_part(self), _text_part(other)))
        return NotImplemented

    def __radd__(self, other: object) -> Any:
        return Abstract(text_of(_text_part(other), _text_part(self))) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: object) -> Abstract:
        value = self.value
        if not isinstance(key, str | int) or isinstance(key, bool):
            stop(f"{self!r} is looked into with {key!r}; a key or an index can be traced")
        if not isinstance(value, Argument | Promise):
            stop(f"{self!r} is looked into with {key!r}; only arguments and variables can be")
        return Abstract(replace(value, path=(*value.path, key)))

    def __eq__(self, other: object) -> Any:
        return Abstract(Operation("==", (self.value, value_of(other))))

    def __ne__(self, other: object) -> Any:
        return Abstract(Operation("!=", (self.value, value_of(other))))

    def __lt__(self, other: object) -> Abstract:
        return Abstract(Operation("<", (self.value, value_of(other))))

    def __le__(self, other: object) -> Abstract:
        return Abstract(Operation("<=", (self.value, value_of(other))))

    def __gt__(self, other: object) -> Abstract:
        return Abstract(Operation(">", (self.value, value_of(other))))

    def __ge__(self, other: object) -> Abstract:
        return Abstract(Operation(">=", (self.value, value_of(other))))

    def __and__(self, other: object) -> Abstract:
        return Abstract(Operation("and", (self.value, value_of(other))))

    def __rand__(self, other: object) -> Abstract:
        return Abstract(Operation("and", (value_of(other), self.value)))

    def __or__(self, other: object) -> Abstract:
        return Abstract(Operation("or", (self.value, value_of(other))))

    def __ror__(self, other: object) -> Abstract:
        return Abstract(Operation("or", (value_of(other), self.value)))

    def __repr__(self) -> str:
        return _spoken(self.value)

    # -- what cannot, besides `REFUSED`

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Abstract:
        if name.startswith("__"):
            raise AttributeError(name)
        if not (isinstance(self.value, Promise) and self.value.is_parsed):
            stop(f".{name} of {self!r} is asked for")
        return self[name]


REFUSED: Mapping[str, str] = {
    "__bool__": "Python asks whether {} is true (if, while, and, or, not, in); use if_, while_, match, &, |, not_",
    "__str__": "{} is made a text (an f-string, str(), format()); join texts with + instead",
    "__format__": "{} is made a text (an f-string, str(), format()); join texts with + instead",
    "__len__": "Python asks how long {} is",
    "__iter__": "Python goes through {}, as for a loop; give it to trace() to have the loop written out",
    "__contains__": "Python asks what is in {}; use contains()",
    "__int__": "{} is made a number",
    "__index__": "{} is made a number",
    "__float__": "{} is made a number",
    "__call__": "{} is called",
}
"""What Python cannot be told of a value that is not known yet, and what is said of it."""


def _refusing(reason: str) -> Callable[..., NoReturn]:
    def refuse(own: Abstract, *_: object, **__: object) -> NoReturn:
        stop(reason.format(repr(own)))

    return refuse


for _name, _reason in REFUSED.items():
    setattr(Abstract, _name, _refusing(_reason))


def stop(reason: str) -> NoReturn:
    """End the trace.

    Raises:
        Untraceable: Always.
    """
    raise Untraceable(reason)


def value_of(given: object) -> Value:
    """Return what a program can hold of a Python object: its value, with tuples as lists.

    Raises:
        Untraceable: It holds something that is no JSON.
    """
    match given:
        case Abstract():
            return given.value
        case None | bool() | int() | float() | str():
            return given
        case list() | tuple():
            return [value_of(each) for each in given]
        case dict():
            return {key: value_of(each) for key, each in given.items()}
    stop(f"a {type(given).__name__} is no value of a program; those are JSON's, arguments and variables")


def _text_part(given: object) -> Value:
    value = given.value if isinstance(given, Abstract) else given
    if isinstance(value, Operation):
        stop(f"{given!r} is no text")
    return value


def _spoken(value: Value) -> str:
    match value:
        case Promise(name=name):
            return f"variable '{name}'"
        case Argument(name=name):
            return f"argument '{name}'"
        case Operation(name, operands):
            return f"({f' {name} '.join(map(_spoken, operands))})"
        case Text(parts):
            return f"({' + '.join(map(_spoken, parts))})"
    return shown(value)
