"""The client of an engine process: starts it, watches it, starts it again, and streams answers from it.

::

    STARTING ──Ready──► READY ──exit, or no pulse──► DEAD ──(back-off)──► STARTING (epoch + 1)
        └──Fatal──► FAILED (a bad checkpoint does not get better by trying again)

When an engine dies, another one starts at once, with a higher epoch, and every open request goes on in it from the
tokens that were delivered (`replay`); what the old one may still say is dropped. Engines that die without a token and
outside of any step start after a back-off; after some of them in a row open requests end with `EngineDeadError`.
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

from trivium.base.errors import EngineDeadError, ModelError, TriviumError
from trivium.engine.adapters import AdapterRecord, records_of
from trivium.engine.calls import CallTable
from trivium.engine.incarnation import Incarnation
from trivium.engine.messages import (
    Abort,
    AnswerReport,
    CacheNews,
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
    Submit,
)
from trivium.engine.replay import Replay
from trivium.engine.served_adapters import ServedAdapters
from trivium.engine.status import EngineStatus
from trivium.engine.streams import OnNews, StreamTable, error_from, new_submit
from trivium.engine.wire import decode_from_engine

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams

logger = logging.getLogger(__name__)

PayloadAgain = Callable[[Mapping[str, object], Sequence[AdapterRecord]], bytes]
OnEnded = Callable[[AnswerReport], None]
OnCacheNews = Callable[[CacheNews], None]

_WATCH_S = 0.2
_BACKOFF_S = (0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pause before the next engine, by the number of engines in a row from whose death nothing could be learnt."""
_STABLE_S = 60.0
"""An engine that lived this long starts again without back-off."""
_SAME_MODEL = ("fingerprint", "arithmetic", "max_model_len", "kv_tokens")
"""What every engine of a client says of itself alike, or answers could not go on with the same bits."""


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
        max_held: int = 1024,
        payload_again: PayloadAgain | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Prepare; nothing starts yet.

        Args:
            command: Program and arguments of the engine; `incarnation` says what is appended.
            payload: Written to the engine's standard input (its options).
            seed: Source of the seeds of requests that bring none; `None` takes the system's entropy.
            heartbeat_timeout_s: Seconds without a pulse after which the engine counts as dead.
            max_held: Most new requests that wait while an engine is started again.
            payload_again: Makes the payload of later engines from what the first said of itself, and from the adapters
                that they must have, so that they are like it; the same payload when `None`.
            on_progress: Told about loading as (stage, done, total).
        """
        self._command = tuple(command)
        self._payload = payload
        self._payload_again = payload_again
        self._seeds = random.Random(seed)  # noqa: S311  (sampling seeds, not secrets)
        self._timeout_s = heartbeat_timeout_s
        self._on_progress = on_progress
        self._on_ended: OnEnded | None = None
        self._on_cache_news: OnCacheNews = lambda news: None
        self._on_start: Callable[[], None] = lambda: None
        self._streams = StreamTable()
        self._replay = Replay(self._streams, max_held)
        self._calls = CallTable()
        self.adapters = ServedAdapters(lambda name, what, timeout_s: self.call(name, what, timeout_s=timeout_s))
        """Those that requests may name; kept over restarts of the engine."""
        self._engine: Incarnation | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reloaded: Mapping[str, object] | None = None
        """Options with which the engine process is not started: it is told when it is ready."""
        self._epoch = 0
        self._has_delivered = False
        """Whether the present engine has delivered a token."""
        self._is_closing = False
        self._is_ready = False
        self._last_pulse_s = time.monotonic()
        self._has_pulsed = False
        """Whether the present engine has said anything."""
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
            epoch=self._epoch,
            is_restarting=self._is_restarting,
            info=self._info,
            stats=self._stats,
            error=self._error,
        )

    def watch_ends(self, on_ended: OnEnded) -> None:
        """Tell `on_ended` of every answer that ends, aborted ones included, before its last news are read."""
        self._on_ended = on_ended

    def watch_cache(self, on_news: OnCacheNews) -> None:
        """Tell `on_news` what happens to the prefix cache, where the engine's options ask for it (`kv_events`)."""
        self._on_cache_news = on_news

    def watch_starts(self, on_start: Callable[[], None]) -> None:
        """Call `on_start` whenever an engine is ready, after the requests of the one before were sent to it."""
        self._on_start = on_start

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
    ) -> AsyncIterator[Delta]:
        """Run a request and yield its news; the first delta, empty, says that it was accepted.

        Leaving the iteration early aborts the request. Errors are raised by the iteration. `on_news` is offered what
        comes while the reader waits, unless it ends a choice; what it takes is not yielded. When the engine dies the
        request goes on in the next one; a new request waits for it.

        Raises:
            RequestError: The engine refused the request, or no adapter has that name.
            CapacityError: The queue is full, the engine shuts down, or too many wait while it is started again.
            DeadlineExceededError: The request's deadline passed while it waited for an engine.
            EngineDeadError: There is no engine, and none could be started that goes on with the request.
            PoisonRequestError: The engine died twice at the same token of this request while it ran nothing else.
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
        return self._streams.run(message, lambda: self._open(message), self.abort, on_news)

    def _open(self, message: Submit) -> None:
        if not self._is_restarting:
            self._ready_engine()
        self._replay.submit(message)

    async def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        has_sent = self._replay.has_sent(request_id)
        self._replay.leave(request_id)
        if has_sent and self._engine is not None and self._is_ready:
            self._engine.send(Abort([request_id]))

    def end_program(self, program_id: str, tenant: str = "") -> None:
        """Let a program's cached paths go like others; never waits, and another engine has none."""
        if self._engine is not None and self._is_ready:
            whose = {"program_id": program_id, "tenant": tenant}
            self._engine.send(self._calls.unanswered("end_program", whose))

    async def call(
        self, name: str, arguments: Mapping[str, object] = MappingProxyType({}), *, timeout_s: float = 10.0
    ) -> dict[str, object]:
        """Ask the engine for something that is not a request; see `EngineLoop.call`.

        Raises:
            EngineDeadError: There is no engine, or it does not answer in time.
            InternalError: The engine could not do it.
        """
        return await self._calls.ask(name, arguments, self._ready_engine().send, timeout_s=timeout_s)

    def reload(self, values: Mapping[str, object], *, heartbeat_timeout_s: float, max_held: int) -> None:
        """Take new values of options; `values` go to this engine process and to those after it.

        Args:
            values: Arguments of `EngineLoop.reload`.
            heartbeat_timeout_s: As when the client was made.
            max_held: As when the client was made.
        """
        self._timeout_s, self._replay.max_held, self._reloaded = heartbeat_timeout_s, max_held, values
        if self._engine is not None and self._is_ready:
            self._engine.send(self._calls.unanswered("reload", values))

    async def queued_ids(self) -> set[str]:
        """Return the open requests of which nothing has been computed: queued in the engine, or waiting for one."""
        queued = self._replay.unsent_ids()
        with contextlib.suppress(EngineDeadError):
            found = (await self.call("queued"))["request_ids"]
            queued.update(found if isinstance(found, list) else ())
        return queued

    async def drain(self, timeout_s: float) -> bool:
        """Let open requests finish and the engine exit; returns whether it did within the time.

        Requests that wait for an engine end with `CapacityError`.
        """
        self._is_closing = True
        self.ready.clear()
        self._replay.hand_back()
        engine = self._engine
        if engine is None:
            return True
        engine.send(Drain())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while engine.exit_code is None:
                    await _first_of(engine.is_left, 0.02)
        if engine.exit_code is None:
            return False
        await self._hear_out(engine)
        return True

    async def close(self) -> None:
        """Kill the engine, end every open request with an error, and stop watching."""
        self._is_closing = True
        self._is_ready = False
        self.ready.clear()
        await _cancel(self._watching)
        await _cancel(self._receiving)
        self._replay.pause()
        self._replay.give_up("the server is shutting down")
        self._calls.fail_all("the server is shutting down")
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _has_given_up(self) -> bool:
        return self._is_closing or self._fatal is not None

    @property
    def _is_restarting(self) -> bool:
        """Whether there was an engine, and another one is about to be there."""
        return not self._is_ready and bool(self._info) and not self._has_given_up()

    def _ready_engine(self) -> Incarnation:
        if self._engine is None or not self._is_ready:
            raise EngineDeadError(f"the engine is not ready: {self._error}")
        return self._engine

    def _spawn(self, epoch: int) -> None:
        self._error = "the model is loading"
        self._last_pulse_s, self._has_pulsed = time.monotonic(), False
        self._stats, self._loop_age_s, self._has_delivered = {}, 0.0, False
        self._epoch = epoch
        payload = self._payload
        if self._info and self._payload_again is not None:
            payload = self._payload_again(self._info, self.adapters.names.to_restore(self._streams.adapters_in_use()))
        self._engine = Incarnation(self._command, payload, epoch)
        self._receiving = asyncio.create_task(self._receive(self._engine), name="trivium-engine-receive")

    async def _receive(self, engine: Incarnation) -> None:
        while True:
            self._hear(engine, await engine.receive())

    def _hear(self, engine: Incarnation, payload: bytes) -> None:
        try:
            message = decode_from_engine(payload)
        except ValueError:
            logger.exception("dropped an engine message that cannot be read")
            return
        if message.epoch == engine.epoch:
            self._take(message)

    async def _hear_out(self, engine: Incarnation) -> None:
        """End an engine's process, and take what it had said before."""
        await _cancel(self._receiving)
        for payload in await engine.end():
            self._hear(engine, payload)

    def _take(self, message: FromEngine) -> None:
        self._has_pulsed = True
        match message:
            case Deltas():
                self._deliver(message)
            case CacheNews():
                self._on_cache_news(message)
            case Refused():
                self._streams.refuse(message)
                self._replay.advance()
            case Heartbeat():
                self._beat(message)
            case Reply():
                self._calls.settle(message)
            case Loading():
                self._last_pulse_s = time.monotonic()
                if self._on_progress is not None:
                    self._on_progress(message.stage, message.done, message.total)
            case Ready():
                self._begin(message.info)
            case Fatal():
                self._fail(error_from(message.kind, message.message))

    def _deliver(self, message: Deltas) -> None:
        if self._on_ended is not None:
            for ended in message.ended:
                self._on_ended(ended)
        self._streams.feed_all(message.deltas)
        if not self._has_delivered:
            self._has_delivered = any(news.token_ids for news in message.deltas)
        self._replay.advance()

    def _begin(self, info: dict[str, object]) -> None:
        """Use an engine that is ready, if it is like those before it."""
        self._last_pulse_s = time.monotonic()
        others = [f"{key} was {self._info.get(key)}, is {info.get(key)}" for key in _SAME_MODEL if self._info
                  and self._info.get(key) != info.get(key)]  # fmt: skip
        if others:
            what = "; ".join(others)
            self._fail(ModelError(f"the model's files changed while they were served ({what}); restart the server"))
            return
        if self._info:
            self.adapters.names.keep(records_of(info))
        else:
            self.adapters.names.begin(records_of(info))
        self._info, self._error, self._is_ready = info, None, True
        if self._engine is not None:
            if self._reloaded is not None:
                self._engine.send(self._calls.unanswered("reload", self._reloaded))
            self._replay.begin(self._engine.send)
        if not self._is_closing:
            self.ready.set()
            self._on_start()

    def _fail(self, error: TriviumError) -> None:
        """Give up: another engine would fail too."""
        self._fatal, self._error = error, str(error)
        self._replay.give_up(f"the engine cannot be started again: {error}")

    def _beat(self, message: Heartbeat) -> None:
        self._last_pulse_s = time.monotonic()
        self._loop_age_s = message.loop_age_s
        if message.stats is not None:
            self._stats = message.stats

    async def _watch(self) -> None:
        """Notice that the engine is gone or frozen, and start another."""
        while not self._has_given_up():
            engine = self._engine
            if engine is None:
                await asyncio.sleep(_WATCH_S)
                continue
            await _first_of(engine.is_left, _WATCH_S)
            self._replay.tick()
            reason = self._reason_dead(engine)
            if not self._has_given_up() and (reason is not None or engine.is_left.is_set()):
                await self._restart(engine, reason)

    def _reason_dead(self, engine: Incarnation) -> str | None:
        code = engine.exit_code
        if code is not None:
            return f"the engine process ended with code {code}" if code >= 0 else f"signal {-code} ended the engine"
        silent_s = time.monotonic() - self._last_pulse_s
        # A process that has not come to speak yet, on a machine that is busy, would only start over.
        if silent_s > self._timeout_s * (1 if self._has_pulsed else _STALL_FACTOR):
            return f"the engine gave no sign of life for {silent_s:.1f} s"
        stuck_s = self.status().heartbeat_age_s
        if self._is_ready and stuck_s > _STALL_FACTOR * self._timeout_s:
            return f"the engine's loop has not moved for {stuck_s:.1f} s"
        return None

    async def _restart(self, engine: Incarnation, reason: str | None) -> None:
        """Bury an engine and start the next, which goes on with all open requests.

        Args:
            engine: Dead, or taken for dead.
            reason: Why, if it is no plain exit.
        """
        self._stop_sending()
        await self._hear_out(engine)
        self._stop_sending()  # its last words may have been that it is ready
        reason = reason or self._reason_dead(engine) or "the engine closed its sockets"
        work = engine.last_work()
        lived_s = time.monotonic() - engine.began_s
        engine.close()
        self._engine = None
        if self._has_given_up():
            return
        self._error = reason
        self._calls.fail_all(reason)
        has_done_well = self._has_delivered or lived_s > _STABLE_S
        death = self._replay.died(work, reason, has_delivered=has_done_well)
        suspects = f"; it was at work on {len(work.request_ids)} requests" if work.request_ids else ""
        logger.error("%s%s; starting a new engine for %d open requests", reason, suspects, len(self._streams))
        if death.condemned is not None:
            logger.error("it ran nothing else, again: the request ends with an error",
                         extra={"request_id": death.condemned})  # fmt: skip
        await self._pause(_BACKOFF_S[min(death.num_futile, len(_BACKOFF_S) - 1)])
        if not self._has_given_up():
            self._spawn(engine.epoch + 1)

    def _stop_sending(self) -> None:
        self._is_ready = False
        self.ready.clear()
        self._replay.pause()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next start, while deadlines go on."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self._has_given_up():
            self._replay.tick()
            await asyncio.sleep(min(left_s, _WATCH_S))


async def _first_of(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def engine_pid(client: EngineClient) -> int | None:
    """Process id of the engine, for operators and tests."""
    engine = client._engine  # noqa: SLF001
    return engine.pid if engine is not None else None
