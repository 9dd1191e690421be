"""Spans of requests for OpenTelemetry, sent to a collector over OTLP/HTTP (`--otlp-endpoint`, the extra `otel`).

::

    caller's span (traceparent)
    └─ chat MODEL            from the request's arrival to its end; attributes by the conventions for generative AI
       ├─ queue              per answer: from its arrival at the engine to its first step; seconds waited by reason
       ├─ prefill            to its first token; an event per chunk
       └─ decode             to its end; an event per preemption

A span holds names, counts and times, neither prompt nor answer. Which traces are kept is the caller's word (the sampled
flag of its traceparent); without one, all, unless the SDK's own OTEL_TRACES_SAMPLER says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from trivium import __version__
from trivium.base.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

    from trivium.engine.messages import AnswerReport
    from trivium.server.job import Job
    from trivium.server.request_log import RequestRecord

FLUSH_S = 2.0
"""Seconds that the last spans get to leave when the server ends."""
PROVIDER = "trivium"
_TRACES_PATH = "/v1/traces"
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_DETAILS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.seed": "seed",
}
"""Attribute to sampling field; left out where a field was not given."""
_MISSING = (
    "otlp_endpoint needs the OpenTelemetry SDK and its exporter, which are not installed; "
    "install the extra: pip install 'trivium[otel]'"
)


def traces_url(endpoint: str) -> str:
    """Return where spans are posted: `/v1/traces` below the endpoint, unless it says so itself.

    Raises:
        ConfigError: It is no http or https address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            f"otlp_endpoint is {endpoint!r}; it must be the address of an OTLP/HTTP collector, such as "
            "http://127.0.0.1:4318"
        )
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


class Tracing:
    """Makes the spans of one server; used from its event loop."""

    def __init__(self, endpoint: str, *, exporter: SpanExporter | None = None) -> None:
        """Begin to send spans.

        Args:
            endpoint: Address of the collector.
            exporter: Takes the spans instead, at once; for tests.

        Raises:
            ConfigError: The address cannot be used, or the extra `otel` is not installed.
        """
        url = traces_url(endpoint)
        try:
            from opentelemetry.sdk.trace import TracerProvider, export  # noqa: PLC0415  (an extra)
            from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(_MISSING) from error
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        if exporter is None:
            self._provider.add_span_processor(export.BatchSpanProcessor(_exporter(url)))
        else:
            self._provider.add_span_processor(export.SimpleSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("trivium", __version__)
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._open: dict[str, RequestRecord] = {}

    def begin(self, record: RequestRecord, job: Job, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Open the span of a request, below the caller's where it names one."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415  (an extra)

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in {b"traceparent", b"tracestate"}
        }
        visit = record.visit
        operation = _OPERATIONS.get(visit.route, "generate_content")
        span = self._tracer.start_span(
            f"{operation} {record.model}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"gen_ai.operation.name": operation, **_request_attributes(record, job)},
            start_time=_ns(record.created_at),
        )
        record.span = span
        self._open[record.answer_id] = record
        visit.trace_id = f"{span.get_span_context().trace_id:032x}"

    def end(self, record: RequestRecord) -> None:
        """Close the span of a request that has ended, with those of its answers; once only."""
        if record.span is None or record.seconds is None:
            return
        span, record.span = record.span, None
        del self._open[record.answer_id]
        from opentelemetry.trace import StatusCode, set_span_in_context  # noqa: PLC0415  (an extra)

        if span.is_recording():
            span.set_attributes(_response_attributes(record))
            if (code := record.visit.error_code) is not None:
                span.set_attribute("error.type", code)
                span.set_status(StatusCode.ERROR)
            context = set_span_in_context(span)
            for (prompt_idx, _), report in sorted(record.reports.items(), key=lambda item: item[0]):
                # Moments of the engine are on the monotonic clock, that of visits; spans want Unix time.
                arrived_s = record.created_at + report.arrival_s - record.visit.began_s
                self._answer_spans(report, prompt_idx, arrived_s, context)
        span.end(end_time=_ns(record.created_at + record.seconds))

    def _answer_spans(self, report: AnswerReport, prompt_idx: int, arrived_s: float, context: Any) -> None:
        for part in _parts(report):
            facts = {"trivium.prompt.index": prompt_idx, "trivium.choice.index": report.choice, **part.facts}
            span = self._tracer.start_span(
                part.name, context=context, attributes=facts, start_time=_ns(arrived_s + part.begin_s)
            )
            for event in part.events:
                span.add_event(event.name, event.facts, timestamp=_ns(arrived_s + event.at_s))
            span.end(end_time=_ns(arrived_s + part.end_s))

    def close(self) -> None:
        """Send what has not been sent; blocks, for `FLUSH_S` seconds or so if nobody takes it."""
        for record in tuple(self._open.values()):
            self.end(record)
        self._provider.force_flush(int(FLUSH_S * 1000))
        self._provider.shutdown()


def check(endpoint: str) -> None:
    """Find out whether spans could be sent.

    Raises:
        ConfigError: The address cannot be used, or the extra `otel` is not installed.
    """
    _exporter(traces_url(endpoint)).shutdown()


def _resource() -> Resource:
    """Say who sends: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, where they are set, are the SDK's to read."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (an extra)

    found = Resource.create({"service.version": __version__})
    is_named = not str(found.attributes.get("service.name", "")).startswith("unknown_service")
    return found if is_named else found.merge(Resource({"service.name": PROVIDER}))


def _exporter(url: str) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    return OTLPSpanExporter(endpoint=url)


def _request_attributes(record: RequestRecord, job: Job) -> dict[str, Any]:
    params = job.prompts[0].params
    attributes: dict[str, Any] = {
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.answer_id,
        "http.request.method": record.visit.method,
        "http.route": record.visit.route,
        "trivium.request_id": record.visit.request_id,
    }
    attributes |= {name: value for name, field in _DETAILS.items() if (value := getattr(params, field)) is not None}
    if params.stop:
        attributes["gen_ai.request.stop_sequences"] = list(params.stop)
    if params.n != 1:
        attributes["gen_ai.request.choice.count"] = params.n
    if record.is_stream:
        attributes["gen_ai.request.stream"] = True
    if record.visit.caller is not None:
        attributes["trivium.key"] = record.visit.caller
    return attributes


def _response_attributes(record: RequestRecord) -> Mapping[str, Any]:
    visit = record.visit
    reasons = [report.finish_reason for _, report in sorted(record.reports.items(), key=lambda item: item[0])]
    attributes: dict[str, Any] = {
        "gen_ai.response.model": record.model,
        "http.response.status_code": visit.status,
        "gen_ai.usage.input_tokens": visit.prompt_tokens or 0,
        "gen_ai.usage.output_tokens": visit.completion_tokens or 0,
        "gen_ai.usage.cache_read.input_tokens": visit.cached_tokens or 0,
        "gen_ai.response.finish_reasons": [reason for reason in reasons if reason is not None],
    }
    if record.is_stream and visit.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = visit.first_token_s
    return attributes


class _Event(NamedTuple):
    name: str
    at_s: float
    facts: dict[str, Any]


class _Part(NamedTuple):
    """A part of an answer's life, in seconds since its arrival at the engine."""

    name: str
    begin_s: float
    end_s: float
    facts: dict[str, Any]
    events: list[_Event]


def _parts(report: AnswerReport) -> Iterator[_Part]:
    """Take a finished answer's life apart; what it did not reach is left out."""
    timeline = report.timeline
    end_s = timeline.finished_s or 0.0
    start = timeline.starts[0] if timeline.starts else None
    waited = {f"trivium.waited.{reason}": seconds for reason, seconds in report.waited.items()}
    yield _Part("queue", 0.0, end_s if start is None else start.at_s, waited, [])
    if start is None:
        return
    cached = {f"trivium.cached_tokens.{tier}": count for tier, count in start.cached.items()}
    chunks = [
        _Event("chunk", one.at_s, {"trivium.chunk.start": one.start, "trivium.chunk.tokens": one.num_tokens})
        for one in timeline.chunks
    ]
    preemptions = [
        _Event(
            "preempted", one.at_s, {"trivium.preemption.kind": one.kind, "trivium.preemption.tokens": one.num_tokens}
        )
        for one in timeline.preemptions
    ]
    first_s = timeline.first_token_s
    in_prefill = [event for event in chunks + preemptions if first_s is None or event.at_s < first_s]
    in_decode = [event for event in chunks + preemptions if first_s is not None and event.at_s >= first_s]
    yield _Part("prefill", start.at_s, end_s if first_s is None else first_s, cached, in_prefill)
    if first_s is not None:
        yield _Part("decode", first_s, end_s, {}, in_decode)


def _ns(moment_s: float) -> int:
    return int(moment_s * 1e9)
