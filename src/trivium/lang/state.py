"""What a program's function is given: its state, and what comes of forking it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from trivium.base.errors import InvalidParameterError, ProgramError, UnsupportedFeatureError
from trivium.lang import expressions as nodes
from trivium.lang.driver import driver
from trivium.lang.expressions import Expr, as_expr, author_line
from trivium.lang.flow import Flow, is_count
from trivium.lang.promises import Variable, following
from trivium.lang.strand import Strand
from trivium.lang.tools import called_by, waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trivium.lang.program import Program

JOIN_MODES = ("gather_variable", "concate_and_append")


class ProgramState(Flow):
    """A text that grows, and variables.

    Appending returns at once; reading waits until what is read is there. What fails is raised by every reader, with
    the line of the primitive that failed.
    """

    _strand: Strand

    def __init__(self, program: Program, strand: Strand | None = None) -> None:
        self._program = program
        self._strand = Strand(program) if strand is None else strand
        self._is_outside = False
        self._runs_in: asyncio.AbstractEventLoop | None = None

    def outside(self, runs_in: asyncio.AbstractEventLoop | None = None) -> ProgramState:
        """Return the state for readers outside of the function, which runs on meanwhile: they wait for what it appends.

        Args:
            runs_in: The event loop that runs the function, if one does.
        """
        state = ProgramState(self._program, self._strand)
        state._is_outside, state._runs_in = True, runs_in
        return state

    @property
    def ret_value(self) -> Any:
        """What the program's function returned."""
        return self._strand.ret_value

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._strand.ret_value = value

    # -- appending

    def __iadd__(self, other: Expr | str) -> Self:
        """Append a text, or what `gen`, `select`, `tool` and the roles return.

        Raises:
            TypeError: It is nothing of these.
        """
        self.append(other)
        return self

    def append(self, other: Expr | str) -> None:
        """Append as `+=` does.

        Raises:
            TypeError: It is no text, and no node.
        """
        self._strand.append(as_expr(other))
        if not self._program.is_lazy:
            self._strand.ask(lambda _: None).exception()

    def set_var(self, name: str, value: Any) -> None:
        """Give a variable a value."""
        self._strand.set(name, value)

    __setitem__ = set_var

    def system(self, expr: Expr | str | None = None) -> Any:
        """Append a system message; without `expr`, a context in which it is written."""
        return self._role("system", expr)

    def user(self, expr: Expr | str | None = None) -> Any:
        """Append a user's message; without `expr`, a context in which it is written."""
        return self._role("user", expr)

    def assistant(self, expr: Expr | str | None = None) -> Any:
        """Append an assistant's message; without `expr`, a context in which it is written."""
        return self._role("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Collect all text that is appended inside in a variable."""
        self += nodes.ScopeBegin(name=name)
        try:
            yield
        finally:
            self += nodes.ScopeEnd(name=name)

    # -- forking

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup:
        """Return states that go on from here side by side; what they share is computed once.

        Raises:
            UnsupportedFeatureError: `position_ids_offset` is given.
            InvalidParameterError: `size` is no whole number above 0.
        """
        if position_ids_offset is not None:
            raise UnsupportedFeatureError("position_ids_offset is not supported", param="position_ids_offset")
        if not is_count(size):
            raise InvalidParameterError(f"size is {size!r}; it must be a whole number above 0", param="size")
        children = [self._strand.child() for _ in range(size)]
        self._strand.append(nodes.Fork(children=children))
        return ProgramStateGroup([ProgramState(self._program, child) for child in children], self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[ProgramState]:
        """Go on in a copy; the variables that it sets are joined as lists of one when the context ends.

        Raises:
            UnsupportedFeatureError: `position_ids_offset` is given.
        """
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    # -- reading

    def text(self) -> str:
        """Return the whole text, once everything that was appended is done.

        Raises:
            ProgramError: A primitive failed.
        """
        found: str = self._ask(lambda own: own.transcript.text)
        return found

    def messages(self) -> list[dict[str, str]]:
        """Return the messages that have ended, with `role` and `content`.

        Raises:
            ProgramError: A primitive failed.
        """
        found: list[dict[str, str]] = self._ask(lambda own: [dict(each) for each in own.roles.messages])
        return found

    def sync(self) -> None:
        """Wait until everything that was appended is done.

        Raises:
            ProgramError: A primitive failed.
        """
        self._ask(lambda _: None)

    def error(self) -> ProgramError | None:
        """Wait until everything that was appended is done, and return what failed, or `None`."""
        try:
            found: ProgramError | None = self._wait(self._strand.ask(lambda own: own.error))
        except ProgramError as error:
            return error
        return found

    def get_var(self, name: str) -> Any:
        """Return a variable's value, once it is there.

        Raises:
            KeyError: Nothing was appended that sets it.
            ProgramError: What sets it failed, or something before it.
        """
        return self._wait(self._due(name).future)

    __getitem__ = get_var

    def get_parsed(self, name: str) -> Any:
        """Return what a variable's text says: a number for `dtype=int`, an object for `json_schema`, and so on.

        Raises:
            KeyError: Nothing was appended that sets it.
            ProgramError: What sets it failed, or its text was cut short, so that it says nothing.
        """
        variable = self._due(name)
        value = self._wait(variable.future)
        if variable.parse is None:
            return value
        try:
            return [variable.parse(each) for each in value] if isinstance(value, list) else variable.parse(value)
        except Exception as cause:
            line = author_line()
            shown = value if len(value) <= nodes.MAX_SHOWN else f"{value[: nodes.MAX_SHOWN]}..."
            raise ProgramError(
                f"{line}: variable '{name}' is {shown!r}, which cannot be read: {cause}", line=line
            ) from cause

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return what is known of a variable besides its value: finish reason, token counts, logprobs.

        Raises:
            KeyError: Nothing was appended that sets it.
            ProgramError: What sets it failed.
        """
        variable = self._due(name)
        self._wait(variable.future)
        return variable.meta

    def __contains__(self, name: object) -> bool:
        """Say whether a variable is there, or will be."""
        return name in self._strand.variables

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield the text, or that of a variable, as it comes.

        Raises:
            KeyError: Nothing was appended that sets the variable.
            ProgramError: A primitive failed.
        """
        feed = self._strand.feed if var_name is None else self._due(var_name).feed
        return (text for text, _ in feed)

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:  # noqa: FBT001, FBT002
        """Yield the text, or that of a variable, as it comes, in the caller's event loop.

        Args:
            var_name: The variable; `None` yields the whole text.
            return_meta_data: Yield pairs of text and what is known of it.

        Raises:
            KeyError: Nothing was appended that sets the variable.
            ProgramError: A primitive failed.
        """
        feed = self._strand.feed if var_name is None else (await self._due_async(var_name)).feed
        async for text, meta in feed:
            yield (text, meta) if return_meta_data else text

    async def get_var_async(self, name: str) -> Any:
        """`get_var` for an event loop.

        Raises:
            KeyError: As for `get_var`.
            ProgramError: As for `get_var`.
        """
        return await asyncio.wrap_future(following((await self._due_async(name)).future))

    async def text_async(self) -> str:
        """`text` for an event loop.

        Raises:
            ProgramError: A primitive failed.
        """
        found: str = await self._ask_async(lambda own: own.transcript.text)
        return found

    async def sync_async(self) -> None:
        """`sync` for an event loop.

        Raises:
            ProgramError: A primitive failed.
        """
        await self._ask_async(lambda _: None)

    def end(self) -> None:
        """Take nothing more, here and in all forks; what was appended is still done."""
        self._program.end()

    def fail(self, error: BaseException) -> None:
        """End the program with an error that was raised in its function."""
        self._program.fail(error)

    @property
    def failure(self) -> ProgramError | None:
        """What has failed so far, without waiting."""
        return self._strand.error

    def cancel(self) -> None:
        """Stop the whole program and free what it holds; readers get a `ProgramError`."""
        self._program.cancel()

    # -- parts

    def _role(self, role: str, expr: Expr | str | None) -> Any:
        if expr is None:
            return self._role_scope(role)
        self += nodes.RoleBegin(role=role) + expr + nodes.RoleEnd(role=role)
        return None

    @contextmanager
    def _role_scope(self, role: str) -> Iterator[None]:
        self += nodes.RoleBegin(role=role)
        yield
        self += nodes.RoleEnd(role=role)

    def _variable(self, name: str) -> Variable:
        known = self._strand.variables
        if name not in known:
            raise KeyError(f"nothing sets the variable {name!r}; known are {', '.join(known) or 'none'}")
        return known[name]

    def _due(self, name: str) -> Variable:
        """Return a variable that is about to be read; a model that is asked ahead is asked now."""
        if self._is_outside:
            self._wait(self._strand.expect(name))
        variable = self._variable(name)
        if self._program.num_api_spec_tokens is not None and not variable.future.done():
            self._strand.ask(lambda _: None)
        return variable

    async def _due_async(self, name: str) -> Variable:
        if self._is_outside:
            await asyncio.wrap_future(following(self._strand.expect(name)))
        return self._due(name)

    def _ask(self, read: Callable[[Strand], Any]) -> Any:
        if self._is_outside:
            self._wait(self._strand.expect(None))
        return self._wait(self._strand.ask(read))

    async def _ask_async(self, read: Callable[[Strand], Any]) -> Any:
        if self._is_outside:
            await asyncio.wrap_future(following(self._strand.expect(None)))
        return await asyncio.wrap_future(self._strand.ask(read))

    def _wait(self, future: Future[Any]) -> Any:
        if called_by.get() is self._strand and not future.done():
            line = author_line()
            raise ProgramError(f"{line}: a tool waits for what comes after itself", line=line)
        if future.done():
            return future.result()
        driver.refuse_to_wait()
        if self._runs_in is not None and asyncio._get_running_loop() is self._runs_in:  # noqa: SLF001  (None without)
            raise InvalidParameterError("the program runs in this event loop, so read with get_var_async and its like")
        with waiting():
            return future.result()


class ProgramStateGroup:
    """The states that a fork made: one of them by its index, all of them by `+=`."""

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self.states = states
        self._parent = parent

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Take back what `forks[i] += ...` assigns.

        Raises:
            InvalidParameterError: It is another state.
        """
        if self.states[index] is not state:
            raise InvalidParameterError("the states of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, other: Expr | str | list[Any] | Callable[[int], Any]) -> Self:
        """Append to every state: the same, one each of a list, or what a function returns for its index.

        Raises:
            InvalidParameterError: A list has not one entry per state.
        """
        if isinstance(other, list) and len(other) != len(self.states):
            raise InvalidParameterError(f"{len(other)} texts are appended to a fork of {len(self.states)}")
        for idx, state in enumerate(self.states):
            own = other[idx] if isinstance(other, list) else other
            state.append(own(idx) if callable(own) else own)
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """End the states and bring what they made to the state that was forked.

        Args:
            mode: `gather_variable` makes a list of each variable that it lacked, in the order of the states;
                `concate_and_append` appends their texts, one after the other, as text of its own.

        Raises:
            InvalidParameterError: There is no such mode.
        """
        if mode not in JOIN_MODES:
            raise InvalidParameterError(f"mode is {mode!r}; it must be {' or '.join(JOIN_MODES)}", param="mode")
        parent, children = self._parent._strand, [state._strand for state in self.states]  # noqa: SLF001  (one module)
        gathered: dict[str, tuple[Variable, list[Variable]]] = {}
        for child in children if mode == "gather_variable" else ():
            for name in child.own_names:
                if name not in parent.variables:
                    gathered.setdefault(name, (Variable(name), []))[1].append(child.variables[name])
        appends = mode == "concate_and_append"
        parent.append(nodes.Join(children=children, gathered=gathered, appends_text=appends))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.join()
