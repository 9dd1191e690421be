"""Calls of the author's functions, and who waits in them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError
from trivium.lang.driver import driver
from trivium.lang.promises import settle

if TYPE_CHECKING:
    from trivium.lang.strand import Strand

MAX_TOOLS = 64
"""Calls of the author's tools that run at a time."""

called_by: ContextVar[Strand | None] = ContextVar("called_by", default=None)
"""The strand whose tool runs in this context."""


def find_tool(tool: str | Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function, or the one that a program knows by this name.

    Raises:
        InvalidParameterError: It knows none.
    """
    if callable(tool):
        return tool
    if tool not in known:
        raise InvalidParameterError(
            f"there is no tool '{tool}'; known are {', '.join(known) or 'none'} (see function(tools=...))"
        )
    return known[tool]


class _Place:
    """A place among the tools that run; touched in the driver's thread only."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        self._room = room
        self._is_held = self._is_over = False

    async def take(self) -> None:
        """Wait for a place; who is not there any more gives it back."""
        await self._room.acquire()
        self._is_held = True
        if self._is_over:
            self.give()

    def give(self) -> None:
        """Give the place to another."""
        if self._is_held:
            self._is_held = False
            self._room.release()

    def end(self) -> None:
        """Give it back for good."""
        self._is_over = True
        self.give()


_room: list[asyncio.Semaphore] = []
_place: ContextVar[_Place | None] = ContextVar("place", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Leave the place of a tool to another while this one waits for what others do; elsewhere, nothing."""
    place = _place.get()
    if place is None:
        yield
        return
    driver.call(place.give)
    try:
        yield
    finally:
        driver.submit(place.take()).result()


async def call_tool(
    function: Callable[..., Any], args: Mapping[str, Any], strand: Strand, context: contextvars.Context
) -> Any:
    """Call a function in a thread of its own, within the author's context; a coroutine function in this event loop.

    64 run at a time, those that wait for programs not counted. One that takes too long is left alone in its thread.
    """
    called = context.copy()
    called.run(called_by.set, strand)
    if inspect.iscoroutinefunction(function):
        return await asyncio.get_running_loop().create_task(function(**args), context=called)
    if not _room:
        _room.append(asyncio.Semaphore(MAX_TOOLS))
    place, result = _Place(_room[0]), Future[Any]()
    called.run(_place.set, place)

    def run() -> None:
        try:
            value = called.run(lambda: function(**args))
        except BaseException as error:
            settle(result, error=error)
        else:
            settle(result, value)

    await place.take()
    try:
        threading.Thread(target=run, name="trivium-tool", daemon=True).start()
        return await asyncio.wrap_future(result)
    finally:
        place.end()
