"""The one thread in which all states of all programs are driven: an event loop, started on first use."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from trivium.base.errors import InvalidParameterError

_STOP_S = 5.0


class Driver:
    """Runs coroutines; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self.closers: dict[Callable[[], Coroutine[Any, Any, None]], None] = {}
        """What is run in the driver's thread when everything is cancelled, before it ends: connections are closed."""

    def start(self, make: Callable[[], Coroutine[Any, Any, None]], told: Callable[[asyncio.Task[None]], None]) -> None:
        """Run a coroutine in the driver's thread; `told` is given its task there, before it begins."""
        loop = self._begun()

        def begin() -> None:
            task = loop.create_task(make())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            told(task)

        loop.call_soon_threadsafe(begin)

    def call(self, action: Callable[[], object]) -> None:
        """Run an action in the driver's thread, soon."""
        self._begun().call_soon_threadsafe(action)

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the driver's thread, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._begun())

    def refuse_to_wait(self) -> None:
        """Say that a coroutine in this thread must not wait as threads do: everything would.

        Raises:
            InvalidParameterError: This is the driver's thread.
        """
        if threading.current_thread() is self._thread:
            raise InvalidParameterError("a coroutine tool must not block; it reads with get_var_async and its like")

    def stop(self) -> None:
        """Cancel everything and end the thread."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(self._end, loop)
        thread.join(_STOP_S)
        self._tasks.clear()
        self._stopping = None
        if not thread.is_alive():
            loop.close()

    def forget(self) -> None:
        """Begin anew: after a fork of the process there is no thread."""
        self.__init__()  # type: ignore[misc]

    def _begun(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="trivium-lang", daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        async def cancel() -> None:
            await asyncio.sleep(0)  # what is about to begin begins, so that it can tell its readers
            tasks = [task for task in self._tasks if not task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_STOP_S / 2) if tasks else None
            for close in tuple(self.closers):
                await close()
            self.closers.clear()
            await asyncio.sleep(0)  # what was closed is let go
            loop.stop()

        self._stopping = loop.create_task(cancel())


driver = Driver()
os.register_at_fork(after_in_child=driver.forget)
