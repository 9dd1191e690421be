"""What a program appends to its state: nodes, each with the line of the author's file that made it.

A node says what is to be done and does nothing; `strand.Strand` does it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.lang.abstract import Abstract

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import FrameType

    from trivium.lang.choices import ChoicesSamplingMethod
    from trivium.lang.forms import Form
    from trivium.lang.promises import Variable
    from trivium.lang.sampling import Sampling
    from trivium.lang.strand import Strand

MAX_SHOWN = 60
"""Most letters of a text that a message repeats."""
_OWN_MODULES = ("trivium.lang", "contextlib")
cited: ContextVar[str | None] = ContextVar("cited", default=None)
"""The line of the primitive that is being appended, where it is not that of a caller."""


def author_line() -> str:
    """Return `FILE:LINE` of the nearest caller that is not of this package, or the line that is cited instead."""
    line = cited.get()
    if line is not None:
        return line
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN_MODULES):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expr:
    """A node, or a sum of nodes."""

    line: str = field(default_factory=author_line, repr=False)

    def __add__(self, other: Expr | str) -> Sum:
        """Do one after the other."""
        return Sum(parts=(*_parts(self), *_parts(other)))

    def __radd__(self, other: str) -> Sum:
        return Sum(parts=(*_parts(other), *_parts(self)))

    @property
    def variable(self) -> str | None:
        """Name of the variable that it sets."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sum(Expr):
    """Nodes, one after the other."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant(Expr):
    """A text that the author wrote."""

    text: Any
    """A `str`; in a trace it may be abstract."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gen(Expr):
    """A text that the model writes."""

    name: str | None
    sampling: Sampling
    form: Form | None = None
    reasoning: str | None = None
    """Dialect by which reasoning is kept apart, in a variable of its own."""
    timeout_s: float | None = None
    """Seconds that it may take, waits for the engine included."""

    @property
    def variable(self) -> str | None:
        """Its name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Select(Expr):
    """One of several texts: the one that the model finds most likely, by some measure."""

    name: str | None
    choices: Any
    """A tuple of texts; in a trace they may be abstract."""
    method: ChoicesSamplingMethod
    timeout_s: float | None = None

    @property
    def variable(self) -> str | None:
        """Its name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolCall(Expr):
    """A call of the author's function; what it returns becomes a variable."""

    tool: str | Callable[..., Any]
    args: Mapping[str, Any]
    into: str
    timeout_s: float | None = None

    @property
    def variable(self) -> str | None:
        """The name under which its result is read."""
        return self.into


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoleBegin(Expr):
    """The beginning of a message."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoleEnd(Expr):
    """The end of a message."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScopeBegin(Expr):
    """From here on, text is also collected in a variable."""

    name: str

    @property
    def variable(self) -> str | None:
        """Its name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScopeEnd(Expr):
    """The end of what a variable collects."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask(Expr):
    """A question about the strand, answered when everything before it is done."""

    read: Callable[[Strand], Any]
    answer: Future[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fork(Expr):
    """Strands that go on from here."""

    children: Sequence[Strand]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Join(Expr):
    """The end of such strands: their variables as lists, or their texts one after the other."""

    children: Sequence[Strand]
    gathered: Mapping[str, tuple[Variable, Sequence[Variable]]]
    appends_text: bool


def as_expr(given: object) -> Expr:
    """Return a text as a constant, and a node as it is.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(given, Expr):
        return given
    if isinstance(given, str | Abstract):
        return Constant(text=given)
    raise TypeError(
        f"{type(given).__name__} cannot be appended to a state; it takes texts, gen(), select(), tool() and roles"
    )


def leaves(expr: Expr) -> Iterator[Expr]:
    """Yield the nodes of a sum in order, or a node itself."""
    if isinstance(expr, Sum):
        yield from expr.parts
    else:
        yield expr


def _parts(given: Expr | str) -> tuple[Expr, ...]:
    return tuple(leaves(as_expr(given)))
