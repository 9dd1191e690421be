"""Many runs of one program, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.api.progress import progress_bar
from trivium.base.errors import ProgramError

if TYPE_CHECKING:
    from trivium.lang.state import ProgramState

CHUNK = 200
"""Programs that are begun together where states are yielded."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a batch is run."""

    begin: Callable[[], ProgramState]
    call: Callable[[ProgramState, Sequence[Any], Mapping[str, Any]], None]
    prepare: Callable[[], AbstractContextManager[None]]
    """Returns what is held while it runs."""
    num_threads: int
    has_bar: bool
    returns_errors: bool

    def all(self, items: Sequence[Arguments]) -> list[ProgramState]:
        """Run all and return their states.

        Raises:
            ProgramError: One failed, and errors are not to be returned; all have been run.
        """
        with self.prepare(), progress_bar(len(items), is_wanted=self.has_bar) as advance:
            states = list(self._run(items, advance))
        if not self.returns_errors:
            raise_first([state.failure for state in states])
        return states

    def yielded(self, items: Sequence[Arguments]) -> Iterator[ProgramState]:
        """Run a part at a time and yield their states in order.

        Raises:
            ProgramError: The next one failed, and errors are not to be returned.
        """
        with self.prepare(), progress_bar(len(items), is_wanted=self.has_bar) as advance:
            for chunk in _chunks(items):
                for state in self._run(chunk, advance):
                    if not self.returns_errors:
                        raise_first([state.failure])
                    yield state

    def _run(self, items: Iterable[Arguments], advance: Callable[[], object]) -> Iterator[ProgramState]:
        """Yield states in order, each when it is complete; leaving early cancels the rest."""
        begun: list[ProgramState] = []

        def one(item: Arguments) -> ProgramState:
            state = self.begin()
            begun.append(state)
            self.call(state, *item)
            with suppress(ProgramError):
                state.sync()
            advance()
            return state

        pool = ThreadPoolExecutor(self.num_threads, "trivium-batch")
        futures: list[Future[ProgramState]] = [pool.submit(one, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for state in tuple(begun):
                state.cancel()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def raise_first(errors: Sequence[ProgramError | None]) -> None:
    """Raise the first of the errors of a batch, with how many there are.

    Raises:
        ProgramError: There is one.
    """
    found = [error for error in errors if error is not None]
    if not found:
        return
    if len(errors) > 1:
        found[0].add_note(f"{len(found)} of {len(errors)} programs failed; return_errors=True returns all states")
    raise found[0]


def _chunks(items: Sequence[Arguments]) -> Iterator[Sequence[Arguments]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
