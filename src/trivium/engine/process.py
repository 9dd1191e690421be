"""The engine's own process: messages in, steps, messages out.

The parent starts `python -m trivium.assembly`, which builds the loop inside `EngineProcess.serve`. Two threads live
here: the loop thread, which alone touches the engine, and the pulse thread of `engine.pulse`. The process ends when
drained, or when its parent is gone; the folder of its sockets goes with it. When the loop itself fails, the folder
stays for the client, which reads in the journal what the engine was at work on.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from trivium.base.errors import CapacityError, RequestError, TriviumError
from trivium.base.garbage import freeze_what_is_loaded
from trivium.engine.channel import Reader, Writer
from trivium.engine.journal import Journal
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import (
    Abort,
    CacheNews,
    Call,
    Deltas,
    Drain,
    Fatal,
    FromEngine,
    Loading,
    Ready,
    Refused,
    Reply,
    Submit,
    ToEngine,
)
from trivium.engine.pulse import PULSE_S, Pulse
from trivium.engine.wire import address, decode_to_engine, encode

logger = logging.getLogger(__name__)

EXIT_LOOP_FAILED = 4
STATS_S = PULSE_S / 2
"""Seconds between two readings of the counters while the loop works."""
Build = Callable[[Callable[[str, int, int], None]], EngineLoop]
"""Makes the loop; reports progress as (stage, done, total)."""


class EngineProcess:
    """Binds a loop to its sockets."""

    def __init__(self, folder: Path, epoch: int, parent_pid: int) -> None:
        """Open the sockets.

        Args:
            folder: Holds them; removed when the process ends.
            epoch: Number of this incarnation.
            parent_pid: The process ends when it is no child of this one any more.
        """
        self._folder = folder
        self._epoch = epoch
        self._inbox = Reader(address(folder, "inbox"))
        self._outbox = Writer(address(folder, "outbox"))
        self._pulse = Pulse(folder, epoch, parent_pid)
        self._promised: list[tuple[Call, Future[dict[str, object]]]] = []
        """Calls whose answers take their time."""
        self._is_draining = False
        self._is_alone = False
        """Whether the client is gone."""

    def serve(self, build: Build) -> int:
        """Build the loop, then run until drained; returns the exit code."""
        self._pulse.start()
        try:
            loop = build(self._report)
        except TriviumError as error:
            self._send(Fatal(self._epoch, type(error).__name__, str(error)))
            return 1
        except Exception as error:
            logger.exception("the engine could not be built")
            self._send(Fatal(self._epoch, "InternalError", f"{type(error).__name__}: {error}"))
            return 1
        else:
            freeze_what_is_loaded()
            loop.report_ends()
            if loop.trace is not None:
                loop.trace.watch(self, "_send", "send")
            return self._work(loop)
        finally:
            self._pulse.stop()
            self._outbox.close()
            self._inbox.close()

    def _work(self, loop: EngineLoop) -> int:
        loop.journal = Journal(self._folder)
        if loop.compiling is not None:
            loop.compiling.compiler.note = loop.journal.note_compiling
        self._send(Ready(self._epoch, loop.info))
        try:
            self._run(loop)
        except Exception:
            logger.exception("the engine loop failed")
            return EXIT_LOOP_FAILED
        finally:
            loop.journal.close()
        loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return 0

    def _run(self, loop: EngineLoop) -> None:
        """Work until drained, or until the client is gone.

        The pulse is told what has changed: now and then, and at once when work runs out.
        """
        next_stats_s = 0.0
        has_moved, was_working = True, False
        while not self._is_alone and not (self._is_draining and not loop.has_work):
            now_s = time.monotonic()
            self._pulse.last_move_s = now_s
            is_working = loop.has_work
            if has_moved and (not is_working or now_s >= next_stats_s):
                self._pulse.tell(loop.stats(), is_urgent=not (is_working and was_working))
                next_stats_s = now_s + STATS_S
                has_moved, was_working = False, is_working
            self._settle()
            is_busy = is_working or bool(self._promised) or loop.idle()
            has_moved |= self._take_messages(loop, 0 if is_busy else int(PULSE_S * 500))
            has_moved |= loop.has_work
            news = loop.step() if loop.has_work else []
            for refused in loop.take_refusals():
                self._send(refusal(self._epoch, refused.request_id, refused.error))
            ended = loop.take_ended()
            if news or ended:
                self._send(Deltas(self._epoch, news, ended))
            if loop.kv_events is not None and (told := loop.kv_events.take()):
                self._send(CacheNews(self._epoch, told))

    def _take_messages(self, loop: EngineLoop, wait_ms: int) -> bool:
        """Take what has arrived; returns whether anything had."""
        payloads = self._inbox.take(wait_ms)
        self._is_alone |= self._inbox.is_closed
        for payload in payloads:
            try:
                self._take(loop, decode_to_engine(payload))
            except msgspec.DecodeError as error:
                logger.error("dropped a message that is not one of ours: %s", error)  # noqa: TRY400
        return bool(payloads)

    def _take(self, loop: EngineLoop, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(loop, message)
            case Abort():
                loop.abort(message.request_ids)
            case Call():
                self._answer(loop, message)
            case Drain():
                self._is_draining = True

    def _submit(self, loop: EngineLoop, message: Submit) -> None:
        try:
            ensure_open(is_draining=self._is_draining)
            loop.submit(message)
        except (RequestError, CapacityError) as error:
            self._send(refusal(self._epoch, message.request_id, error))
        except Exception as error:
            logger.exception("submit failed", extra={"request_id": message.request_id})
            self._send(Refused(self._epoch, message.request_id, "InternalError", f"{type(error).__name__}: {error}"))

    def _answer(self, loop: EngineLoop, call: Call) -> None:
        try:
            answer = loop.call(call.name, call.arguments)
            if isinstance(answer, Future):
                self._promised.append((call, answer))
                return
            reply = Reply(self._epoch, call.call_id, answer)
        except Exception as error:
            reply = self._failed(call, error)
        self._send(reply)

    def _settle(self) -> None:
        """Send the answers that were promised and have come."""
        done = [each for each in self._promised if each[1].done()]
        for call, answer in done:
            error = answer.exception()
            reply = Reply(self._epoch, call.call_id, answer.result()) if error is None else self._failed(call, error)
            self._send(reply)
            self._promised.remove((call, answer))

    def _failed(self, call: Call, error: BaseException) -> Reply:
        logger.error("call %s failed", call.name, exc_info=error)
        return Reply(self._epoch, call.call_id, {}, f"{type(error).__name__}: {error}")

    def _report(self, stage: str, done: int, total: int) -> None:
        self._pulse.last_move_s = time.monotonic()
        self._send(Loading(self._epoch, stage, done, total))

    def _send(self, message: FromEngine) -> None:
        try:
            self._outbox.send(encode(message))
        except OSError:
            self._is_alone = True


def ensure_open(*, is_draining: bool) -> None:
    """Refuse new work while draining.

    Raises:
        CapacityError: The engine finishes what is open and takes nothing new.
    """
    if is_draining:
        raise CapacityError("the server is shutting down")


def refusal(epoch: int, request_id: str, error: TriviumError) -> Refused:
    """Write an error so that the client can raise the same one."""
    return Refused(
        epoch,
        request_id,
        type(error).__name__,
        str(error),
        getattr(error, "param", None),
        getattr(error, "retry_after_s", None),
    )
