"""Jobs under way: counted, ended from outside, waited for.

A job ends in one of four ways, and exactly one: its work returns; its client goes away; the server is told to stop and
its time is up; or its work fails. Whichever comes first cancels the rest, and a cancelled work closes its engine
requests, so that nothing is computed for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from trivium.base.errors import TriviumError
from trivium.server.errors import ClientGoneError, ShuttingDownError

T = TypeVar("T")


class OpenJobs:
    """The set of jobs under way.

    Invariants:
        Once `stop_accepting` was called, no job is added.
    """

    def __init__(self) -> None:
        self._ends: dict[asyncio.Future[None], tuple[str, ...]] = {}
        """Per job, what ends it from outside, and the ids of its requests in the engine."""
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_accepting = True
        self.on_stop: list[Callable[[], None]] = []
        """Called when no job is accepted any more: what ends streams that are no jobs."""

    def __len__(self) -> int:
        return len(self._ends)

    def stop_accepting(self) -> None:
        """Refuse every new job from now on."""
        self.is_accepting = False
        for tell in self.on_stop:
            tell()

    def fail_all(self, error: TriviumError) -> None:
        """End every job with an error."""
        for end in self._ends:
            if not end.done():
                end.set_exception(error)

    def fail_among(self, request_ids: Container[str], error: TriviumError) -> int:
        """End the jobs all of whose requests are among these; returns how many."""
        found = [end for end, own in self._ends.items() if own and all(each in request_ids for each in own)]
        for end in found:
            if not end.done():
                end.set_exception(error)
        return len(found)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no job is under way; returns whether that came true in time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), timeout_s)
        return not self._ends

    async def run(self, work: Coroutine[Any, Any, T], receive: Receive, *, request_ids: tuple[str, ...] = ()) -> T:
        """Run a job's work until it, its client, or the server ends it.

        Args:
            work: Does everything, sends included; cancelled when somebody else ends the job.
            receive: The request's channel, whose body has been read.
            request_ids: What the engine calls its requests.

        Raises:
            ClientGoneError: The connection closed.
            ShuttingDownError: No new job is taken.
            TriviumError: The job was ended by `fail_all`, or failed.
        """
        if not self.is_accepting:
            work.close()
            raise ShuttingDownError("the server is shutting down", retry_after_s=5.0)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends[end] = request_ids
        self._is_empty.clear()
        working = asyncio.create_task(work)
        watching = asyncio.create_task(_client_gone(receive))
        try:
            ways: set[asyncio.Future[Any]] = {working, watching, end}
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return await working
            await _cancelled(working)
            if end.done():
                end.result()
            raise ClientGoneError
        finally:
            await _cancelled(working)
            watching.cancel()
            if not end.cancel() and not end.cancelled():
                end.exception()  # known by now, or not wanted any more
            del self._ends[end]
            if not self._ends:
                self._is_empty.set()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has cleaned up; its outcome is not wanted any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
