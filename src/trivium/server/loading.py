"""From a listening server without a model to one with a model, and the end of that model's engine.

Loading runs in a thread beside the event loop, so that the server answers (503, and `/live` 200) from its first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.base.errors import TriviumError
from trivium.config.options import ServerOptions
from trivium.server.errors import NotReadyError, error_body, error_headers, error_status
from trivium.server.gate import send_json
from trivium.server.open_jobs import OpenJobs
from trivium.server.service import Service

logger = logging.getLogger(__name__)

T = TypeVar("T")

LAST_CALL_S = 3.0
ENGINE_END_S = 2.0
"""Seconds that an engine without work gets to end by itself."""


class EngineLife(Protocol):
    """Beginning and end of an engine's client; `engine.client.EngineClient` fits."""

    async def start(self) -> None:
        """Start the engine process; returns before it is ready."""
        ...

    async def wait_ready(self) -> None:
        """Wait until it takes requests.

        Raises:
            TriviumError: It could not be built.
        """
        ...

    async def queued_ids(self) -> set[str]:
        """Return the open requests of which nothing has been computed."""
        ...

    async def drain(self, timeout_s: float) -> bool:
        """Let open requests finish and the engine exit."""
        ...

    async def close(self) -> None:
        """Kill the engine if it lives, and stop watching it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model that can be served."""

    app: Starlette
    """From `build_app`, over the engine of `Found`."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when the first request can be answered."""
    reload: Callable[[], object] | None = None
    """Reads the options again and takes those that may change."""
    on_end: Callable[[], None] = lambda: None
    """Called once, in a thread, when no request is under way any more; it has `LAST_CALL_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model that is on this machine; its engine reads weights while this process reads the rest of it."""

    engine: EngineLife
    """Not started."""
    open: Callable[[], Opened]
    """Reads tokenizer and template and builds the application; runs in a thread."""


class Entrance:
    """ASGI application that stands in for the real one until that is loaded."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 503; `/live` is 200 from the start."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/live":
            await send_json(send, b'{"status":"ok","reason":null}')
        elif scope["type"] == "http":
            error = NotReadyError("the model is not ready: it is loading", retry_after_s=2.0)
            await send_json(send, error_body(error), status=error_status(error), headers=error_headers(error))


class ModelLife:
    """Finds and opens a model, opens the entrance to it, and ends its engine."""

    def __init__(self, find: Callable[[], Found], entrance: Entrance) -> None:
        self._find = find
        self._entrance = entrance
        self._engine: EngineLife | None = None
        self._on_end: Callable[[], None] | None = None
        self.jobs = OpenJobs()
        """Jobs under way; none before there is a model."""
        self._service: Service | None = None
        self._reload: Callable[[], object] | None = None

    async def begin(self) -> None:
        """Find the model, start its engine, open the entrance, and wait until the engine is ready.

        Raises:
            TriviumError: The model cannot be served.
        """
        found = await _in_thread(self._find)
        self._engine = found.engine
        await found.engine.start()
        opened = await _in_thread(found.open)
        self._service, self._reload = opened.app.state.service, opened.reload
        self.jobs = opened.app.state.service.jobs
        self._entrance.app = opened.app
        self._on_end = opened.on_end
        await found.engine.wait_ready()
        opened.on_ready()

    def drain_timeout_s(self, options: ServerOptions) -> float:
        """Return how long requests under way get now; `options` count until the model is there."""
        return (options if self._service is None else self._service.options).drain_timeout_s

    def reload(self) -> None:
        """Read the options again."""
        if self._reload is None:
            logger.warning("options are not read again while the model is loading; send SIGHUP again when it is ready")
        else:
            self._reload()

    async def hand_back_queued(self, error: TriviumError) -> None:
        """End the jobs of which nothing has been computed, so that their clients can go elsewhere."""
        if self._engine is not None:
            self.jobs.fail_among(await self._engine.queued_ids(), error)

    async def end(self, *, is_orderly: bool) -> None:
        """End the engine, if there is one: asked to when there is time, else killed."""
        if self._engine is None:
            return
        if is_orderly:
            await self._engine.drain(ENGINE_END_S)
        await self._engine.close()
        if self._on_end is not None and is_orderly:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_in_thread(self._on_end), LAST_CALL_S)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread, which does not hold up the end of the process, unlike an executor's."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def report(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast("T", value))

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(report, value, error)

    threading.Thread(target=run, name="trivium-load", daemon=True).start()
    return await outcome
