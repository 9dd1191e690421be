"""What readers wait for: the value of a variable, and text as it comes.

Each ends with a value or with an error, so that no reader waits for what will never come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from threading import Condition
from typing import Any

from trivium.lang.driver import driver

Piece = tuple[str, dict[str, Any]]
"""A text, and what is known of it."""


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Give a future its value or its error, unless it has one or nobody wants it any more."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def following(future: Future[Any]) -> Future[Any]:
    """Return a future that ends as another does, and can be cancelled without it."""
    own: Future[Any] = Future()
    future.add_done_callback(
        lambda done: settle(own, error=done.exception()) if done.exception() else settle(own, done.result())
    )
    return own


class Feed:
    """Text that grows until it is closed; any number of readers, in threads and in event loops, see all of it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._pieces: list[Piece] = []
        self._is_closed = False
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], object]] = []

    def add(self, text: str, meta: dict[str, Any] | None = None) -> None:
        """Append a text."""
        if text:
            with self._changed:
                self._pieces.append((text, meta or {}))
                self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Say that nothing follows, or why; what was closed stays as it is."""
        with self._changed:
            if not self._is_closed:
                self._is_closed, self._error = True, error
                self._wake()

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces as they come.

        Raises:
            ProgramError: It was closed with this.
        """
        num_read = 0
        while True:
            driver.refuse_to_wait()
            with self._changed:
                while len(self._pieces) == num_read and not self._is_closed:
                    self._changed.wait()
                new = self._pieces[num_read:]
            if not new:
                return self._end()
            yield from new
            num_read += len(new)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yield pieces as they come, in an event loop of the reader's.

        Raises:
            ProgramError: It was closed with this.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        num_read = 0

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            while True:
                woken.clear()
                with self._changed:
                    new, is_closed = self._pieces[num_read:], self._is_closed
                if not new and is_closed:
                    self._end()
                    return
                for piece in new:
                    yield piece
                num_read += len(new)
                if not new:
                    await woken.wait()
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()

    def _end(self) -> None:
        if self._error is not None:
            raise self._error


class Variable:
    """A value that was promised under a name."""

    __slots__ = ("beside", "feed", "future", "meta", "name", "parse")

    def __init__(self, name: str, parse: Callable[[str], Any] | None = None) -> None:
        self.name = name
        self.parse = parse
        """Reads its text as a value."""
        self.future: Future[Any] = Future()
        self.feed = Feed()
        """Its text, as it comes."""
        self.meta: dict[str, Any] = {}
        self.beside: Variable | None = None
        """One that ends with this one: the reasoning of an answer."""

    def resolve(self, value: Any, meta: dict[str, Any] | None = None) -> None:
        """Give it its value, once."""
        if not self.future.done():
            self.meta = meta or {}
            settle(self.future, value)
            self.feed.close()

    def fail(self, error: BaseException) -> None:
        """Say that there will be no value, and why."""
        if not self.future.done():
            settle(self.future, error=error)
            self.feed.close(error)
        if self.beside is not None:
            self.beside.fail(error)
