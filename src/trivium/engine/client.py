"""The client of an engine process: starts it, watches it, starts it again, and streams answers from it.

::

    STARTING ──Ready──► READY ──exit, or no pulse──► DEAD ──back-off──► STARTING (epoch + 1)
        └──Fatal──► FAILED (a bad checkpoint does not get better by trying again)

When an engine dies, every open request ends with `EngineDeadError` at once; a new engine starts with a higher epoch,
and what the old one may still say is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from trivium.base.errors import EngineDeadError, TriviumError
from trivium.engine.calls import CallTable
from trivium.engine.incarnation import Incarnation
from trivium.engine.messages import (
    Abort,
    AnswerReport,
    Delta,
    Deltas,
    Drain,
    Fatal,
    FromEngine,
    Heartbeat,
    Loading,
    Ready,
    Refused,
    Reply,
)
from trivium.engine.status import EngineStatus
from trivium.engine.streams import OnNews, StreamTable, error_from, new_submit
from trivium.engine.wire import decode_from_engine

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams

logger = logging.getLogger(__name__)

OnEnded = Callable[[AnswerReport], None]

_WATCH_S = 0.2
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_STABLE_S = 60.0
"""An engine that lived this long starts again without back-off."""


_STALL_FACTOR = 6.0
"""A loop that has not moved for this many heartbeat time-outs is given up; `/health` is red after one."""


class EngineClient:
    """Async access to an engine in a process of its own; used from one event loop."""

    def __init__(
        self,
        command: Sequence[str],
        payload: bytes,
        *,
        seed: int | None = None,
        heartbeat_timeout_s: float = 10.0,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Prepare; nothing starts yet.

        Args:
            command: Program and arguments of the engine; `incarnation` says what is appended.
            payload: Written to the engine's standard input (its options).
            seed: Source of the seeds of requests that bring none; `None` takes the system's entropy.
            heartbeat_timeout_s: Seconds without a pulse after which the engine counts as dead.
            on_progress: Told about loading as (stage, done, total).
        """
        self._command = tuple(command)
        self._payload = payload
        self._seeds = random.Random(seed)  # noqa: S311  (sampling seeds, not secrets)
        self._timeout_s = heartbeat_timeout_s
        self._on_progress = on_progress
        self._on_ended: OnEnded | None = None
        self._streams = StreamTable()
        self._calls = CallTable()
        self._engine: Incarnation | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._failures = 0
        self._is_closing = False
        self._is_ready = False
        self._last_pulse_s = time.monotonic()
        self._info: dict[str, object] = {}
        self._stats: dict[str, object] = {}
        self._loop_age_s = 0.0
        self._error: str | None = "the engine has not started"
        self._fatal: TriviumError | None = None
        self.ready = asyncio.Event()
        """Set while the engine takes requests."""

    def status(self) -> EngineStatus:
        """What is known now."""
        return EngineStatus(
            is_ready=self._is_ready,
            heartbeat_age_s=max(time.monotonic() - self._last_pulse_s, self._loop_age_s),
            epoch=self._engine.epoch if self._engine else 0,
            info=self._info,
            stats=self._stats,
            error=self._error,
        )

    def watch_ends(self, on_ended: OnEnded) -> None:
        """Tell `on_ended` of every answer that ends, aborted ones included, before its last news are read."""
        self._on_ended = on_ended

    async def start(self) -> None:
        """Start the engine process; returns before it is ready."""
        self._spawn(epoch=1)
        self._watching = asyncio.create_task(self._watch(), name="trivium-engine-watch")

    async def wait_ready(self) -> None:
        """Wait until the engine takes requests.

        Raises:
            TriviumError: The engine could not be built; the error is the one it met.
        """
        while not self.ready.is_set():
            if self._fatal is not None:
                raise self._fatal
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ready.wait(), _WATCH_S)

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        on_news: OnNews | None = None,
    ) -> AsyncIterator[Delta]:
        """Run a request and yield its news; the first delta, empty, says that it was accepted.

        Leaving the iteration early aborts the request. Errors are raised by the iteration. `on_news` is offered what
        comes while the reader waits, unless it ends a choice; what it takes is not yielded.

        Raises:
            RequestError: The engine refused the request.
            CapacityError: The queue is full, or the engine shuts down.
            EngineDeadError: There is no engine, or it died while the request was open.
        """
        message = new_submit(
            prompt_ids,
            params,
            self._seeds,
            request_id=request_id,
            cache_salt=cache_salt,
            priority=priority,
            deadline_s=deadline_s,
        )
        return self._streams.run(message, lambda: self._ready_engine().send(message), self.abort, on_news)

    async def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        if self._engine is not None and self._is_ready:
            self._engine.send(Abort([request_id]))

    async def call(
        self, name: str, arguments: Mapping[str, object] = MappingProxyType({}), *, timeout_s: float = 10.0
    ) -> dict[str, object]:
        """Ask the engine for something that is not a request; see `EngineLoop.call`.

        Raises:
            EngineDeadError: There is no engine, or it does not answer in time.
            InternalError: The engine could not do it.
        """
        return await self._calls.ask(name, arguments, self._ready_engine().send, timeout_s=timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Let open requests finish and the engine exit; returns whether it did within the time."""
        self._is_closing = True
        self.ready.clear()
        if self._engine is None:
            return True
        self._engine.send(Drain())
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if self._engine.exit_code is not None:
                await self._settle()
                return True
            await asyncio.sleep(0.02)
        return False

    async def close(self) -> None:
        """Kill the engine, end every open request with an error, and stop watching."""
        self._is_closing = True
        self._is_ready = False
        self.ready.clear()
        await _cancel(self._watching)
        await _cancel(self._receiving)
        self._end_open("the server is shutting down")
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def _gave_up(self) -> bool:
        return self._is_closing or self._fatal is not None

    def _ready_engine(self) -> Incarnation:
        if self._engine is None or not self._is_ready:
            raise EngineDeadError(f"the engine is not ready: {self._error}")
        return self._engine

    def _spawn(self, epoch: int) -> None:
        self._error = "the model is loading"
        self._last_pulse_s = time.monotonic()
        self._stats, self._loop_age_s = {}, 0.0
        self._engine = Incarnation(self._command, self._payload, epoch)
        self._receiving = asyncio.create_task(self._receive(self._engine), name="trivium-engine-receive")

    async def _receive(self, engine: Incarnation) -> None:
        while True:
            payload = await engine.receive()
            try:
                message = decode_from_engine(payload)
            except ValueError:
                logger.exception("dropped an engine message that cannot be read")
                continue
            if message.epoch == engine.epoch:
                self._take(message)

    def _take(self, message: FromEngine) -> None:
        match message:
            case Deltas():
                self._hear(message)
            case Heartbeat():
                self._beat(message)
            case Refused():
                self._streams.refuse(message)
            case Reply():
                self._calls.settle(message)
            case Loading():
                self._last_pulse_s = time.monotonic()
                if self._on_progress is not None:
                    self._on_progress(message.stage, message.done, message.total)
            case Ready():
                self._info, self._error, self._is_ready = message.info, None, True
                self._last_pulse_s = time.monotonic()
                self.ready.set()
            case Fatal():
                self._fatal = error_from(message.kind, message.message)
                self._error = message.message

    def _hear(self, message: Deltas) -> None:
        if self._on_ended is not None:
            for ended in message.ended:
                self._on_ended(ended)
        self._streams.feed_all(message.deltas)

    def _beat(self, message: Heartbeat) -> None:
        self._last_pulse_s = time.monotonic()
        self._loop_age_s = message.loop_age_s
        if message.stats is not None:
            self._stats = message.stats

    async def _watch(self) -> None:
        """Notice that the engine is gone or frozen, and start another."""
        while True:
            await asyncio.sleep(_WATCH_S)
            engine = self._engine
            if engine is None or self._gave_up:
                continue
            reason = self._reason_dead(engine)
            if reason is None:
                continue
            await self._settle()
            if not self._gave_up:
                await self._restart(engine, reason)

    def _reason_dead(self, engine: Incarnation) -> str | None:
        code = engine.exit_code
        if code is not None:
            return f"the engine process ended with code {code}" if code >= 0 else f"signal {-code} ended the engine"
        silent_s = time.monotonic() - self._last_pulse_s
        if silent_s > self._timeout_s:
            return f"the engine gave no sign of life for {silent_s:.1f} s"
        stuck_s = self.status().heartbeat_age_s
        if self._is_ready and stuck_s > _STALL_FACTOR * self._timeout_s:
            return f"the engine's loop has not moved for {stuck_s:.1f} s"
        return None

    async def _settle(self) -> None:
        """Read what a dead engine said last."""
        await asyncio.sleep(0.05)

    async def _restart(self, engine: Incarnation, reason: str) -> None:
        logger.error("%s; %d open requests end with an error; starting a new engine", reason, len(self._streams))
        was_stable = time.monotonic() - engine.began_s > _STABLE_S
        self._is_ready = False
        self._error = reason
        self.ready.clear()
        self._end_open(reason)
        self._failures = 0 if was_stable else self._failures + 1
        await _cancel(self._receiving)
        engine.close()
        self._engine = None
        await asyncio.sleep(_BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)])
        if not self._gave_up:
            self._spawn(engine.epoch + 1)

    def _end_open(self, reason: str) -> None:
        self._streams.fail_all(EngineDeadError, f"{reason}; please send the request again")
        self._calls.fail_all(reason)


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def engine_pid(client: EngineClient) -> int | None:
    """Process id of the engine, for operators and tests."""
    engine = client._engine  # noqa: SLF001
    return engine.pid if engine is not None else None
