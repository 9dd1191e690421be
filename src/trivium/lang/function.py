"""A program: the author's function, and the ways to run it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.abstract import stop, tracing
from trivium.lang.backends.choice import backend_of
from trivium.lang.batch import Batch, raise_first
from trivium.lang.effects import Effects
from trivium.lang.effects import effects as switches
from trivium.lang.flow import is_count
from trivium.lang.program import Program
from trivium.lang.sampling import MAX_NEW_TOKENS, Sampling
from trivium.lang.state import ProgramState

if TYPE_CHECKING:
    from trivium.lang.trace import Trace

_MIN_THREADS, _THREADS_PER_CPU = 96, 16
_FIRST_PARAMETER = "s"

Item = Mapping[str, Any] | Sequence[Any]
"""Arguments of one run: by name, or by position."""


class SglFunction:
    """A program; `function` makes one."""

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Wrap a function whose first parameter is `s`.

        Raises:
            InvalidParameterError: It is not, or `num_api_spec_tokens` is no whole number above 0.
        """
        names = list(inspect.signature(func).parameters)
        if names[:1] != [_FIRST_PARAMETER]:
            raise InvalidParameterError(
                f"{getattr(func, '__name__', 'the function')} begins with {names[0] if names else 'no parameter'}; "
                f"the first parameter of a program must be '{_FIRST_PARAMETER}'"
            )
        if num_api_spec_tokens is not None and not is_count(num_api_spec_tokens):
            raise InvalidParameterError(
                f"num_api_spec_tokens is {num_api_spec_tokens!r}; it must be a whole number above 0",
                param="num_api_spec_tokens",
            )
        functools.update_wrapper(self, func)
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        self.tools = dict(tools or {})
        self.arg_names = names[1:]

    def bind(self, **kwargs: Any) -> SglFunction:
        """Return the program with some arguments given.

        Raises:
            InvalidParameterError: It has no such parameter.
        """
        for name in kwargs:
            if name not in self.arg_names:
                raise InvalidParameterError(f"{self.__name__} has no parameter '{name}'", param=name)  # type: ignore[attr-defined]
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs}, self.tools)

    def run(
        self,
        *args: Any,
        max_new_tokens: int = MAX_NEW_TOKENS,
        n: int = 1,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        ignore_eos: bool = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        stream: bool = False,
        backend: Any = None,
        use_thread: bool = True,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the function and return its state, while the model may still be at work.

        Parameters up to `return_text_in_logprobs` are those of every `gen` that leaves them open.

        Args:
            args: The function's arguments behind `s`.
            stream: Run the function in a thread of its own and return at once.
            backend: What to run on; `None` takes the default.
            use_thread: Whether appending returns before the work is done.
            timeout: Seconds after which what is not done fails.
            kwargs: The function's arguments by name.

        Raises:
            RequestError: A parameter is refused.
            ConfigError: There is no backend.
        """
        sampling = Sampling(
            max_tokens=max_new_tokens,
            n=n,
            stop=stop,
            stop_token_ids=stop_token_ids,
            stop_regex=stop_regex,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            ignore_eos=ignore_eos,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            return_text_in_logprobs=return_text_in_logprobs,
        )
        state = self._state(sampling, backend, is_lazy=use_thread, timeout_s=timeout)
        if stream:
            threading.Thread(target=self._call_apart, args=(state, args, kwargs), name="trivium-program").start()
            return state.outside()
        self._call(state, args, kwargs)
        return state

    __call__ = run

    def run_batch(
        self,
        batch_kwargs: Sequence[Item],
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        n: int = 1,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        ignore_eos: bool = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        timeout: float | None = None,
        return_errors: bool = False,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run the function for every item, side by side; the states are in the order of the items, and complete.

        Parameters up to `return_text_in_logprobs` are those of every `gen` that leaves them open.

        Args:
            batch_kwargs: Per run, its arguments by name (a mapping) or by position (a tuple).
            backend: What to run on; `None` takes the default.
            num_threads: Most functions at a time; `"auto"` takes 96, or 16 per processor if that is more.
            progress_bar: Draw one, if standard error is a terminal.
            generator_style: Yield states in order as they are complete, and begin 200 runs at a time.
            timeout: Seconds that each run may take.
            return_errors: Return states whose program failed, too; their readers raise.

        Raises:
            RequestError: A parameter is refused.
            ConfigError: There is no backend.
            ProgramError: A program failed; all others have been run.
        """
        sampling = Sampling(
            max_tokens=max_new_tokens,
            n=n,
            stop=stop,
            stop_token_ids=stop_token_ids,
            stop_regex=stop_regex,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            ignore_eos=ignore_eos,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            return_text_in_logprobs=return_text_in_logprobs,
        )
        items = [_arguments(idx, item) for idx, item in enumerate(batch_kwargs)]
        backend = backend_of(backend)
        effects = switches.copy()
        run = Batch(
            begin=lambda: self._state(sampling, backend, timeout_s=timeout),
            call=self._call_apart,
            prepare=lambda: self._prepared(backend, effects if len(items) > 1 else None),
            num_threads=_num_threads(num_threads, len(items)),
            has_bar=progress_bar,
            returns_errors=return_errors,
        )
        return run.yielded(items) if generator_style else run.all(items)

    async def run_async(
        self, *args: Any, stream: bool = False, backend: Any = None, timeout: float | None = None, **kwargs: Any
    ) -> ProgramState:
        """`run` for an event loop: return the state when everything is done, or at once with `stream`.

        Args:
            args: The arguments of the function, which may be a coroutine function.
            stream: Return while the function runs.
            backend: What to run on; `None` takes the default.
            timeout: Seconds after which what is not done fails.
            kwargs: The function's arguments by name, and sampling parameters as for `run`.

        Raises:
            RequestError: A parameter is refused.
            ConfigError: There is no backend.
        """
        sampling, arguments = _split(kwargs)
        state = self._state(sampling, backend, timeout_s=timeout)
        work = asyncio.ensure_future(self._call_async(state, args, arguments))
        if stream:
            _background.add(work)
            work.add_done_callback(_background.discard)
            return state.outside(asyncio.get_running_loop() if inspect.iscoroutinefunction(self.func) else None)
        try:
            await work
        except asyncio.CancelledError:
            state.cancel()
            raise
        return state

    async def run_batch_async(
        self,
        batch_kwargs: Sequence[Item],
        *,
        num_programs: int = _MIN_THREADS,
        return_errors: bool = False,
        **options: Any,
    ) -> list[ProgramState]:
        """`run_batch` for an event loop; at most `num_programs` run at a time.

        Args:
            batch_kwargs: As for `run_batch`.
            num_programs: Most programs at a time.
            return_errors: Return states whose program failed, too; their readers raise.
            options: As for `run_async`.

        Raises:
            ProgramError: A program failed; all others have been run.
        """
        room = asyncio.Semaphore(num_programs)

        async def one(item: tuple[tuple[Any, ...], dict[str, Any]]) -> ProgramState:
            async with room:
                return await self.run_async(*item[0], **item[1], **options)

        items = [_arguments(idx, item) for idx, item in enumerate(batch_kwargs)]
        ready = self._prepared(options.get("backend"), switches.copy() if len(items) > 1 else None)
        await asyncio.to_thread(ready.__enter__)
        try:
            states = await asyncio.gather(*map(one, items))
        finally:
            await asyncio.to_thread(ready.__exit__, None, None, None)
        if not return_errors:
            raise_first([state.failure for state in states])
        return list(states)

    def trace(self, backend: Any = None, **kwargs: Any) -> Trace:
        """Run the function once with arguments that are not known yet, and return what it does as data.

        Args:
            backend: What the trace runs on, if it is run.
            kwargs: Arguments that are given; the others become parameters of the program.

        Raises:
            InvalidParameterError: There is no such parameter.
            ProgramError: It cannot be traced; the message names the author's line.
        """
        found = self._trace(kwargs, backend)
        found.require()
        return found

    def _trace(self, given: Mapping[str, Any], backend: Any = None) -> Trace:
        from trivium.lang.trace import trace_of  # noqa: PLC0415  (traces run functions)

        return trace_of(self, given, backend)

    def explain(self, backend: Any = None, **kwargs: Any) -> str:
        """Tell what a trace finds, and where it ends.

        That is the program as text, its static prefix, what is compiled ahead, what runs side by side, the most that a
        run does, and the line from which on it cannot be traced, if there is one.

        Args:
            backend: What counts the prefix's tokens; `None` takes the default.
            kwargs: Arguments that are given.

        Raises:
            InvalidParameterError: There is no such parameter.
        """
        return self._trace(kwargs).explain(backend)

    def cache(self, backend: Any = None) -> None:
        """Compute what all runs begin with, so that it is cached, and have constraints compiled; `run_batch` does so.

        Args:
            backend: What to do it on; `None` takes the default.

        Raises:
            ConfigError: There is no backend.
        """
        with self._prepared(backend, Effects()):
            pass

    # -- parts

    def _prepared(self, backend: Any, effects: Effects | None) -> AbstractContextManager[None]:
        from trivium.lang.precache import prepared  # noqa: PLC0415  (it runs programs)

        if effects is None:
            return contextlib.nullcontext()
        return prepared(lambda: self._trace({}).program, backend_of(backend), effects)

    def _state(
        self, sampling: Sampling, backend: Any, *, is_lazy: bool = True, timeout_s: float | None = None
    ) -> ProgramState:
        if tracing.get():
            stop(f"another program, {self.__name__}, is run")  # type: ignore[attr-defined]
        program = Program(
            backend=backend_of(backend),
            defaults=sampling,
            tools=self.tools,
            num_api_spec_tokens=self.num_api_spec_tokens,
            is_lazy=is_lazy,
            timeout_s=timeout_s,
        )
        return ProgramState(program)

    def _call(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run the function; if it raises, its program ends."""
        try:
            made = self.func(state, *args, **{**self.bind_arguments, **kwargs})
            state.ret_value = asyncio.run(made) if inspect.iscoroutine(made) else made
        except BaseException:
            state.cancel()
            raise
        state.end()

    def _call_apart(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run the function where nobody sees what it raises: the readers of its state get it."""
        try:
            made = self.func(state, *args, **{**self.bind_arguments, **kwargs})
            state.ret_value = asyncio.run(made) if inspect.iscoroutine(made) else made
        except BaseException as error:
            state.fail(error)
        state.end()

    async def _call_async(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not inspect.iscoroutinefunction(self.func):
            await asyncio.to_thread(self._call_apart, state, args, kwargs)
        else:
            try:
                state.ret_value = await self.func(state, *args, **{**self.bind_arguments, **kwargs})
            except Exception as error:
                state.fail(error)
            state.end()
        with contextlib.suppress(ProgramError):
            await state.sync_async()


_background: set[asyncio.Future[None]] = set()
"""Programs that run while their states are read; an event loop itself holds them weakly."""
_RUN_NAMES = {each.name for each in fields(Sampling)} - {"max_tokens", "min_tokens", "seed"}


def _split(kwargs: Mapping[str, Any]) -> tuple[Sampling, dict[str, Any]]:
    """Return sampling parameters with the defaults of `run`, and the function's arguments."""
    defaults = {
        name: each.default
        for name, each in inspect.signature(SglFunction.run).parameters.items()
        if name in _RUN_NAMES or name == "max_new_tokens"
    }
    given = defaults | {name: value for name, value in kwargs.items() if name in defaults}
    max_tokens = given.pop("max_new_tokens")
    arguments = {name: value for name, value in kwargs.items() if name not in defaults}
    return Sampling(max_tokens=max_tokens, **given), arguments


def _arguments(idx: int, item: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, list | tuple):
        return tuple(item), {}
    raise InvalidParameterError(
        f"batch_kwargs[{idx}] is {item!r}; it must be a mapping of arguments by name, or a tuple of them",
        param="batch_kwargs",
    )


def _num_threads(given: int | str, num_items: int) -> int:
    if given == "auto":
        given = max(_MIN_THREADS, _THREADS_PER_CPU * (os.cpu_count() or 1))
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidParameterError(
            f"num_threads is {given!r}; it must be 'auto' or a whole number", param="num_threads"
        )
    return max(1, min(given, num_items))
