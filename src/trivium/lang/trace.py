"""What a trace says: a program as data that runs as its function does, and what was seen of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError, ProgramError, RemoteError
from trivium.lang.abstract import Abstract
from trivium.lang.backends.choice import backend_or_none
from trivium.lang.explain import explained
from trivium.lang.interpret import as_function
from trivium.lang.program import Program as Run
from trivium.lang.recording import Obstacle, record
from trivium.lang.sampling import Sampling
from trivium.lang.state import ProgramState
from trivium.lang.tracing import TracingStrand
from trivium.program.codec import to_json
from trivium.program.nodes import Param, Program
from trivium.program.picture import to_mermaid
from trivium.program.printer import to_text

if TYPE_CHECKING:
    from trivium.lang.function import SglFunction

_PUBLISH_S = 30.0


class Trace:
    """A program that was traced."""

    def __init__(
        self, program: Program, obstacle: Obstacle | None, tools: Mapping[str, Callable[..., Any]], backend: Any = None
    ) -> None:
        self.program = program
        """It as data; where there is an obstacle, what comes before it."""
        self.obstacle = obstacle
        """What prevented it from being traced to its end."""
        self.tools = dict(tools)
        """What its tools call."""
        self.backend = backend

    @property
    def function(self) -> SglFunction:
        """The program as what `function` makes: `run`, `run_batch` and the others run it from the trace.

        Raises:
            ProgramError: It was not traced to its end.
        """
        self.require()
        return as_function(self.program, self.tools)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program from the trace; arguments are those of `SglFunction.run`.

        Raises:
            ProgramError: It was not traced to its end.
        """
        return self.function.run(*args, **{"backend": self.backend, **kwargs})

    def run_batch(self, batch_kwargs: Sequence[Any], **options: Any) -> Any:
        """Run the program from the trace for every item; arguments are those of `SglFunction.run_batch`.

        Raises:
            ProgramError: It was not traced to its end.
        """
        return self.function.run_batch(batch_kwargs, **{"backend": self.backend, **options})

    def require(self) -> None:
        """Refuse if it was not traced to its end.

        Raises:
            ProgramError: It was not; the message names the author's line.
        """
        if self.obstacle is not None:
            line = self.obstacle.line
            raise ProgramError(f"{line}: {self.program.name} cannot be traced: {self.obstacle.reason}", line=line)

    def to_text(self) -> str:
        """Return it as text, one line per node; `trivium.program.parser` reads it."""
        return to_text(self.program)

    def to_json(self) -> str:
        """Return it as JSON, as a server takes it.

        Raises:
            ProgramError: It was not traced to its end.
        """
        self.require()
        return to_json(self.program)

    def publish(self, url: str, *, admin_key: str, name: str | None = None) -> int:
        """Publish the program on a server, as an endpoint of its own; returns its version.

        Args:
            url: The server's address, with or without /v1.
            admin_key: A key of its admin routes.
            name: Under which; the program's own when `None`.

        Raises:
            ProgramError: It cannot be traced.
            RemoteError: The server refuses it, or cannot be reached.
        """
        import httpx  # noqa: PLC0415  (start-up time)

        where = f"{url.rstrip('/').removesuffix('/v1')}/v1/programs/{name or self.program.name}"
        body = f'{{"program": {self.to_json()}}}'.encode()
        headers = {"authorization": f"Bearer {admin_key}", "content-type": "application/json"}
        try:
            answer = httpx.put(where, content=body, headers=headers, timeout=_PUBLISH_S)
        except httpx.HTTPError as error:
            raise RemoteError(f"{where}: {error!r}") from error
        if answer.is_error:
            raise RemoteError(f"{where}: {answer.text[:300]} (status {answer.status_code})", status=answer.status_code)
        return int(answer.json()["version"])

    def to_mermaid(self) -> str:
        """Return a picture of it, a flow chart in Mermaid's notation."""
        return to_mermaid(self.program)

    def explain(self, backend: Any = None) -> str:
        """Tell of it: its text, its static prefix, what is compiled ahead, what runs side by side, what it can cost.

        Args:
            backend: What counts the prefix's tokens; `None` takes that of the trace, or the default.
        """
        return explained(self.program, self.obstacle, backend_or_none(self.backend if backend is None else backend))

    def __repr__(self) -> str:
        return f"<trace of {self.program.name}{'' if self.obstacle is None else f' as far as {self.obstacle.line}'}>"


def trace_of(function: SglFunction, given: Mapping[str, Any], backend: Any = None) -> Trace:
    """Trace a program, with some of its arguments given.

    Raises:
        InvalidParameterError: It has no such parameter.
    """
    name = getattr(function, "__name__", "program")
    for each in given:
        if each not in function.arg_names:
            raise InvalidParameterError(f"{name} has no parameter '{each}'", param=each)
    known = {**function.bind_arguments, **given}
    parameters = inspect.signature(function.func).parameters
    params = [_param(parameters[each]) for each in function.arg_names if each not in known]

    def call(strand: TracingStrand, arguments: Mapping[str, Abstract]) -> Any:
        run: Any = Run(backend=_Nothing(), defaults=Sampling())  # type: ignore[arg-type]
        state = ProgramState(run, strand)  # type: ignore[arg-type]
        made = function.func(state, **{**known, **arguments})
        return asyncio.run(made) if inspect.iscoroutine(made) else made

    code = getattr(inspect.unwrap(function.func), "__code__", None)
    found = record(name, params, function.tools, call, code)
    return Trace(found.program, found.obstacle, found.tools, backend)


class _Nothing:
    """Stands where a backend would; a trace asks nothing of it."""


def _param(parameter: inspect.Parameter) -> Param:
    if parameter.default is inspect.Parameter.empty:
        return Param(name=parameter.name)
    return Param(name=parameter.name, is_required=False, default=parameter.default)
