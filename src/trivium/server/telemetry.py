"""Metrics of the server, in Prometheus' format; every name begins with `trivium_`.

Three sources: what the server sees itself (requests by route, status and error, time to first token, inter-token
latency, whole duration), what the engine reports of each answer that ended (`answer_metrics`), and the engine's
counters as of its last heartbeat, read when somebody asks (`engine_metrics`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trivium.base.clock import Clock, SystemClock
from trivium.engine.messages import AnswerReport, Delta
from trivium.server.answer_metrics import AnswerMetrics
from trivium.server.engine_metrics import EngineCollector, Silence, histogram
from trivium.server.ports import StatusPort
from trivium.server.vllm_names import VLLM_NAMES, VllmNames

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)
_DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Telemetry:
    """All metrics of one server, in a registry of its own."""

    def __init__(
        self, read_status: Callable[[], StatusPort], clock: Clock, *, vllm_names_for: str | None = None
    ) -> None:
        """Make the metrics.

        Args:
            read_status: Reads the engine's condition; called when metrics are asked for.
            clock: Times tokens and requests.
            vllm_names_for: Name of the model, if metrics are to be shown under vLLM's names too.
        """
        self.registry = CollectorRegistry(auto_describe=False)
        self._clock = clock
        self._requests = Counter(
            "trivium_requests", "HTTP requests by route and status", ("route", "status"), registry=self.registry
        )
        self._duration = Histogram(
            "trivium_request_duration_seconds", "Duration of HTTP requests", ("route",),
            buckets=_DURATION_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "trivium_time_to_first_token_seconds", "Seconds from a request to the first token of an answer",
            buckets=_FIRST_TOKEN_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._inter_token = _GapHistogram()
        self.registry.register(self._inter_token)
        self._errors = Counter(
            "trivium_request_errors", "HTTP requests that ended with an error, by its code", ("route", "code"),
            registry=self.registry,
        )  # fmt: skip
        self._answers = AnswerMetrics(self.registry)
        self._open = Gauge("trivium_open_requests", "HTTP requests under way", registry=self.registry)
        self.registry.register(EngineCollector(read_status))
        self._vllm: CollectorRegistry | None = None
        if vllm_names_for is not None:
            self._vllm = CollectorRegistry(auto_describe=False)
            self._vllm.register(VllmNames(self.registry, lambda: vllm_names_for))

    def request_began(self) -> None:
        """Count an HTTP request as under way."""
        self._open.inc()

    def request_ended(self, route: str, status: int, seconds: float, error_code: str | None = None) -> None:
        """Count an HTTP request by its outcome."""
        self._open.dec()
        self._requests.labels(route, str(status)).inc()
        self._duration.labels(route).observe(seconds)
        if error_code is not None:
            self._errors.labels(route, error_code).inc()

    def answer_ended(self, report: AnswerReport) -> None:
        """Count an answer by what the engine says of it."""
        self._answers.add(report)

    def watch_tokens(self, began_s: float) -> TokenTimes:
        """Return a stopwatch for the tokens of one job."""
        return TokenTimes(self._clock, began_s, self._first_token.observe, self._inter_token.observe)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        theirs = generate_latest(self._vllm) if self._vllm is not None else b""
        return generate_latest(self.registry) + theirs


def documented_metrics() -> list[tuple[str, str, str, str]]:
    """Name, kind, meaning, and vLLM's name (empty where it has none) of every metric, in order of name."""
    telemetry = Telemetry(Silence, SystemClock())
    families = [family for family in telemetry.registry.collect() if family.type != "unknown"]
    suffixes = {"counter": "_total"}
    rows = []
    for family in families:
        suffix = suffixes.get(family.type, "")
        alias = VLLM_NAMES.get(family.name.removeprefix("trivium_"))
        theirs = f"vllm:{alias.name}{suffix}" if alias is not None else ""
        rows.append((family.name + suffix, family.type, family.documentation, theirs))
    return sorted(rows)


class TokenTimes:
    """Stopwatch of one job: time to first token, and time between tokens, of each answer."""

    def __init__(
        self,
        clock: Clock,
        began_s: float,
        observe_first: Callable[[float], None],
        observe_next: Callable[[float, int], None],
    ) -> None:
        self._clock = clock
        self._began_s = began_s
        self._observe_first = observe_first
        self._observe_next = observe_next
        self._last_s: dict[tuple[int, int], float] = {}
        self.first_token_s: float | None = None
        """Seconds from the request to the first token of any answer."""

    def add(self, prompt_idx: int, delta: Delta) -> None:
        """Time the tokens of a delta; several tokens at once share the time since the last."""
        num_tokens = len(delta.token_ids)
        if not num_tokens:
            return
        now_s = self._clock.now_s()
        key = (prompt_idx, delta.choice)
        last_s = self._last_s.get(key)
        self._last_s[key] = now_s
        if last_s is None:
            waited_s = now_s - self._began_s
            self._observe_first(waited_s)
            if self.first_token_s is None:
                self.first_token_s = waited_s
        else:
            self._observe_next((now_s - last_s) / num_tokens, num_tokens)


class _GapHistogram(Collector):
    """Counts seconds between tokens: once per token, so without the locks and label sets of the library's histograms.

    Used from the event loop's thread only.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_INTER_TOKEN_BUCKETS) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, count: int) -> None:
        """Count `count` gaps of so many seconds each."""
        self._counts[bisect_left(_INTER_TOKEN_BUCKETS, seconds)] += count
        self._sum_s += seconds * count

    def collect(self) -> Iterator[Metric]:
        yield histogram(
            "trivium_inter_token_seconds",
            "Seconds between two tokens of an answer",
            _INTER_TOKEN_BUCKETS,
            self._counts,
            self._sum_s,
        )
