"""A real server on a loopback port over a scripted engine, inside the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette

from support.fake_engine import ByteTokenizer, FakeEngine, JoiningTemplate, tiny_served
from trivium.base.errors import TriviumError
from trivium.config.options import ServerOptions
from trivium.server.app import build_app
from trivium.server.lifetime import bind_socket, serve
from trivium.server.loading import Found, Opened


class LivingEngine(FakeEngine):
    """A scripted engine with a beginning and an end, as `lifetime.serve` wants it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.may_be_ready = asyncio.Event()
        self.may_be_ready.set()
        self.fault: TriviumError | None = None
        self.life: list[str] = []
        self.queued: set[str] = set()
        """Requests that pass for queued, though the script answers them."""
        self.started = asyncio.Event()

    async def start(self) -> None:
        self.life.append("start")
        self.condition.is_ready = False
        self.started.set()

    async def wait_ready(self) -> None:
        await self.may_be_ready.wait()
        if self.fault is not None:
            raise self.fault
        self.condition.is_ready = True

    async def queued_ids(self) -> set[str]:
        return self.queued & self.open_ids

    async def drain(self, timeout_s: float) -> bool:
        self.life.append("drain")
        return True

    async def close(self) -> None:
        self.life.append("close")


@dataclass(slots=True)
class LiveServer:
    """A running server and how to reach it."""

    app: Starlette
    engine: LivingEngine
    port: int
    ended: asyncio.Task[int]
    """Its outcome is the exit code."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def live_server(engine: LivingEngine | None = None, **options: Any) -> AsyncIterator[LiveServer]:
    """Run a server until the block ends; yields when it listens, ready or not."""
    own_engine = engine or LivingEngine()
    server_options = ServerOptions(port=0, **options)
    app = build_app(own_engine, ByteTokenizer(), JoiningTemplate(), server_options, tiny_served())
    with bind_socket(server_options) as listener:
        ready = asyncio.Event()
        found = Found(engine=own_engine, open=lambda: Opened(app=app, on_ready=ready.set))
        ended = asyncio.create_task(serve(lambda: found, listener, server_options))
        live = LiveServer(app, own_engine, listener.getsockname()[1], ended, ready)
        if own_engine.may_be_ready.is_set() and own_engine.fault is None:
            await asyncio.wait_for(ready.wait(), 10)
        try:
            yield live
        finally:
            if not ended.done():
                ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
