"""`--trace-steps`: what each step did and how long it took, for ui.perfetto.dev or chrome://tracing.

::

    engine    step ─────────────────────────────────────────────────────────── send ──
                choose ── forward ───────────────── sample ── commit ── read ──
    counters  requests {running, waiting}    pages {free, used, cached}    tokens {prefill, decode}

Where a device runs by itself, `forward` and `sample` only tell it what to do, and belong to the next step; `forward`
comes before `commit` when that step was prepared::

    engine    step ───────────────────────────────────────────────────────────── send ── step ──
                wait ─────────── commit ── choose ── forward ── sample ── read ──            wait ──
    device      run ───────────                      run ───────────────────────────────────────────

The file is a JSON array of trace events (Trace Event Format), one a line. It grows by whole lines, several times a
second and whenever work runs out, so that a process which is killed leaves a file that the viewers open: they do not
need the closing bracket. When the file has half of its limit, it becomes FILE.1, in place of an older one, and a new
one begins; so does whatever FILE was there at the start, such as that of an engine that died.

Nothing of this is there when it is off: the loop's own methods are replaced, on the one loop that is traced.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ConfigError
from trivium.sampling.batch import Sampled

if TYPE_CHECKING:
    from trivium.engine.loop import EngineLoop
    from trivium.runtime.executor import Executor
    from trivium.sampling.batch import Draws
    from trivium.schedule.decision import ScheduledStep
    from trivium.schedule.scheduler import Scheduler

logger = logging.getLogger(__name__)

FLUSH_S = 0.25
LOOP, DEVICE = "loop", "device"
"""Tracks of the trace: the loop's thread, and a device that runs by itself."""
_now_ns = time.perf_counter_ns


class StepTrace:
    """A trace file that is being written; used from the loop's thread.

    Invariants:
        The file and FILE.1 have at most `limit_bytes` together, but for the events of one flush.
        What is in the file is JSON once a bracket is appended.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Begin a file.

        Raises:
            ConfigError: It cannot be written.
        """
        self._path = path
        self._half_bytes = limit_bytes // 2
        ids = {LOOP: threading.get_native_id(), DEVICE: 0}
        self._ids = {track: f'"pid":{os.getpid()},"tid":{number}' for track, number in ids.items()}
        self._lines: list[str] = []
        self._num_bytes = 0
        self._flushed_ns = _now_ns()
        self._file = -1
        try:
            self._begin_file()
        except OSError as error:
            raise ConfigError(f"trace_steps: cannot write {path}: {error.strerror}") from error

    # -- events -----------------------------------------------------------------------------------------------

    def span(self, name: str, began_ns: int, ended_ns: int, *, track: str = LOOP, **facts: int) -> None:
        """Write down something that took time, with figures to show."""
        shown = f',"args":{json.dumps(facts)}' if facts else ""
        self._lines.append(
            f'{{"name":"{name}","cat":"step","ph":"X","ts":{began_ns / 1000:.3f},'
            f'"dur":{(ended_ns - began_ns) / 1000:.3f},{self._ids[track]}{shown}}}'
        )

    def count(self, name: str, at_ns: int, **values: int) -> None:
        """Write down what some counters are from a moment on."""
        self._lines.append(
            f'{{"name":"{name}","ph":"C","ts":{at_ns / 1000:.3f},{self._ids[LOOP]},"args":{json.dumps(values)}}}'
        )

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that each call is a span."""

        def traced(*given: Any, **named: Any) -> Any:
            began_ns = _now_ns()
            try:
                return call(*given, **named)
            finally:
                self.span(name, began_ns, _now_ns())

        return traced

    def watch(self, holder: object, method: str, name: str) -> None:
        """Make each call of a method of this one object a span."""
        setattr(holder, method, self.timed(name, getattr(holder, method)))

    # -- the file ---------------------------------------------------------------------------------------------

    def flush(self, *, is_due: bool = True) -> None:
        """Write what has come since the last time: now, or only once some time has passed."""
        now_ns = _now_ns()
        if not self._lines or not (is_due or now_ns - self._flushed_ns > FLUSH_S * 1e9):
            return
        self._flushed_ns = now_ns
        payload = "".join(f",\n{line}" for line in self._lines).encode()
        self._lines.clear()
        try:
            self._write(payload)
            if self._num_bytes >= self._half_bytes:
                self._end_file()
                self._begin_file()
        except OSError as error:
            logger.error("the trace of steps ends: %s: %s", self._path, error.strerror)  # noqa: TRY400
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Write what is left, and end the file."""
        self.flush()
        if self._file >= 0:
            self._end_file()

    def _begin_file(self) -> None:
        if self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._num_bytes = 0
        names = ("process_name", LOOP, "trivium engine"), ("thread_name", LOOP, LOOP), ("thread_name", DEVICE, DEVICE)
        events = [
            f'{{"name":"{kind}","ph":"M",{self._ids[track]},"args":{{"name":"{name}"}}}}' for kind, track, name in names
        ]
        self._write(("[\n" + ",\n".join(events)).encode())

    def _write(self, payload: bytes) -> None:
        if self._file >= 0:
            self._num_bytes += os.write(self._file, payload)

    def _end_file(self) -> None:
        self._write(b"\n]\n")
        os.close(self._file)
        self._file = -1


class LoopTrace:
    """Writes the steps of one loop to a trace."""

    def __init__(self, trace: StepTrace, loop: EngineLoop, executor: Executor, scheduler: Scheduler) -> None:
        """Watch `loop`, and what it runs, from now on; it closes the trace when it is closed."""
        loop.trace = trace
        self._trace = trace
        self._loop = loop
        self._scheduler = scheduler
        self._ended: ScheduledStep | None = None
        """The step that was recorded, or given up, since the last span of a step."""
        self._launched_ns = 0
        trace.watch(executor, "forward", "forward")
        trace.watch(executor, "sample", "sample")
        trace.watch(scheduler, "commit", "commit")
        trace.watch(loop, "_read", "read")
        for holder, method, watched in (
            (executor, "forward", self._forward(executor.forward)),
            (executor, "sample", self._sample(executor.sample)),
            (scheduler, "next", self._choose(scheduler.next)),
            (scheduler, "commit", self._end(scheduler.commit)),
            (scheduler, "discard", self._end(scheduler.discard)),
            (loop, "step", self._step(loop.step)),
        ):
            setattr(holder, method, watched)

    def _choose(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        def traced() -> ScheduledStep | None:
            began_ns = _now_ns()
            scheduled: ScheduledStep | None = choose()
            if scheduled is not None:
                self._trace.span("choose", began_ns, _now_ns())
            return scheduled

        return traced

    def _forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*given: Any) -> None:
            self._launched_ns = _now_ns()
            forward(*given)

        return traced

    def _sample(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*given: Any) -> Draws:
            draws: Draws = sample(*given)
            return draws if isinstance(draws, Sampled) else _TracedDraws(draws, self._trace, self._launched_ns)

        return traced

    def _end(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def traced(scheduled: ScheduledStep, *given: Any, **named: Any) -> Any:
            self._ended = scheduled
            return end(scheduled, *given, **named)

        return traced

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def traced() -> Any:
            began_ns = _now_ns()
            try:
                return step()
            finally:
                ended, self._ended = self._ended, None
                if ended is not None:
                    self._note_step(ended, began_ns)
                self._trace.flush(is_due=not self._loop.has_work)

        return traced

    def _note_step(self, scheduled: ScheduledStep, began_ns: int) -> None:
        ended_ns = _now_ns()
        num_tokens = sum(entry.num_tokens for entry in scheduled.entries)
        num_decodes = sum(entry.num_tokens == 1 == entry.draws for entry in scheduled.entries)
        counts = {"prefill": num_tokens - num_decodes, "decode": num_decodes}
        self._trace.span("step", began_ns, ended_ns, requests=len(scheduled.entries), tokens=num_tokens)
        now = self._scheduler.stats()
        self._trace.count("tokens", began_ns, **counts)
        self._trace.count("requests", ended_ns, running=now.num_running, waiting=now.num_waiting)
        pages = {"free": now.pages_free, "used": now.pages_used, "cached": now.pages_evictable}
        self._trace.count("pages", ended_ns, **pages)


class _TracedDraws:
    """Promised draws; waiting for them, and what the device did until then, are spans."""

    def __init__(self, draws: Draws, trace: StepTrace, launched_ns: int) -> None:
        self._draws = draws
        self._trace = trace
        self._launched_ns = launched_ns

    def result(self) -> Sampled:
        """Wait as the draws do."""
        began_ns = _now_ns()
        sampled = self._draws.result()
        ended_ns = _now_ns()
        self._trace.span("wait", began_ns, ended_ns)
        self._trace.span("run", self._launched_ns, ended_ns, track=DEVICE)
        return sampled
