"""A strand: the primitives of one state, done in order, in the driver's thread.

::

    author's thread     s += "a"    s += gen("x")            s["x"] ── waits for the variable
    queue                  [a]         [a, x]
    driver                         a ─► x ─ submit ─ news ... ─► resolve x ─► nothing left: no task either

What fails ends its strand: every variable that is still promised ends with the error, which cites the author's line.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from trivium.base.errors import DeadlineExceededError, InvalidParameterError, ProgramError
from trivium.lang.driver import driver
from trivium.lang.expressions import Ask, Expr, Fork, Gen, Join, ScopeBegin, ScopeEnd, ToolCall, leaves
from trivium.lang.perform import perform
from trivium.lang.promises import Feed, Variable, settle
from trivium.lang.remotely import Turn
from trivium.lang.roles import Roles
from trivium.lang.transcript import Transcript

if TYPE_CHECKING:
    from trivium.lang.program import Program

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """A primitive that waits for its turn."""

    expr: Expr
    variable: Variable | None
    context: contextvars.Context


class Strand:
    """The queue of one state, and what has become of it.

    Threads: `append`, `end`, `fail` and the readers may be called from any; all else runs in the driver's thread.
    """

    def __init__(self, program: Program, parent: Strand | None = None) -> None:
        """Begin a program, or wait for the `Fork` of `parent`."""
        self.program = program
        self.variables: dict[str, Variable] = {} if parent is None else dict(parent.variables)
        self.own_names: list[str] = []
        """Names that were promised here rather than inherited."""
        self.scopes: dict[Variable, int] = {}
        """Open scopes: where the text of their variable begins."""
        self.feed = Feed()
        """Text that was appended here, as it comes."""
        self.transcript = Transcript(codec=program.backend.codec)
        self.roles = Roles(render=program.backend.render)
        self.turn = Turn()
        """What is left to a remote model that is asked ahead."""
        self.inherited_len = 0
        """Letters of the text that were there when it was forked."""
        self.error: ProgramError | None = None
        self.ret_value: Any = None
        """What the author's function returned."""
        self.is_pure = True
        """Whether what was appended does the same in any order: no tool, no fork, no draw that is not repeatable."""
        self._beside: set[asyncio.Task[None]] = set()
        """Joins that are not waited for."""
        self._lock = Lock()
        self._tasks: deque[_Task] = deque()
        self._opened: list[Variable] = []
        """Variables of scopes whose end has not been appended."""
        self._expected: dict[str | None, Future[Any]] = {}
        """What readers outside of the function wait for while it runs."""
        self._begun = parent is None
        self._is_driven = False
        self._is_ended = False
        self._running: asyncio.Task[None] | None = None
        program.strands[self] = None

    # -- from any thread

    is_tracing = False

    def child(self) -> Strand:
        """Return the strand of a branch, which waits for its `Fork`."""
        return Strand(self.program, self)

    def append(self, expr: Expr) -> None:
        """Append a node, or the nodes of a sum; it is done later.

        Raises:
            InvalidParameterError: The program has ended.
        """
        context = contextvars.copy_context()
        with self._lock:
            if self._is_ended and not isinstance(expr, Ask):
                raise InvalidParameterError("the program has ended, so nothing can be appended to its state")
            for leaf in leaves(expr):
                self._foresee(leaf)
                self._take(_Task(leaf, self._promise(leaf), context))
            self._drive()

    def set(self, name: str, value: Any) -> None:
        """Give a variable a value."""
        variable = Variable(name)
        variable.resolve(value)
        with self._lock:
            self.declare(variable)

    def declare(self, variable: Variable) -> None:
        """Make a variable readable; one of the same name is no longer."""
        self.variables[variable.name] = variable
        if variable.name not in self.own_names:
            self.own_names.append(variable.name)
        self._met(variable.name)
        if self.program.on_variable is not None:
            self.program.on_variable(self, variable)

    def expect(self, name: str | None) -> Future[Any]:
        """Return what ends when a variable of this name is promised, or when nothing more can be; `None`: only then."""
        with self._lock:
            if name not in self.variables and not self._is_ended and self.error is None:
                return self._expected.setdefault(name, Future())
        met: Future[Any] = Future()
        settle(met)
        return met

    def ask(self, read: Callable[[Strand], Any]) -> Future[Any]:
        """Return what `read` finds when everything that was appended is done."""
        answer: Future[Any] = Future()
        self.append(Ask(read=read, answer=answer))
        return answer

    def end(self) -> None:
        """Take nothing more; what was appended is still done."""
        with self._lock:
            is_ended, self._is_ended = self._is_ended, True
            self._met(*self._expected)
        if not is_ended:
            self.ask(Strand._close)

    def fail(self, error: ProgramError, *, is_own: bool = False) -> None:
        """End with an error, which every reader gets, and free what is held; a strand fails once.

        Args:
            error: What is raised by readers.
            is_own: Whether the strand's own work failed, so that there is none to stop.
        """
        with self._lock:
            if self.error is not None or (self._is_ended and not self._tasks and not self._is_driven):
                return
            self.error = error
            tasks, running = tuple(self._tasks), self._running
            self._tasks.clear()
            self._met(*self._expected)
        if self.program.is_logged:
            logger.warning("%s", error)
        for task in tasks:
            _lose(task, error)
        self._close(error)
        if running is not None and not is_own:
            driver.call(running.cancel)

    # -- in the driver's thread

    def begin(self, parent: Strand) -> None:
        """Go on from where `parent` stands."""
        self.transcript, self.roles = parent.transcript.fork(), parent.roles.fork()
        self.inherited_len = len(self.transcript.text)
        with self._lock:
            self._begun = True
            self._drive()

    def do_beside(self, expr: Expr, work: Coroutine[Any, Any, None]) -> None:
        """Do a primitive while those behind it are done; a reader of the whole state waits for it."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as cause:
                error = cause if isinstance(cause, ProgramError) else _failure(expr, cause)
                _lose(_Task(expr, None, contextvars.copy_context()), error)
                self.fail(error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def beside_done(self) -> None:
        """Wait for what is done beside.

        Raises:
            ProgramError: Some of it failed.
        """
        if self._beside:
            await asyncio.wait(self._beside)
        if self.error is not None:
            raise self.error

    def say(self, text: str) -> None:
        """Append a constant to the text."""
        if not self.transcript.text:
            self.transcript.is_framed = bool(self.roles.open_role)
        self.transcript.append(text)
        self.turn.follow(text)
        self.write(text)

    def open_for_model(self) -> None:
        """Write what stands before the model's words, if it is the first to write in its message."""
        if self.roles.open_role is not None:
            self.say(self.roles.before_model())

    def write(self, text: str, meta: dict[str, Any] | None = None) -> None:
        """Tell readers of text that was appended."""
        self.feed.add(text, meta)

    def _close(self, error: ProgramError | None = None) -> None:
        self.program.drop(self)
        self.turn.lose(error or ProgramError("the message was never ended", line="the program"))
        for variable in tuple(self.scopes):
            variable.fail(error or ProgramError(f"the scope '{variable.name}' was never ended", line="the program"))
        self.feed.close(error)

    # -- under the lock

    def _met(self, *names: str | None) -> None:
        for name in names:
            expected = self._expected.pop(name, None)
            if expected is not None:
                settle(expected)

    def _foresee(self, expr: Expr) -> None:
        """Take note of a primitive before its turn comes."""
        if isinstance(expr, ToolCall | Fork):
            self.is_pure = False
        if not isinstance(expr, Gen):
            return
        sampling = expr.sampling.over(self.program.defaults)
        self.is_pure &= sampling.temperature == 0 or sampling.seed is not None
        is_waiting = bool(self._tasks) or self._is_driven
        if (
            is_waiting
            and expr.form is not None
            and expr.reasoning is None
            and self.program.effects.enable_compile_ahead
        ):
            self.program.expect_constraint(expr.form.constraint)

    def _promise(self, expr: Expr) -> Variable | None:
        if isinstance(expr, Join):
            for variable, _ in expr.gathered.values():
                self.declare(variable)
        if isinstance(expr, ScopeEnd):
            return self._promise_again(expr.name)
        if expr.variable is None:
            return None
        form = getattr(expr, "form", None)
        variable = Variable(expr.variable, None if form is None else form.parse)
        self.declare(variable)
        if isinstance(expr, ScopeBegin):
            self._opened.append(variable)
        if getattr(expr, "reasoning", None) is not None:
            variable.beside = Variable(f"{expr.variable}_reasoning_content")
            self.declare(variable.beside)
        return variable

    def _promise_again(self, name: str) -> Variable | None:
        """Return the variable of the scope that ends; it is the one of its name from here on."""
        variable = next((each for each in reversed(self._opened) if each.name == name), None)
        if variable is not None:
            self._opened.remove(variable)
            self.variables[name] = variable
        return variable

    def _take(self, task: _Task) -> None:
        if self.error is None:
            self._tasks.append(task)
            self.program.expect(task.expr)
        else:
            _lose(task, self.error)

    def _drive(self) -> None:
        if self._begun and self._tasks and not self._is_driven:
            self._is_driven = True
            driver.start(self._run, self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._running = task

    # -- the driver's side of the queue

    async def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._is_driven, self._running = False, None
                    return
                task = self._tasks.popleft()
            self.program.expect(task.expr, sign=-1)
            try:
                await self._perform(task)
            except asyncio.CancelledError:
                self._end_with(task, self.error or ProgramError("the program was cancelled", line=task.expr.line))
                raise
            except ProgramError as error:  # of a strand that was joined: its line is the one to cite
                self._end_with(task, error)
            except Exception as cause:
                self._end_with(task, _failure(task.expr, cause))

    def _end_with(self, task: _Task, error: ProgramError) -> None:
        _lose(task, error)
        self.fail(error, is_own=True)

    async def _perform(self, task: _Task) -> None:
        limits = [each for each in (getattr(task.expr, "timeout_s", None), self.program.left_s()) if each is not None]
        limit = asyncio.timeout(min(limits) if limits else None)
        try:
            async with limit:
                await perform(self, task.expr, task.variable, task.context)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(f"it took longer than the {min(limits):g} s that were left") from None


def _lose(task: _Task, error: ProgramError) -> None:
    """End what waits for a primitive with an error."""
    expr = task.expr
    if task.variable is not None:
        task.variable.fail(error)
    if isinstance(expr, Ask):
        settle(expr.answer, error=error)
    elif isinstance(expr, Fork):
        for child in expr.children:
            child.fail(error)
    elif isinstance(expr, Join):
        for variable, _ in expr.gathered.values():
            variable.fail(error)


def _failure(expr: Expr, cause: Exception) -> ProgramError:
    error = ProgramError(f"{expr.line}: {_named(expr)} failed: {cause}", line=expr.line)
    error.__cause__ = cause
    return error


def _named(expr: Expr) -> str:
    kind = type(expr).__name__.lower()
    return kind if expr.variable is None else f"{kind} '{expr.variable}'"
