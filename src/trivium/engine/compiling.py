"""Requests whose constraint is being compiled: they join the queue once their grammar is there.

::

    submit ─ no constraint ──────────────────────────────► queue
         └─ constraint ─► compiler (its own thread) ─ grammar ─► queue
                                                    └ refusal ─► client
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trivium.base.errors import (
    CapacityError,
    DeadlineExceededError,
    InternalError,
    InvalidParameterError,
    TriviumError,
)
from trivium.grammar.constraint import constraint_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trivium.config.sampling import SamplingParams
    from trivium.engine.admit import Answer
    from trivium.engine.messages import Submit
    from trivium.grammar.compiler import GrammarCompiler
    from trivium.grammar.constraint import Constraint
    from trivium.grammar.matcher import Grammar


DEFAULT_TIMEOUT_S = 30.0


class Refusal(NamedTuple):
    """A request that will not run, and why."""

    request_id: str
    error: TriviumError


class Compiled(NamedTuple):
    """A request whose grammar is there."""

    message: Submit
    answers: Sequence[Answer]
    """As they were admitted, under no grammar yet."""
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class _Waiting:
    message: Submit
    answers: Sequence[Answer]
    wanted: Constraint
    grammar: Future[Grammar]
    since_s: float


class Compiling:
    """Holds submitted requests until their grammars are compiled, in order of arrival."""

    def __init__(self, compiler: GrammarCompiler, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Begin with nobody.

        Args:
            compiler: What compiles.
            timeout_s: Longest that a request waits for its grammar.
        """
        self._compiler = compiler
        self._timeout_s = timeout_s
        self.num_timeouts = 0
        """Requests whose grammar took too long."""
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_answers(self) -> int:
        """Of all that wait together."""
        return sum(len(each.answers) for each in self._waiting.values())

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Of those that wait."""
        return tuple(self._waiting)

    def new_requests(self) -> list[str]:
        """Return those of which nothing has been delivered by another engine."""
        return [
            request_id
            for request_id, each in self._waiting.items()
            if not any(told.token_ids or told.is_finished for told in each.message.delivered)
        ]

    @property
    def compiler(self) -> GrammarCompiler:
        """What compiles."""
        return self._compiler

    def check(self, wanted: Constraint) -> None:
        """Wait until a constraint is compiled, in the caller's thread.

        Raises:
            RequestError: It is refused, or takes too long.
            CapacityError: Too many wait already, or for too long.
        """
        promise = self._compiler.submit(wanted)
        try:
            error = promise.exception(self._timeout_s)
        except TimeoutError:
            raise self._too_late(promise, wanted) from None
        if error is not None:
            raise error.with_traceback(None)  # it is kept, and would grow with each who asks

    def add(self, message: Submit, answers: Sequence[Answer], now_s: float) -> None:
        """Have the constraint of an admitted request compiled.

        Raises:
            CapacityError: Too many wait already.
        """
        wanted = constraint_of(message.params)
        if wanted is None:
            raise InternalError(f"{message.request_id} has no constraint to compile")
        grammar = self._compiler.submit(wanted, message.request_id)
        self._waiting[message.request_id] = _Waiting(message, answers, wanted, grammar, now_s)

    def expect(self, params: SamplingParams) -> None:
        """Have the constraint of a request compiled that has not come yet, from any thread, unless too many wait."""
        wanted = constraint_of(params)
        if wanted is not None:
            with suppress(CapacityError):
                self._compiler.submit(wanted)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests; grammars that only they wait for are not compiled, unless they are under way."""
        for request_id in request_ids:
            if self._waiting.pop(request_id, None) is not None:
                self._compiler.leave(request_id)

    def take(self, now_s: float) -> Iterator[Compiled | Refusal]:
        """Take out every request whose grammar is there, could not be compiled, or has come too late."""
        for request_id, each in list(self._waiting.items()):
            first = each.answers[0]
            if first.deadline_at_s is not None and now_s >= first.deadline_at_s:
                self.drop([request_id])
                waited_s = now_s - first.request.arrival_s
                passed = DeadlineExceededError(f"the request's deadline passed after {waited_s:.1f} s")
                yield Refusal(request_id, passed)
            elif each.grammar.done():
                del self._waiting[request_id]
                yield _outcome(each)
            elif now_s >= each.since_s + self._timeout_s:
                late = self._too_late(each.grammar, each.wanted)
                self.drop([request_id])
                yield Refusal(request_id, late)

    def _too_late(self, grammar: Future[Grammar], wanted: Constraint) -> TriviumError:
        self.num_timeouts += 1
        limit = f"within {self._timeout_s:g} s (grammar_timeout_s)"
        if grammar.running():
            reason = f"{wanted.kind} could not be compiled {limit}; make it simpler, or raise the limit"
            return InvalidParameterError(reason, param=wanted.kind)
        return CapacityError(f"{wanted.kind} was not compiled {limit}, since others were before it; try again later")

    def wait(self, timeout_s: float) -> None:
        """Sleep until a grammar is there, or the time is up."""
        if self._waiting:
            wait([each.grammar for each in self._waiting.values()], timeout_s, "FIRST_COMPLETED")


def _outcome(waiting: _Waiting) -> Compiled | Refusal:
    error = waiting.grammar.exception()
    if error is None:
        return Compiled(waiting.message, waiting.answers, waiting.grammar.result())
    if not isinstance(error, TriviumError):
        error = InternalError(f"the constraint could not be compiled: {type(error).__name__}: {error}")
    return Refusal(waiting.message.request_id, error)
