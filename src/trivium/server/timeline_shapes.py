"""The answers of `/v1/requests` and `/v1/requests/{id}`; all times are seconds since the server got the request."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trivium.engine.messages import AnswerReport
from trivium.schedule.timeline import Chunk, Preemption, Start, WaitReason
from trivium.server.request_log import RequestRecord


class AnswerTimeline(msgspec.Struct, kw_only=True):
    """What happened to one answer."""

    prompt: int
    """Index of its prompt."""
    choice: int
    state: str
    """`waiting`, `running` or `finished`."""
    waits_for: WaitReason | None
    """Why it has not started, or not started again, while it waits."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the cache at the first start."""
    computed_tokens: int
    """Tokens whose KV is in memory."""
    completion_tokens: int
    finish_reason: str | None
    queued_s: float
    """When the engine got it."""
    waited: dict[WaitReason, float]
    """Seconds by reason, over all its waits."""
    queue_seconds: float | None
    """Until its first start."""
    prefill_seconds: float | None
    """From its first start to its first token."""
    decode_seconds: float | None
    """From its first token to its end."""
    starts: list[Start]
    chunks: list[Chunk]
    num_preemptions: int
    preemptions: list[Preemption]
    first_token_s: float | None
    finished_s: float | None


class RequestSummary(msgspec.Struct, kw_only=True):
    """A request under way, in short."""

    id: str
    request_id: str
    """Its X-Request-Id."""
    key: str | None
    """Name of the API key that sent it."""
    model: str
    route: str
    created: float
    """Unix time."""
    seconds: float
    """How long it has taken so far."""
    prompt_tokens: int
    completion_tokens: int
    """As far as its answers are open."""
    waiting: int
    """Answers that wait."""
    running: int
    waits_for: dict[WaitReason, int]
    """Waiting answers by reason."""


class RequestList(msgspec.Struct, kw_only=True):
    """Answer of `/v1/requests`."""

    object: str = "list"
    data: list[RequestSummary]


class RequestTimeline(msgspec.Struct, kw_only=True):
    """Answer of `/v1/requests/{id}`."""

    id: str
    object: str = "request"
    state: str
    """`open` or `finished`."""
    request_id: str
    """Its X-Request-Id."""
    key: str | None
    """Name of the API key that sent it."""
    model: str
    route: str
    stream: bool
    created: float
    """Unix time."""
    seconds: float
    """How long it has taken, so far or in all."""
    status: int
    """HTTP status; 0 while nothing was sent."""
    error: str | None
    """Code of the error that ended it."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    first_token_s: float | None
    """When the server had the first token of any answer."""
    answers: list[AnswerTimeline]


def show_answer(report: AnswerReport, prompt_idx: int, began_s: float) -> AnswerTimeline:
    """Show an answer with its moments counted from `began_s` on."""
    timeline, queued_s = report.timeline, max(0.0, report.arrival_s - began_s)
    started_s = timeline.starts[0].at_s if timeline.starts else None
    return AnswerTimeline(
        prompt=prompt_idx,
        choice=report.choice,
        state=report.state,
        waits_for=report.waits_for,
        prompt_tokens=report.prompt_len,
        cached_tokens=report.cached_len,
        computed_tokens=report.computed_len,
        completion_tokens=report.output_len,
        finish_reason=report.finish_reason,
        queued_s=queued_s,
        waited=report.waited,
        queue_seconds=started_s,
        prefill_seconds=_between(started_s, timeline.first_token_s),
        decode_seconds=_between(timeline.first_token_s, timeline.finished_s),
        starts=[msgspec.structs.replace(start, at_s=start.at_s + queued_s) for start in timeline.starts],
        chunks=[msgspec.structs.replace(chunk, at_s=chunk.at_s + queued_s) for chunk in timeline.chunks],
        num_preemptions=timeline.num_preemptions,
        preemptions=[msgspec.structs.replace(one, at_s=one.at_s + queued_s) for one in timeline.preemptions],
        first_token_s=_later(timeline.first_token_s, queued_s),
        finished_s=_later(timeline.finished_s, queued_s),
    )


def show_request(record: RequestRecord, live: Iterable[AnswerReport], age_s: float) -> RequestTimeline:
    """Show a request; `live` are the reports of its answers that have not ended."""
    visit = record.visit
    prompt_idx = {name: idx for idx, name in enumerate(record.engine_ids)}
    reports = {(prompt_idx[report.request_id], report.choice): report for report in live} | record.reports
    return RequestTimeline(
        id=record.answer_id,
        state="open" if record.seconds is None else "finished",
        request_id=visit.request_id,
        key=visit.caller,
        model=record.model,
        route=visit.route,
        stream=record.is_stream,
        created=record.created_at,
        seconds=age_s,
        status=visit.status,
        error=visit.error_code,
        prompt_tokens=visit.prompt_tokens or 0,
        completion_tokens=sum(report.output_len for report in reports.values()),
        cached_tokens=sum(report.cached_len for (_, choice), report in reports.items() if choice == 0),
        first_token_s=visit.first_token_s,
        answers=[show_answer(report, idx, visit.began_s) for (idx, _), report in sorted(reports.items(), key=_place)],
    )


def show_summary(record: RequestRecord, live: Iterable[AnswerReport], age_s: float) -> RequestSummary:
    """Show an open request in short."""
    visit, reports = record.visit, list(live)
    waiting = [report for report in reports if report.state == "waiting"]
    reasons = [report.waits_for for report in waiting if report.waits_for is not None]
    return RequestSummary(
        id=record.answer_id,
        request_id=visit.request_id,
        key=visit.caller,
        model=record.model,
        route=visit.route,
        created=record.created_at,
        seconds=age_s,
        prompt_tokens=visit.prompt_tokens or 0,
        completion_tokens=sum(report.output_len for report in reports),
        waiting=len(waiting),
        running=len(reports) - len(waiting),
        waits_for={reason: reasons.count(reason) for reason in sorted(set(reasons))},
    )


def _place(item: tuple[tuple[int, int], AnswerReport]) -> tuple[int, int]:
    return item[0]


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _later(moment_s: float | None, offset_s: float) -> float | None:
    return None if moment_s is None else moment_s + offset_s
