"""Histograms over answers that ended by themselves, filled from what the engine reports of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram

from trivium.base.ids import FinishReason
from trivium.engine.messages import AnswerReport

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_ENDS = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS})
_LEAST_TOKENS = 2
"""Tokens of an answer, below which nothing lies between two of them."""


Figure = Callable[[AnswerReport], float | None]


class AnswerMetric(NamedTuple):
    """One figure of an answer."""

    meaning: str
    buckets: tuple[float, ...]
    read: Figure
    """`None` where an answer has no such figure."""


def _queue_s(report: AnswerReport) -> float | None:
    return report.timeline.starts[0].at_s if report.timeline.starts else None


def _first_token_s(report: AnswerReport) -> float | None:
    return report.timeline.first_token_s


def _finished_s(report: AnswerReport) -> float | None:
    return report.timeline.finished_s


def _between(start: Figure, end: Figure) -> Figure:
    def read(report: AnswerReport) -> float | None:
        start_s, end_s = start(report), end(report)
        return None if start_s is None or end_s is None else end_s - start_s

    return read


_decode_s = _between(_first_token_s, _finished_s)


def _per_token_s(report: AnswerReport) -> float | None:
    decode_s = _decode_s(report)
    return None if decode_s is None or report.output_len < _LEAST_TOKENS else decode_s / (report.output_len - 1)


ANSWER_METRICS: Mapping[str, AnswerMetric] = {
    "queue_seconds": AnswerMetric("Seconds from an answer's arrival to its first step", _SECONDS, _queue_s),
    "prefill_seconds": AnswerMetric(
        "Seconds from an answer's first step to its first token", _SECONDS, _between(_queue_s, _first_token_s)
    ),
    "decode_seconds": AnswerMetric("Seconds from an answer's first token to its last", _SECONDS, _decode_s),
    "inference_seconds": AnswerMetric(
        "Seconds from an answer's first step to its end", _SECONDS, _between(_queue_s, _finished_s)
    ),
    "answer_seconds": AnswerMetric("Seconds from an answer's arrival at the engine to its end", _SECONDS, _finished_s),
    "time_per_output_token_seconds": AnswerMetric(
        "Mean seconds between the tokens of an answer", _TOKEN_SECONDS, _per_token_s
    ),
    "answer_prompt_tokens": AnswerMetric("Tokens of an answer's prompt", _TOKENS, lambda report: report.prompt_len),
    "answer_generation_tokens": AnswerMetric("Tokens of an answer", _TOKENS, lambda report: report.output_len),
    "answer_max_tokens": AnswerMetric(
        "Most tokens that an answer might have had", _TOKENS, lambda report: report.max_tokens
    ),
}
"""Metric name, without `trivium_`, to what it is."""


class AnswerMetrics:
    """The histograms of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histograms = [
            (metric.read, Histogram(f"trivium_{name}", metric.meaning, buckets=metric.buckets, registry=registry))
            for name, metric in ANSWER_METRICS.items()
        ]

    def add(self, report: AnswerReport) -> None:
        """Count an answer, unless it was aborted or failed: its figures would say nothing of the others."""
        if report.finish_reason in _ENDS:
            for read, histogram in self._histograms:
                if (value := read(report)) is not None:
                    histogram.observe(value)
