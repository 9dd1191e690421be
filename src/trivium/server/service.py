"""`Service`: what all routes share, gathered once in `app.build_app`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trivium import __version__
from trivium.base.clock import Clock, SystemClock
from trivium.base.log import join_trace
from trivium.config.options import ServerOptions
from trivium.engine.messages import AnswerReport
from trivium.grammar.detect import ModelDialects
from trivium.server.auth import Doorkeeper
from trivium.server.errors import NotReadyError, ShuttingDownError
from trivium.server.job import Job
from trivium.server.kv_events import EventBuffer
from trivium.server.open_jobs import OpenJobs
from trivium.server.pins import KeptPins
from trivium.server.ports import ChatTemplatePort, EnginePort, TokenizerPort
from trivium.server.program_store import ProgramStore
from trivium.server.request_log import RequestLog, RequestRecord
from trivium.server.served import ModelChoice, ServedModel
from trivium.server.shapes import Changes
from trivium.server.telemetry import Telemetry
from trivium.server.token_texts import TokenTexts
from trivium.server.tracing import Tracing
from trivium.server.visit import Visit

LATE_REPORT_S = 2.0
"""Seconds after which the span of a request ends without what the engine has not said of its answers."""
LONG_TEXT_CHARS = 20_000
"""Texts from here on are tokenized in a thread, so that one long prompt does not hold up every stream."""


@dataclass(slots=True, kw_only=True)
class Service:
    """Engine, model and books of one server."""

    engine: EnginePort
    tokenizer: TokenizerPort
    chat_template: ChatTemplatePort | None
    options: ServerOptions
    served: ServedModel
    telemetry: Telemetry
    doorkeeper: Doorkeeper
    dialects: ModelDialects = field(default_factory=ModelDialects)
    """How the model writes tool calls and marks its reasoning."""
    clock: Clock = field(default_factory=SystemClock)
    jobs: OpenJobs = field(default_factory=OpenJobs)
    reload: Callable[[], Changes] | None = None
    """Reads the options again; raises `ConfigError`. `None` where there is nothing to read."""
    texts: TokenTexts = field(init=False)
    requests: RequestLog = field(init=False)
    kv_events: EventBuffer = field(init=False)
    pins: KeptPins = field(init=False)
    tracing: Tracing | None = None
    programs: ProgramStore = field(init=False)

    def __post_init__(self) -> None:
        self.texts = TokenTexts(self.tokenizer)
        self.programs = ProgramStore(self.options.programs_dir)
        self.requests = RequestLog(self.clock, history=self.options.request_history)
        self.kv_events = EventBuffer(self.options.kv_events_buffer)
        self.jobs.on_stop.append(self.kv_events.close)
        self.pins = KeptPins(self.engine, self.clock)
        self.jobs.on_stop.append(self.pins.close)
        self.engine.watch_ends(self._answer_ended)
        self.engine.watch_cache(self.kv_events.add)

    def _answer_ended(self, report: AnswerReport) -> None:
        self.telemetry.answer_ended(report)
        record = self.requests.take(report)
        if self.tracing is not None and record is not None and record.is_complete:
            self.tracing.end(record)

    def request_began(self, job: Job, visit: Visit, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note a request that was understood."""
        record = self.requests.begin(job, visit)
        if self.tracing is not None:
            self.tracing.begin(record, job, headers)
            join_trace(visit.trace_id)

    def request_ended(self, record: RequestRecord, seconds: float) -> None:
        """Note the end of a request that took so many seconds."""
        self.requests.end(record, seconds)
        if self.tracing is None:
            return
        if record.is_complete:
            self.tracing.end(record)
        else:  # Aborted, or failed: the engine's reports of its answers are under way, or will never come.
            asyncio.get_running_loop().call_later(LATE_REPORT_S, self.tracing.end, record)

    @property
    def context_len(self) -> int:
        """Longest prompt plus answer in tokens: the engine's word once it has spoken, else the configured one."""
        reported = self.engine.status().info.get("max_model_len")
        return reported if isinstance(reported, int) and reported > 0 else self.served.max_model_len

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint` of answers: changes with the version and with the weights."""
        weights = self.engine.status().info.get("fingerprint", self.served.fingerprint)
        return f"trivium-{__version__}-{str(weights)[:12]}"

    @property
    def vocab_size(self) -> int:
        """Number of token ids that a request may name."""
        return self.served.config.vocab_size

    def choose_model(self, name: object) -> ModelChoice:
        """Return what a request's `model` means: the model, or one of its adapters.

        Raises:
            InvalidParameterError: It is missing or no text.
            ModelNotFoundError: Nothing of that name is served.
        """
        return self.served.choose(name, [record.name for record in self.engine.adapters])

    def why_not_ready(self) -> str | None:
        """Return why no answer can be given now, or `None` when one can."""
        status = self.engine.status()
        if not status.is_ready:
            return status.error or "the model is loading"
        if status.heartbeat_age_s > self.options.heartbeat_timeout_s:
            return f"the engine has given no sign of life for {status.heartbeat_age_s:.0f} s"
        return None

    def check_ready(self) -> None:
        """Refuse while no answer can be given; one can while the engine is started again, only later.

        Raises:
            ShuttingDownError: The server was told to stop.
            NotReadyError: The model is loading, or the engine does not answer.
        """
        if not self.jobs.is_accepting:
            raise ShuttingDownError("the server is shutting down", retry_after_s=5.0)
        reason = self.why_not_ready()
        if reason is not None and not self.engine.status().is_restarting:
            raise NotReadyError(f"the model is not ready: {reason}", retry_after_s=2.0)

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Turn texts into ids, in a thread when they are long together."""

        def encode_all() -> list[list[int]]:
            return [self.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

        is_long = sum(map(len, texts)) >= LONG_TEXT_CHARS
        return await asyncio.to_thread(encode_all) if is_long else encode_all()
