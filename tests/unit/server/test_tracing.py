"""Spans: what they hold, whose children they are, when they end, and what is refused."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from support.fake_engine import ByteTokenizer, FakeEngine, JoiningTemplate, tiny_served
from trivium.base.errors import ConfigError
from trivium.config.options import ServerOptions
from trivium.engine.messages import AnswerReport
from trivium.schedule.timeline import Chunk, Preemption, PreemptionKind, Start, Tier, Timeline, WaitReason
from trivium.server import service as service_module
from trivium.server.app import build_app
from trivium.server.tracing import Tracing, traces_url

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "http://127.0.0.1:4318"


class TracedSite:
    """An application whose engine reports its answers, and whose spans stay in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.engine = FakeEngine()
        self.app = build_app(
            self.engine, ByteTokenizer(), JoiningTemplate(), ServerOptions(**options), tiny_served(),
            tracing=Tracing(ENDPOINT, exporter=self.exporter),
        )  # fmt: skip
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://trivium.test")

    async def ask(
        self, path: str = "/v1/completions", headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": "tiny", "max_tokens": 3, **({"prompt": "hi"} if "chat" not in path else {}), **fields}
        return await self.client.post(path, json=body, headers=headers)

    def tell_end(self, answer_id: str, **changes: Any) -> None:
        """Let the engine report an answer that waited 1 s, read its prompt in 2 s, and drew tokens for 4 s."""
        record = self.app.state.service.requests.find(answer_id)
        timeline = Timeline(
            starts=[Start(at_s=1.0, waited={WaitReason.SEAT: 1.0}, cached={Tier.DEVICE: 7})],
            chunks=[
                Chunk(at_s=1.0, seconds=2.0, start=7, num_tokens=9),
                Chunk(at_s=5.5, seconds=1, start=0, num_tokens=17),
            ],
            preemptions=[Preemption(at_s=5.0, kind=PreemptionKind.RECOMPUTE, num_tokens=16)],
            num_preemptions=1,
            first_token_s=3.0,
            finished_s=7.0,
        )
        fields: dict[str, Any] = {
            "request_id": answer_id, "choice": 0, "state": "finished", "waits_for": None,
            "arrival_s": record.visit.began_s + 0.5, "prompt_len": 16, "cached_len": 7, "computed_len": 0,
            "output_len": 3, "max_tokens": 3, "finish_reason": "length", "waited": {WaitReason.SEAT: 1.0},
            "timeline": timeline,
        }  # fmt: skip
        self.engine.tell_end(AnswerReport(**{**fields, **changes}))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name.split()[0]: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
async def site() -> AsyncIterator[TracedSite]:
    made = TracedSite()
    yield made
    await made.client.aclose()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_a_request_is_a_span_with_the_conventions_names(site: TracedSite) -> None:
    answer = await site.ask(
        "/v1/chat/completions", messages=[{"role": "user", "content": "secret words"}], temperature=0.5, top_p=0.9,
        seed=7, stop=["x"], n=1, headers={"x-request-id": "r-1"},
    )  # fmt: skip
    assert site.exporter.get_finished_spans() == (), "the engine has not reported yet"
    site.tell_end(answer.json()["id"])
    span = site.spans()["chat"]
    assert (span.name, span.kind, span.parent) == ("chat tiny", SpanKind.SERVER, None)
    shown = facts(span)
    assert shown["gen_ai.operation.name"] == "chat"
    assert shown["gen_ai.provider.name"] == "trivium"
    assert (shown["gen_ai.request.model"], shown["gen_ai.response.model"]) == ("tiny", "tiny")
    assert shown["gen_ai.response.id"] == answer.json()["id"]
    assert (shown["gen_ai.request.temperature"], shown["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert (shown["gen_ai.request.seed"], shown["gen_ai.request.max_tokens"]) == (7, 3)
    assert shown["gen_ai.request.stop_sequences"] == ("x",)
    assert shown["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert shown["gen_ai.usage.output_tokens"] == 3
    assert shown["gen_ai.usage.cache_read.input_tokens"] == 0
    assert shown["gen_ai.response.finish_reasons"] == ("length",)
    assert (shown["http.route"], shown["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert shown["trivium.request_id"] == "r-1"
    assert not {"gen_ai.request.choice.count", "gen_ai.request.stream", "error.type", "trivium.key"} & set(shown)
    assert "secret" not in str([one.to_json() for one in site.exporter.get_finished_spans()])


async def test_its_children_are_queue_prefill_and_decode(site: TracedSite) -> None:
    answer = await site.ask()
    site.tell_end(answer.json()["id"])
    spans = site.spans()
    root = spans["text_completion"]
    parts = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(part.parent is not None and part.parent.span_id == root.context.span_id for part in parts)
    assert [seconds(part) for part in parts] == pytest.approx([1.0, 2.0, 4.0], abs=1e-6)
    assert parts[0].end_time == parts[1].start_time
    assert parts[0].start_time is not None
    assert root.start_time is not None
    assert (parts[0].start_time - root.start_time) / 1e9 == pytest.approx(0.5, abs=1e-3)
    assert facts(parts[0])["trivium.waited.seat"] == 1.0
    assert facts(parts[1])["trivium.cached_tokens.device"] == 7
    assert [event.name for event in parts[1].events] == ["chunk"]
    assert [event.name for event in parts[2].events] == ["chunk", "preempted"]
    assert dict(parts[1].events[0].attributes or {}) == {"trivium.chunk.start": 7, "trivium.chunk.tokens": 9}


@pytest.mark.parametrize(("flags", "is_kept"), [("01", True), ("00", False)])
async def test_the_callers_trace_goes_on_and_its_word_on_sampling_counts(
    site: TracedSite, flags: str, is_kept: bool
) -> None:
    answer = await site.ask(headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
    site.tell_end(answer.json()["id"])
    spans = site.spans()
    assert bool(spans) is is_kept
    if is_kept:
        root = spans["text_completion"]
        assert f"{root.context.trace_id:032x}" == TRACE
        assert root.parent is not None
        assert f"{root.parent.span_id:016x}" == PARENT


async def test_streams_say_so_and_choices_are_counted(site: TracedSite) -> None:
    answer = await site.ask(stream=True, n=2)
    (record,) = site.app.state.service.requests._finished.values()
    for choice in range(2):
        site.tell_end(record.answer_id, choice=choice)
    assert answer.status_code == 200
    names = [span.name for span in site.exporter.get_finished_spans()]
    assert sorted(names) == ["decode"] * 2 + ["prefill"] * 2 + ["queue"] * 2 + ["text_completion tiny"]
    shown = facts(site.spans()["text_completion"])
    assert (shown["gen_ai.request.stream"], shown["gen_ai.request.choice.count"]) == (True, 2)
    assert shown["gen_ai.response.time_to_first_chunk"] > 0


async def test_a_failed_request_has_its_error_even_without_a_report(
    site: TracedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LATE_REPORT_S", 0.0)
    site.engine.fail_after = 1
    await site.ask()
    await asyncio.sleep(0.01)
    span = site.spans()["text_completion"]
    assert (span.status.status_code, facts(span)["error.type"]) == (StatusCode.ERROR, "internal_error")
    assert facts(span)["http.response.status_code"] == 500


async def test_an_answer_that_never_started_was_in_the_queue_to_its_end(site: TracedSite) -> None:
    answer = await site.ask()
    site.tell_end(answer.json()["id"], finish_reason="abort", timeline=Timeline(finished_s=2.0))
    spans = site.spans()
    assert set(spans) == {"text_completion", "queue"}
    assert seconds(spans["queue"]) == pytest.approx(2.0, abs=1e-6)


async def test_closing_sends_spans_whose_reports_never_came(site: TracedSite) -> None:
    await site.ask()
    site.app.state.service.tracing.close()
    assert set(site.spans()) == {"text_completion"}


async def test_the_log_names_the_trace(site: TracedSite, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "trivium.access"):
        await site.ask(headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        await site.ask()
    first, second = [record.trace_id for record in caplog.records]
    assert first == TRACE
    assert second is not None
    assert second != TRACE


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("https://c/otlp/", "https://c/otlp/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
    ],
)
def test_spans_are_posted_below_the_endpoint(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4317", "grpc://c:4317", "http://"])
def test_an_endpoint_that_is_no_http_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otlp_endpoint is .*such as http://127.0.0.1:4318"):
        Tracing(endpoint)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    really_import = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return really_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'trivium\[otel\]'"):
        Tracing(ENDPOINT)
