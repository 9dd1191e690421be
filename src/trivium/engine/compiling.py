"""Requests whose constraint is being compiled: they join the queue once their grammar is there.

::

    submit ─ no constraint ──────────────────────────────► queue
         └─ constraint ─► compiler (its own thread) ─ grammar ─► queue
                                                    └ refusal ─► client
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from trivium.base.errors import DeadlineExceededError, InternalError, TriviumError
from trivium.grammar.constraint import constraint_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trivium.engine.messages import Submit
    from trivium.grammar.compiler import GrammarCompiler
    from trivium.grammar.library import Grammar


class Refusal(NamedTuple):
    """A request that will not run, and why."""

    request_id: str
    error: TriviumError


@dataclass(frozen=True, slots=True)
class _Waiting:
    message: Submit
    grammar: Future[Grammar]
    began_s: float

    def at(self, now_s: float) -> Submit:
        """Return the message as it would have come now."""
        return structs.replace(self.message, waited_s=self.message.waited_s + now_s - self.began_s)


class Compiling:
    """Holds submitted requests until their grammars are compiled, in order of arrival."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_choices(self) -> int:
        """Of all that wait together."""
        return sum(each.message.params.num_draws for each in self._waiting.values())

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

    def add(self, message: Submit, now_s: float) -> None:
        """Have the constraint of a request compiled.

        Raises:
            CapacityError: Too many wait already.
        """
        wanted = constraint_of(message.params)
        if wanted is None:
            raise InternalError(f"{message.request_id} has no constraint to compile")
        self._waiting[message.request_id] = _Waiting(message, self._compiler.submit(wanted), now_s)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests; their grammars are compiled nevertheless, for the next who wants them."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def take(self, now_s: float) -> Iterator[tuple[Submit, Grammar] | Refusal]:
        """Take out every request whose grammar is there, could not be compiled, or has come too late."""
        for request_id, each in list(self._waiting.items()):
            message = each.at(now_s)
            if message.deadline_s is not None and message.waited_s >= message.deadline_s:
                del self._waiting[request_id]
                passed = DeadlineExceededError(f"the request's deadline passed after {message.waited_s:.1f} s")
                yield Refusal(request_id, passed)
            elif each.grammar.done():
                del self._waiting[request_id]
                yield _outcome(message, each.grammar)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a grammar is there, or the time is up."""
        if self._waiting:
            wait([each.grammar for each in self._waiting.values()], timeout_s, "FIRST_COMPLETED")


def _outcome(message: Submit, grammar: Future[Grammar]) -> tuple[Submit, Grammar] | Refusal:
    error = grammar.exception()
    if error is None:
        return message, grammar.result()
    if not isinstance(error, TriviumError):
        error = InternalError(f"the constraint could not be compiled: {type(error).__name__}: {error}")
    return Refusal(message.request_id, error)
