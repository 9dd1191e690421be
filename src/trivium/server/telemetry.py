"""Metrics of the server, in Prometheus' format; every name begins with `trivium_`.

Two sources: what the server sees itself (requests by route and status, time to first token, inter-token latency, whole
duration), and the engine's counters as of its last heartbeat, read when somebody asks.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trivium.base.clock import Clock, SystemClock
from trivium.engine.messages import Delta
from trivium.engine.stats import STEP_SECONDS_BUCKETS
from trivium.server.ports import StatusPort

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)
_DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

ENGINE_METRICS: Mapping[str, tuple[str, str]] = {
    "num_waiting": ("requests_waiting", "Answers that wait for their first step"),
    "num_running": ("requests_running", "Answers that run"),
    "kv_waste": ("kv_waste_ratio", "Share of the used KV pages that holds no token yet"),
    "prefix_query_tokens_total": ("prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache"),
    "prefix_hit_tokens_total": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache"),
    "prompt_tokens_total": ("prompt_tokens", "Prompt tokens taken in"),
    "generation_tokens_total": ("generation_tokens", "Tokens generated"),
    "preemptions_total": ("preemptions", "Answers set back to make room for others"),
    "step_errors_total": ("step_errors", "Steps that failed"),
    "accounting_differences_total": ("accounting_differences", "Pages whose owner could not be re-derived"),
    "scheduler_seconds_total": ("scheduler_seconds", "Seconds spent deciding and building steps"),
}
"""Key of the engine's counters to metric name and meaning; a key that ends in `_total` is a counter."""


class Telemetry:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, read_status: Callable[[], StatusPort], clock: Clock) -> None:
        """Make the metrics.

        Args:
            read_status: Reads the engine's condition; called when metrics are asked for.
            clock: Times tokens and requests.
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
        self._open = Gauge("trivium_open_requests", "HTTP requests under way", registry=self.registry)
        self.registry.register(_EngineCollector(read_status))

    def request_began(self) -> None:
        """Count an HTTP request as under way."""
        self._open.inc()

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request by its outcome."""
        self._open.dec()
        self._requests.labels(route, str(status)).inc()
        self._duration.labels(route).observe(seconds)

    def watch_tokens(self, began_s: float) -> TokenTimes:
        """Return a stopwatch for the tokens of one job."""
        return TokenTimes(self._clock, began_s, self._first_token.observe, self._inter_token.observe)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)


def documented_metrics() -> list[tuple[str, str, str]]:
    """Name, kind and meaning of every metric, in order of name."""
    telemetry = Telemetry(_Silence, SystemClock())
    families = [family for family in telemetry.registry.collect() if family.type != "unknown"]
    suffixes = {"counter": "_total"}
    return sorted(
        (family.name + suffixes.get(family.type, ""), family.type, family.documentation) for family in families
    )


class _Silence:
    """The status of an engine that has said nothing; shows which metrics there are."""

    is_ready = False
    is_restarting = False
    heartbeat_age_s = 0.0
    info: Mapping[str, object] = MappingProxyType({})
    stats: Mapping[str, object] = MappingProxyType({"step_seconds_buckets": [0] * (len(STEP_SECONDS_BUCKETS) + 1)})
    error: str | None = None


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
        yield _histogram(
            "trivium_inter_token_seconds",
            "Seconds between two tokens of an answer",
            _INTER_TOKEN_BUCKETS,
            self._counts,
            self._sum_s,
        )


class _EngineCollector(Collector):
    """Shows the engine's last heartbeat."""

    def __init__(self, read_status: Callable[[], StatusPort]) -> None:
        self._read_status = read_status

    def collect(self) -> Iterator[Metric]:
        status = self._read_status()
        yield GaugeMetricFamily("trivium_engine_ready", "1 when the engine takes requests", float(status.is_ready))
        yield GaugeMetricFamily(
            "trivium_engine_heartbeat_age_seconds", "Seconds since the engine's loop moved", status.heartbeat_age_s
        )
        for key, (name, meaning) in ENGINE_METRICS.items():
            value = _number(status.stats, key)
            family = CounterMetricFamily if key.endswith("_total") else GaugeMetricFamily
            yield family(f"trivium_{name}", meaning, value)
        yield from _kv_metrics(status.stats)
        yield _hit_ratio(status.stats)
        yield from _step_metrics(status.stats)
        yield _finished(status.stats)


def _kv_metrics(stats: Mapping[str, object]) -> Iterator[Metric]:
    pages = GaugeMetricFamily("trivium_kv_pages", "KV pages by who holds them", labels=("state",))
    for state in ("used", "cached", "free"):
        pages.add_metric((state,), _number(stats, f"kv_pages_{state}"))
    yield pages
    total = _number(stats, "kv_pages_total")
    usage = _number(stats, "kv_pages_used") / total if total else 0.0
    yield GaugeMetricFamily("trivium_kv_usage_ratio", "Share of the KV pages that running answers hold", usage)


def _hit_ratio(stats: Mapping[str, object]) -> Metric:
    queried = _number(stats, "prefix_query_tokens_total")
    ratio = _number(stats, "prefix_hit_tokens_total") / queried if queried else 0.0
    return GaugeMetricFamily("trivium_prefix_cache_hit_ratio", "Prompt tokens found in the prefix cache, of all", ratio)


def _step_metrics(stats: Mapping[str, object]) -> Iterator[Metric]:
    counts = stats.get("step_seconds_buckets")
    if isinstance(counts, Sequence) and len(counts) == len(STEP_SECONDS_BUCKETS) + 1:
        total_s = _number(stats, "step_seconds_total")
        yield _histogram("trivium_step_seconds", "Duration of engine steps", STEP_SECONDS_BUCKETS, counts, total_s)


def _histogram(
    name: str, meaning: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> HistogramMetricFamily:
    """Make a histogram of counts per bucket, not cumulative, the last of which is of what exceeds all bounds."""
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return HistogramMetricFamily(name, meaning, list(zip(ends, itertools.accumulate(counts), strict=True)), total)


def _finished(stats: Mapping[str, object]) -> Metric:
    finished = CounterMetricFamily("trivium_answers_finished", "Answers by finish reason", labels=("reason",))
    reasons = stats.get("finished_total")
    if isinstance(reasons, Mapping):
        for reason in sorted(reasons):
            finished.add_metric((str(reason),), _number(reasons, reason))
    return finished


def _number(stats: Mapping[str, object], key: str) -> float:
    value = stats.get(key, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
