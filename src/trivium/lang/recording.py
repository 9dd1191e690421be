"""A whole trace: a function is run once on a strand that records, and what ends it early is named with its line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from trivium.base.errors import TriviumError
from trivium.lang.abstract import Abstract, Untraceable, tracing, value_of
from trivium.lang.state import ProgramState
from trivium.lang.tracing import Shared, TracingStrand
from trivium.program.nodes import Param, Program, walk
from trivium.program.values import Argument, Value
from trivium.program.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What ends a trace."""

    line: str
    """`FILE:LINE` of the author's."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a trace has found."""

    program: Program
    """Whole, unless there is an obstacle; then as far as it was recorded."""
    obstacle: Obstacle | None
    tools: Mapping[str, Callable[..., Any]]


def record(
    name: str,
    params: Sequence[Param],
    tools: Mapping[str, Callable[..., Any]],
    call: Callable[[TracingStrand, Mapping[str, Abstract]], Any],
    code: CodeType | None,
) -> Recorded:
    """Run a function once and return what it would do.

    Args:
        name: What the program is called.
        params: What is not known yet.
        tools: Those that it calls by name.
        call: Runs the function on a state with this strand and these arguments, and returns what it returns.
        code: The function's own, whose lines are cited.
    """
    shared = Shared(dict(tools))
    strand = TracingStrand(shared)
    result: Value = None
    obstacle: Obstacle | None = None
    with _traced():
        try:
            result = strand.lower(_result(call(strand, {each.name: Abstract(Argument(each.name)) for each in params})))
        except (Exception, Untraceable) as error:
            obstacle = Obstacle(line=_line_of(error, code), reason=_reason_of(error))
    strand.is_closed = False
    program = Program(name=name, params=tuple(params), body=strand.body(), result=result)
    if obstacle is None:
        try:
            shared.check()
            verify(program)
        except Untraceable as error:
            obstacle = Obstacle(line=shared.unclosed or "the program", reason=str(error))
        except TriviumError as error:
            obstacle = Obstacle(line=_place_line(program, str(getattr(error, "param", ""))), reason=str(error))
    return Recorded(program=program, obstacle=obstacle, tools=shared.tools)


@contextmanager
def _traced() -> Iterator[None]:
    token = tracing.set(True)
    try:
        yield
    finally:
        tracing.reset(token)


def _result(returned: Any) -> Value:
    return None if isinstance(returned, ProgramState) else value_of(returned)


def _reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, Untraceable | TriviumError) else f"it raises {error!r} when it is traced"


def _line_of(error: BaseException, code: CodeType | None) -> str:
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(frame, line) for frame, line in frames if code is not None and frame.f_code.co_filename == code.co_filename]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}:{line}"


def _place_line(program: Program, place: str) -> str:
    found = "the program"
    for here, node in walk(program.body):
        if place.startswith(here) and node.line is not None:
            found = node.line
    return found
