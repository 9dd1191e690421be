"""Programs as data, done: each node becomes what the author's own line would have appended to the state.

There is one way in which primitives are done, that of `strand` and `perform`; this module only decides which comes
next. It waits where a value is needed to decide, or to write the next text, and branches wait by themselves::

    say, gen, select, tool     appended, nothing is waited for
    if, while, match           wait for the variables of their condition
    texts, options, args       wait for the variables that they name
    fork                       one task per branch
    join                       waits until its branches have appended everything
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang import api
from trivium.lang import expressions as exprs
from trivium.lang.driver import driver
from trivium.lang.expressions import cited
from trivium.lang.function import SglFunction
from trivium.lang.state import ProgramState, ProgramStateGroup
from trivium.lang.tools import waiting
from trivium.program import nodes
from trivium.program.nodes import Body, Node, Program
from trivium.program.values import Argument, Branch, Value, Variable, read, references

Watch = Callable[[ProgramState, Node, str], None]
"""Told of each node before it is done, with its state and its place in the program; what it raises ends the run."""
DTYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def as_function(
    program: Program, tools: Mapping[str, Callable[..., Any]] | None = None, watch: Watch | None = None
) -> SglFunction:
    """Return a verified program as what `function` makes, to be run as that is.

    Args:
        program: It.
        tools: What its tools call, by name.
        watch: Told of each node before it is done.
    """

    def run(s: ProgramState, *args: Any, **kwargs: Any) -> Any:
        given = _bound(signature, args, kwargs)
        future = driver.submit(interpret(program, s, given, watch))
        try:
            with waiting():
                return future.result()
        except BaseException:
            future.cancel()
            raise

    parameters = [inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [
        inspect.Parameter(
            param.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if param.is_required else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if param.is_required else param.default,
        )
        for param in sorted(program.params, key=lambda param: not param.is_required)
    ]
    signature = inspect.Signature(parameters)
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__name__ = run.__qualname__ = program.name
    run.__doc__ = f"The program {program.name}, from its trace."
    return SglFunction(run, tools=tools)


async def interpret(
    program: Program,
    state: ProgramState,
    arguments: Mapping[str, Any],
    watch: Watch | None = None,
    *,
    most_text: int | None = None,
) -> Any:
    """Do a program on a state, in any event loop; everything is appended when it returns, and may still be at work.

    Args:
        program: A verified one.
        state: What it appends to; its `Program` knows the tools.
        arguments: Every parameter's value.
        watch: Told of each node before it is done.
        most_text: Most characters and entries that texts, values and tools' arguments may have, all together.

    Returns:
        The program's result.

    Raises:
        ProgramError: A variable that is waited for failed, or a `while` took too many steps.
        InvalidParameterError: A value is no text, no number, or not there, where one is needed.
    """
    run = _Run(program, arguments, watch, most_text)
    own = _Place(run, state)
    try:
        async with asyncio.TaskGroup() as run.branches:
            await own.body(program.body, "body")
            return await own.read(program.result)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[1:]) or "none"
        raise InvalidParameterError(f"the arguments do not fit: {error}; parameters are {names}") from None
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "s"}


@dataclass(slots=True)
class _Run:
    """What all states of a run share."""

    program: Program
    arguments: Mapping[str, Any]
    watch: Watch | None
    text_left: int | None
    """What it may still write of texts and values."""
    branches: asyncio.TaskGroup = field(init=False)


@dataclass(slots=True)
class _Forked:
    """A fork's states, and the tasks that append to them."""

    group: ProgramStateGroup
    tasks: list[asyncio.Task[None]]


class _Place:
    """One state of a run, and where in the program it is."""

    def __init__(self, run: _Run, state: ProgramState) -> None:
        self._run = run
        self._state = state
        self._forks: dict[str, _Forked] = {}

    async def body(self, body: Body, place: str) -> None:
        """Do nodes one after the other."""
        for idx, node in enumerate(body):
            here = f"{place}[{idx}]"
            cited.set(node.line or f"{self._run.program.name}:{here}")
            if self._run.watch is not None:
                self._run.watch(self._state, node, here)
            await _DO[type(node)](self, node, here)

    async def read(self, value: Value) -> Any:
        """Return what a value is, once the variables that it names are there."""
        found = {named: await self._held(named) for named in list(references(value))}
        whole = read(value, lambda named: found[named])
        self._spend(whole)
        return whole

    def _spend(self, whole: Any) -> None:
        """Count what was made: a loop that doubles a text would fill any memory."""
        left = self._run.text_left
        if left is None:
            return
        pending = [whole]
        while pending and left >= 0:
            each = pending.pop()
            left -= len(each) + 1 if isinstance(each, str | list | dict) else 1
            if isinstance(each, list):
                pending += each
            elif isinstance(each, dict):
                left -= sum(map(len, each))
                pending += each.values()
        if left < 0:
            raise InvalidParameterError("the program makes more text than it may; write less, or end loops sooner")
        self._run.text_left = left

    async def _held(self, named: Argument | Variable) -> Any:
        if isinstance(named, Argument):
            return self._run.arguments[named.name]
        state = self._state if named.branch is None else await self._branch(named.branch)
        value = await state.get_var_async(named.name)
        return state.get_parsed(named.name) if named.is_parsed else value

    async def _branch(self, branch: Branch) -> ProgramState:
        forked = self._forks[branch.fork]
        await forked.tasks[branch.idx]
        return forked.group[branch.idx]

    # -- nodes

    async def say(self, node: nodes.Say, _: str) -> None:
        text = await self.read(node.text)
        if not isinstance(text, str):
            raise InvalidParameterError(f"the text is {text!r:.60}; only texts can be appended")
        self._state.append(text)

    async def gen(self, node: nodes.Gen, _: str) -> None:
        options = await self.read(dict(node.options))
        dialect = options.pop("reasoning", None)
        if "dtype" in options:
            options["dtype"] = DTYPES.get(options["dtype"], options["dtype"])
        expr = api.gen(node.name, **options, timeout=node.timeout_s)
        self._state.append(expr if dialect is None else api.separate_reasoning(expr, dialect))

    async def select(self, node: nodes.Select, _: str) -> None:
        choices = await self.read(node.choices)
        self._state.append(api.select(node.name, choices, choices_method=node.method, timeout=node.timeout_s))

    async def tool(self, node: nodes.Tool, _: str) -> None:
        args = await self.read(dict(node.args))
        self._state.append(api.tool(node.tool, args, into=node.into, timeout=node.timeout_s))

    async def set(self, node: nodes.Set, _: str) -> None:
        self._state.set_var(node.name, await self.read(node.value))

    async def role(self, node: nodes.Role, here: str) -> None:
        self._state.append(exprs.RoleBegin(role=node.role))
        await self.body(node.body, f"{here}.body")
        self._state.append(exprs.RoleEnd(role=node.role))

    async def scope(self, node: nodes.Scope, here: str) -> None:
        self._state.append(exprs.ScopeBegin(name=node.name))
        await self.body(node.body, f"{here}.body")
        self._state.append(exprs.ScopeEnd(name=node.name))

    async def fork(self, node: nodes.Fork, here: str) -> None:
        group = self._state.fork(len(node.branches))
        tasks = [
            self._run.branches.create_task(_Place(self._run, state).body(body, f"{here}.branches[{idx}]"))
            for idx, (state, body) in enumerate(zip(group, node.branches, strict=True))
        ]
        self._forks[node.name] = _Forked(group, tasks)

    async def join(self, node: nodes.Join, _: str) -> None:
        forked = self._forks[node.fork]
        await asyncio.gather(*forked.tasks)
        forked.group.join(node.mode)

    async def choose(self, node: nodes.If, here: str) -> None:
        name = "then" if await self.read(node.condition) else "otherwise"
        await self.body(getattr(node, name), f"{here}.{name}")

    async def repeat(self, node: nodes.While, here: str) -> None:
        for _ in range(node.max_steps):
            if not await self.read(node.condition):
                return
            await self.body(node.body, f"{here}.body")
        if node.at_limit == "fail" and await self.read(node.condition):
            line = node.line or f"{self._run.program.name}:{here}"
            raise ProgramError(
                f"{line}: the while has taken {node.max_steps} steps, its limit, and its condition still holds",
                line=line,
            )

    async def match(self, node: nodes.Match, here: str) -> None:
        subject = await self.read(node.subject)
        for idx, case in enumerate(node.cases):
            if subject in case.values:
                await self.body(case.body, f"{here}.cases[{idx}].body")
                return
        await self.body(node.otherwise, f"{here}.otherwise")


_DO: Mapping[type[Node], Callable[[_Place, Any, str], Awaitable[None]]] = {
    nodes.Say: _Place.say,
    nodes.Gen: _Place.gen,
    nodes.Select: _Place.select,
    nodes.Tool: _Place.tool,
    nodes.Set: _Place.set,
    nodes.Role: _Place.role,
    nodes.Scope: _Place.scope,
    nodes.Fork: _Place.fork,
    nodes.Join: _Place.join,
    nodes.If: _Place.choose,
    nodes.While: _Place.repeat,
    nodes.Match: _Place.match,
}
