"""The engine loop in a thread of the caller's process, behind the same async face as `engine.client`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING

from trivium.base.errors import CapacityError, EngineDeadError, RequestError, TriviumError
from trivium.engine.messages import Delta, Submit
from trivium.engine.process import ensure_open, refusal
from trivium.engine.served_adapters import ServedAdapters
from trivium.engine.status import EngineStatus
from trivium.engine.streams import OnNews, StreamTable, new_submit

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.loop import EngineLoop

logger = logging.getLogger(__name__)

_IDLE_S = 0.2


class LocalEngine:
    """Runs a loop in a thread; used from any event loops, each of which gets the news of its own requests."""

    def __init__(self, loop: EngineLoop, *, seed: int | None = None) -> None:
        """Take ownership of `loop`; `start` begins."""
        self._loop = loop
        self._seeds = random.Random(seed)  # noqa: S311  (sampling seeds, not secrets)
        self._tables: dict[asyncio.AbstractEventLoop, StreamTable] = {}
        self.adapters = ServedAdapters(lambda name, what, timeout_s: self.call(name, what, timeout_s=timeout_s))
        self.adapters.names.begin(loop.adapters.records if loop.adapters is not None else ())
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._is_draining = False
        self._last_move_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="trivium-loop", daemon=True)
        self.ready = asyncio.Event()

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.ready.set()

    async def wait_ready(self) -> None:
        """Return at once: the loop was built before."""

    def status(self) -> EngineStatus:
        """What is known now."""
        return EngineStatus(
            is_ready=self.ready.is_set(),
            heartbeat_age_s=time.monotonic() - self._last_move_s,
            epoch=1,
            info=self._loop.info,
            stats=self._loop.stats(),
        )

    def submit(  # noqa: PLR0913  (what a request is made of, by name)
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        program: ProgramShare | None = None,
        deadline_s: float | None = None,
        adapter: str | None = None,
        on_news: OnNews | None = None,
    ) -> AsyncGenerator[Delta]:
        """Run a request and yield its news; see `EngineClient.submit`.

        Raises:
            RequestError: The engine refused the request, or no adapter has that name.
            CapacityError: The queue is full, or the engine shuts down.
            EngineDeadError: The engine is closed, or its loop ended.
        """
        message = new_submit(
            prompt_ids,
            params,
            self._seeds,
            request_id=request_id,
            cache_salt=cache_salt,
            priority=priority,
            tenant=tenant,
            program=program,
            deadline_s=deadline_s,
            adapter=self.adapters.find(adapter),
        )
        return self._run_in_own_loop(message, on_news)

    async def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        self._inbox.put(lambda: self._loop.abort([request_id]))

    def end_program(self, program_id: str, tenant: str = "") -> None:
        """Let a program's cached paths go like others; never waits."""
        self._inbox.put(lambda: self._loop.call("end_program", {"program_id": program_id, "tenant": tenant}))

    async def call(
        self, name: str, arguments: Mapping[str, object] = MappingProxyType({}), *, timeout_s: float = 10.0
    ) -> dict[str, object]:
        """Ask for something that is not a request; see `EngineLoop.call`.

        Raises:
            EngineDeadError: The loop does not answer in time.
            InternalError: The name is unknown, or the call failed.
        """
        answer: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._inbox.put(lambda: self._answer(name, arguments, answer))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer '{name}' within {timeout_s:g} s") from None

    async def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is open; returns whether that happened within the time."""
        self._is_draining = True
        end_s = time.monotonic() + timeout_s
        while self._num_open and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        return not self._num_open

    async def close(self) -> None:
        """Stop the thread and end open requests with an error."""
        self.ready.clear()
        self._is_stopping.set()
        self._inbox.put(lambda: None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._tell(lambda table: table.fail_all(EngineDeadError, "the engine is closed"))
        await asyncio.sleep(0)  # those of this event loop are told now

    @property
    def _num_open(self) -> int:
        return sum(len(table) for _, table in tuple(self._tables.items()))

    async def _run_in_own_loop(self, message: Submit, on_news: OnNews | None) -> AsyncGenerator[Delta]:
        loop = asyncio.get_running_loop()
        if loop not in self._tables:
            for closed in [each for each in tuple(self._tables) if each.is_closed()]:
                self._tables.pop(closed, None)
            self._tables[loop] = StreamTable()
        async with contextlib.aclosing(
            self._tables[loop].run(message, lambda: self._send(message), self.abort, on_news)
        ) as deltas:
            async for news in deltas:
                yield news

    def _send(self, message: Submit) -> None:
        if not self.ready.is_set():
            raise EngineDeadError("the engine is closed")
        ensure_open(is_draining=self._is_draining)
        self._inbox.put(lambda: self._take(message))

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            logger.exception("the engine loop ended")
            reason = f"the engine loop ended: {error}"
            self.ready.clear()
            self._tell(lambda table: table.fail_all(EngineDeadError, reason))
        self._loop.close()

    def _serve(self) -> None:
        while not self._is_stopping.is_set():
            self._last_move_s = time.monotonic()
            self._take_inbox()
            if self._loop.has_work:
                news = self._loop.step()
                for refused in self._loop.take_refusals():
                    self._tell(methodcaller("fail", refused.request_id, refused.error))
                if news:
                    self._tell(methodcaller("feed_all", news))

    def _take_inbox(self) -> None:
        with contextlib.suppress(queue.Empty):
            action = self._inbox.get(block=not self._loop.has_work, timeout=_IDLE_S)
            while True:
                action()
                action = self._inbox.get_nowait()

    def _take(self, message: Submit) -> None:
        try:
            self._loop.submit(message)
        except (RequestError, CapacityError) as error:
            refused = refusal(1, message.request_id, error)
            self._tell(methodcaller("refuse", refused))

    def _answer(self, name: str, arguments: Mapping[str, object], answer: asyncio.Future[dict[str, object]]) -> None:
        try:
            result = self._loop.call(name, arguments)
        except TriviumError as error:
            _settle(answer, error)
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda made: _settle(answer, made.exception() or made.result()))
        else:
            _settle(answer, result)

    def _tell(self, action: Callable[[StreamTable], object]) -> None:
        """Do something with the requests of each event loop, in that loop."""
        for events, table in tuple(self._tables.items()):
            if len(table):
                _soon(events, action, table)


def _settle(answer: asyncio.Future[dict[str, object]], result: dict[str, object] | BaseException) -> None:
    """Give a call its answer; from any thread."""

    def give() -> None:
        if answer.done():
            return
        if isinstance(result, BaseException):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    _soon(answer.get_loop(), give)


def _soon(events: asyncio.AbstractEventLoop, action: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody to tell
        events.call_soon_threadsafe(action, *args)
