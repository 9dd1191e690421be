"""What the engine says about its answers to whoever asks how they are, and when one has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from trivium.engine.messages import AnswerReport
from trivium.schedule.timeline import Timeline

if TYPE_CHECKING:
    from trivium.engine.admit import Answer
    from trivium.schedule.recorder import Recorder


def report(answer: Answer, recorder: Recorder, *, with_timeline: bool = True) -> AnswerReport:
    """Describe an answer as it is now; its timeline is shared with the request, which may go on writing it."""
    request = answer.request
    return AnswerReport(
        request_id=answer.user_id,
        choice=request.choice,
        state=request.state.value,
        waits_for=recorder.reason_of(request),
        arrival_s=request.arrival_s,
        prompt_len=request.prompt_len,
        cached_len=request.cached_len,
        computed_len=request.computed_len,
        output_len=request.output_len,
        max_tokens=request.limit_len - request.prompt_len,
        finish_reason=request.finish_reason,
        waited=recorder.waited(request),
        timeline=request.timeline if with_timeline else Timeline(),
    )


def report_open(
    answers: Iterable[Answer], recorder: Recorder, request_ids: Collection[str] | None = None
) -> dict[str, object]:
    """Describe open answers as plain values: those of some requests with their timelines, or all without."""
    reports = [
        report(answer, recorder, with_timeline=request_ids is not None)
        for answer in answers
        if request_ids is None or answer.user_id in request_ids
    ]
    return {"answers": msgspec.to_builtins(reports)}


def read_reports(reply: dict[str, object]) -> list[AnswerReport]:
    """Read what `report_open` wrote."""
    return msgspec.convert(reply["answers"], list[AnswerReport])
