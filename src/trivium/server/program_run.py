"""One run of a program inside the server: limits, events, tools that suspend it.

::

    interpret (driver's thread) ── each node ──► counted
        variables                ── started, delta, value, error ──► events ──► the client's stream
        tool ── tool.call ──► client ... POST .../tools/{call_id} ──► goes on
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from trivium.base.errors import DeadlineExceededError, InvalidParameterError, ProgramError
from trivium.lang import program as lang
from trivium.lang.driver import driver
from trivium.lang.interpret import interpret
from trivium.lang.promises import following
from trivium.lang.state import ProgramState
from trivium.lang.tools import called_by
from trivium.program import foresight, nodes
from trivium.server.errors import ProgramFailedError, ProgramLimitError
from trivium.server.program_backend import EngineBackend, Spent

if TYPE_CHECKING:
    from trivium.config.options import ServerOptions
    from trivium.lang.promises import Variable
    from trivium.lang.sampling import Sampling
    from trivium.lang.strand import Strand
    from trivium.server.service import Service

Event = Mapping[str, Any]
MAX_TEXT = 1 << 22
"""Most characters, numbers and entries that a run may make of texts, values and arguments of tools, all together."""


@dataclass(slots=True, eq=False)
class _Call:
    """A tool's call that waits for its result."""

    answer: asyncio.Future[Any]


@dataclass(slots=True, eq=False, kw_only=True)
class ProgramRun:
    """A run; made and read in the server's event loop, driven in the driver's thread."""

    service: Service
    program: nodes.Program
    arguments: Mapping[str, Any]
    defaults: Sampling
    asked: Mapping[str, Any]
    """Further arguments of the engine's `submit`."""
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex}")
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    spent: Spent = field(init=False)
    _calls: dict[str, _Call] = field(default_factory=dict)
    _numbers: dict[Strand, int] = field(default_factory=dict)
    """States in the order of their first variable; the program's own is 0."""
    _followers: set[asyncio.Task[None]] = field(default_factory=set)
    _num_steps: int = 0
    _num_branches: int = 0
    _call_numbers: count[int] = field(default_factory=count)
    _lang: lang.Program = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.spent = Spent(self._options.max_program_tokens)
        self._lang = lang.Program(
            backend=EngineBackend(self.service, self.run_id, self.spent, self.asked),
            defaults=self.defaults,
            tools={name: self._tool(name) for name in foresight.tools(self.program)},
            program_id=self.run_id,
            on_variable=self._declared,
            is_logged=False,
        )

    @property
    def _options(self) -> ServerOptions:
        return self.service.options

    @property
    def tenant(self) -> str:
        """Who asked for it."""
        return str(self.asked.get("tenant", ""))

    async def run(self) -> dict[str, Any]:
        """Run to the end; cancelling this frees everything.

        Raises:
            ProgramFailedError: A primitive failed.
            ProgramLimitError: A limit of the server was reached.
            DeadlineExceededError: The time was.
        """
        work = driver.submit(self._drive())
        try:
            return await asyncio.wrap_future(work)
        except ProgramError as error:
            raise ProgramFailedError.of(error) from error
        finally:
            work.cancel()
            driver.call(self._lang.cancel)

    def cancel(self) -> None:
        """End it early: whoever waits for it gets a `ProgramFailedError`."""
        driver.call(self._lang.cancel)

    def resume(self, call_id: str, result: Any, error: str | None) -> bool:
        """Go on with a tool's result, or its error; returns whether such a call waits."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return False

        def settle() -> None:
            if not call.answer.done():
                if error is None:
                    call.answer.set_result(result)
                else:
                    call.answer.set_exception(InvalidParameterError(f"the tool failed: {error}"))

        driver.call(settle)
        return True

    # -- in the driver's thread

    async def _drive(self) -> dict[str, Any]:
        limit_s = self._options.max_program_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._do()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                f"the program took longer than {limit_s:g} s (max_program_s of this server)"
            ) from None
        finally:
            self._lang.cancel()
            if self._followers:
                await asyncio.wait(tuple(self._followers), timeout=1.0)

    async def _do(self) -> dict[str, Any]:
        state = ProgramState(self._lang)
        self._numbers[state._strand] = 0  # noqa: SLF001  (the state's own queue)
        try:
            result = await interpret(self.program, state, self.arguments, self._watch, most_text=MAX_TEXT)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:  # of values that fit no primitive
            raise InvalidParameterError(f"the program cannot be done: {error!r:.200}", param="program") from error
        for strand in tuple(self._lang.strands):
            await asyncio.wrap_future(strand.ask(lambda _: None))
        text = await state.text_async()
        names = tuple(state._strand.variables)  # noqa: SLF001
        variables = {name: await state.get_var_async(name) for name in names}
        state.end()
        return {"variables": variables, "result": result, "text": text}

    def _watch(self, _: ProgramState, node: nodes.Node, place: str) -> None:
        self._num_steps += 1
        if self._num_steps > self._options.max_program_steps:
            raise self._too_much(place, "takes more steps than", "max_program_steps", "end loops sooner")
        if isinstance(node, nodes.Fork):
            self._num_branches += len(node.branches)
            if self._num_branches > self._options.max_program_branches:
                raise self._too_much(place, "makes more branches than", "max_program_branches", "fork into fewer")

    def _too_much(self, place: str, does: str, option: str, way_out: str) -> ProgramLimitError:
        most = getattr(self._options, option)
        return ProgramLimitError(
            f"the program {does} {most} at {place} ({option} of this server); {way_out}", param="program"
        )

    def _declared(self, strand: Strand, variable: Variable) -> None:
        number = self._numbers.setdefault(strand, len(self._numbers))
        task = asyncio.get_running_loop().create_task(self._follow(number, variable))
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def _follow(self, state: int, variable: Variable) -> None:
        about = {"state": state, "name": variable.name}
        self._tell({"type": "variable.started", **about})
        with suppress(Exception):  # told below
            async for text, _ in variable.feed:
                self._tell({"type": "variable.delta", **about, "text": text})
        try:
            value = await asyncio.wrap_future(following(variable.future))
        except Exception as error:
            self._tell({"type": "variable.error", **about, "message": str(error)})
        else:
            self._tell({"type": "variable.value", **about, "value": value})

    def _tool(self, name: str) -> Callable[..., Any]:
        async def call(**args: Any) -> Any:
            return await self._suspend(name, args)

        return call

    async def _suspend(self, tool: str, args: Mapping[str, Any]) -> Any:
        call_id = f"call-{next(self._call_numbers)}"
        limit_s = self._options.max_program_tool_s
        call = self._calls[call_id] = _Call(asyncio.get_running_loop().create_future())
        strand = called_by.get()
        state = 0 if strand is None else self._numbers.get(strand, 0)
        self._tell({
            "type": "tool.call", "state": state, "call_id": call_id, "tool": tool, "args": dict(args),
            "expires_in_s": limit_s,
        })  # fmt: skip
        try:
            async with asyncio.timeout(limit_s):
                return await call.answer
        except TimeoutError:
            raise DeadlineExceededError(
                f"tool '{tool}' was not answered within {limit_s:g} s (max_program_tool_s of this server); post its "
                f"result to /v1/programs/runs/{self.run_id}/tools/{call_id}"
            ) from None
        finally:
            self._calls.pop(call_id, None)

    def _tell(self, event: Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(self.events.put_nowait, event))


def bind(program: nodes.Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter's value.

    Raises:
        InvalidParameterError: One is missing, or not known.
    """
    names = [param.name for param in program.params]
    for name in given:
        if name not in names:
            known = ", ".join(names) or "none"
            raise InvalidParameterError(
                f"arguments has '{name[:60]}', which is no parameter of {program.name}; those are {known}",
                param="arguments",
            )
    missing = [param.name for param in program.params if param.is_required and param.name not in given]
    if missing:
        raise InvalidParameterError(
            f"arguments lacks {', '.join(missing)}, which {program.name} needs", param="arguments"
        )
    return {param.name: given.get(param.name, param.default) for param in program.params}
