"""The engine's counters as metrics: those of its last heartbeat, read when somebody asks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trivium import __version__
from trivium.engine.stats import STEP_SECONDS_BUCKETS, STEP_TOKENS_BUCKETS
from trivium.schedule.timeline import PreemptionKind, Tier, WaitReason
from trivium.server.ports import StatusPort

SINGLE: Mapping[str, tuple[str, str]] = {
    "num_waiting": ("requests_waiting", "Answers that wait for their first step"),
    "num_running": ("requests_running", "Answers that run"),
    "kv_waste": ("kv_waste_ratio", "Share of the used KV pages that holds no token yet"),
    "output_len_mean": ("expected_output_tokens", "Output tokens of late answers: what admission expects of the next"),
    "output_len_error": ("expected_output_error_tokens", "Mean distance of answers' lengths from what was expected"),
    "prefix_query_tokens_total": ("prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache"),
    "prefix_hit_tokens_total": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache"),
    "prompt_tokens_total": ("prompt_tokens", "Prompt tokens taken in"),
    "generation_tokens_total": ("generation_tokens", "Tokens generated"),
    "forced_tokens_total": ("forced_tokens", "Tokens generated without a draw, being forced: each saved a step"),
    "preemptions_total": ("preemptions", "Answers set back to make room for others"),
    "evicted_pages_total": ("evicted_pages", "KV pages that cached prefixes gave up to make room"),
    "tier_unwritten_pages_total": (
        "tier_unwritten_pages",
        "Pages that left KV memory faster than a lower tier could write them",
    ),
    "grammars_waiting": ("grammars_waiting", "Requests whose constraint is being compiled"),
    "grammars_compiled_total": ("grammars_compiled", "Constraints that were compiled"),
    "grammars_cached_total": ("grammars_cached", "Constraints that had been compiled for another request"),
    "grammars_failed_total": ("grammars_failed", "Constraints that could not be compiled"),
    "grammars_timed_out_total": ("grammars_timed_out", "Requests whose constraint was not compiled in time"),
    "grammars_evicted_total": ("grammars_evicted", "Compiled constraints that were given up to make room"),
    "grammars_kept": ("grammars_kept", "Compiled constraints that are kept for the next who asks for them"),
    "grammar_cache_bytes": ("grammar_cache_bytes", "About what the kept constraints take"),
    "grammar_seconds_total": ("grammar_seconds", "Seconds spent compiling constraints, beside the loop"),
    "step_errors_total": ("step_errors", "Steps that failed"),
    "accounting_differences_total": ("accounting_differences", "Pages whose owner could not be re-derived"),
    "scheduler_seconds_total": ("scheduler_seconds", "Seconds spent deciding and building steps"),
}
"""Key of the engine's counters to metric name and meaning; a key that ends in `_total` is a counter."""


class ByLabel(NamedTuple):
    """A counter, or gauge, that the engine keeps apart by one label."""

    name: str
    meaning: str
    label: str
    values: tuple[str, ...]
    """Those that are always shown; others are as they come."""


BY_LABEL: Mapping[str, ByLabel] = {
    "waiting_by_reason": ByLabel(
        "requests_waiting_by_reason", "Answers that wait, by what for", "reason", tuple(WaitReason)
    ),
    "wait_seconds_total": ByLabel(
        "wait_seconds", "Seconds that answers have waited, by what for, when they start", "reason", tuple(WaitReason)
    ),
    "cached_tokens_total": ByLabel(
        "cached_prompt_tokens", "Prompt tokens found in the cache, by where", "tier", tuple(Tier)
    ),
    "preemptions_by_kind_total": ByLabel(
        "preemptions_by_kind", "Answers set back, by how their KV comes back", "kind", tuple(PreemptionKind)
    ),
    "tier_pages": ByLabel("tier_pages", "KV pages in the tiers below KV memory", "tier", ()),
    "tier_bytes": ByLabel("tier_bytes", "Bytes that the tiers below KV memory take", "tier", ()),
    "tier_off": ByLabel("tier_off", "1 where an error ended the use of a tier until the next start", "tier", ()),
    "tier_written_bytes_total": ByLabel("tier_written_bytes", "Bytes of pages written to a tier", "tier", ()),
    "tier_read_bytes_total": ByLabel("tier_read_bytes", "Bytes of pages read from a tier", "tier", ()),
    "tier_evicted_pages_total": ByLabel("tier_evicted_pages", "Pages that made room in a tier", "tier", ()),
    "tier_damaged_pages_total": ByLabel(
        "tier_damaged_pages", "Entries of a tier that were not what had been written, and were dropped", "tier", ()
    ),
    "tier_rates": ByLabel(
        "tier_rates", "Measured: bytes read and written, and prompt tokens computed, per second", "what", ()
    ),
    "finished_total": ByLabel("answers_finished", "Answers by finish reason", "reason", ()),
}
"""Key of the engine's counters to a metric with a label; a key that ends in `_total` is a counter."""

HISTOGRAMS: Mapping[str, tuple[str, str, Sequence[float]]] = {
    "step_seconds": ("step_seconds", "Duration of engine steps", STEP_SECONDS_BUCKETS),
    "step_tokens": ("step_tokens", "Tokens that a step ran, prompts and decodes together", STEP_TOKENS_BUCKETS),
}
"""Key of `<key>_buckets` and `<key>_total` to metric name, meaning and bounds."""

_BUILD_FACTS = ("model", "architecture", "executor", "arithmetic")


class EngineCollector(Collector):
    """Shows the engine's last heartbeat."""

    def __init__(self, read_status: Callable[[], StatusPort]) -> None:
        self._read_status = read_status

    def collect(self) -> Iterator[Metric]:
        """Yield what the last heartbeat said."""
        status = self._read_status()
        stats = status.stats
        yield GaugeMetricFamily("trivium_engine_ready", "1 when the engine takes requests", float(status.is_ready))
        yield GaugeMetricFamily(
            "trivium_engine_heartbeat_age_seconds", "Seconds since the engine's loop moved", status.heartbeat_age_s
        )
        yield CounterMetricFamily(
            "trivium_engine_restarts", "Engines that were started after the first", max(0, status.epoch - 1)
        )
        yield _build_info(status.info)
        for key, (name, meaning) in SINGLE.items():
            yield _family(key)(f"trivium_{name}", meaning, number(stats, key))
        for key, metric in BY_LABEL.items():
            yield _by_label(key, metric, stats)
        yield from _kv_metrics(stats)
        yield _hit_ratio(stats)
        for key, (name, meaning, bounds) in HISTOGRAMS.items():
            counts = stats.get(f"{key}_buckets")
            if isinstance(counts, Sequence) and len(counts) == len(bounds) + 1:
                yield histogram(f"trivium_{name}", meaning, bounds, counts, number(stats, f"{key}_total"))


class Silence:
    """The status of an engine that has said nothing; shows which metrics there are."""

    is_ready = False
    is_restarting = False
    heartbeat_age_s = 0.0
    epoch = 0
    info: Mapping[str, object] = MappingProxyType({})
    stats: Mapping[str, object] = MappingProxyType({
        f"{key}_buckets": [0] * (len(bounds) + 1) for key, (_, _, bounds) in HISTOGRAMS.items()
    })
    error: str | None = None


def histogram(
    name: str, meaning: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> HistogramMetricFamily:
    """Make a histogram of counts per bucket, not cumulative, the last of which is of what exceeds all bounds."""
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return HistogramMetricFamily(name, meaning, list(zip(ends, itertools.accumulate(counts), strict=True)), total)


def number(stats: Mapping[str, object], key: str) -> float:
    """Read a number of the engine's counters; 0 when it is not there."""
    value = stats.get(key, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _family(key: str) -> type[CounterMetricFamily | GaugeMetricFamily]:
    return CounterMetricFamily if key.endswith("_total") else GaugeMetricFamily


def _by_label(key: str, metric: ByLabel, stats: Mapping[str, object]) -> Metric:
    family = _family(key)(f"trivium_{metric.name}", metric.meaning, labels=(metric.label,))
    values = stats.get(key)
    found = values if isinstance(values, Mapping) else {}
    for value in dict.fromkeys((*metric.values, *sorted(map(str, found)))):
        family.add_metric((str(value),), number(found, value))
    return family


def _build_info(info: Mapping[str, object]) -> Metric:
    labels = ("version", *_BUILD_FACTS)
    family = GaugeMetricFamily("trivium_build_info", "1; what is served, and by what, is in the labels", labels=labels)
    family.add_metric((__version__, *(str(info.get(fact, "")) for fact in _BUILD_FACTS)), 1.0)
    return family


def _kv_metrics(stats: Mapping[str, object]) -> Iterator[Metric]:
    pages = GaugeMetricFamily("trivium_kv_pages", "KV pages by who holds them", labels=("state",))
    for state in ("used", "cached", "free"):
        pages.add_metric((state,), number(stats, f"kv_pages_{state}"))
    yield pages
    total = number(stats, "kv_pages_total")
    usage = number(stats, "kv_pages_used") / total if total else 0.0
    yield GaugeMetricFamily("trivium_kv_usage_ratio", "Share of the KV pages that running answers hold", usage)


def _hit_ratio(stats: Mapping[str, object]) -> Metric:
    queried = number(stats, "prefix_query_tokens_total")
    ratio = number(stats, "prefix_hit_tokens_total") / queried if queried else 0.0
    return GaugeMetricFamily("trivium_prefix_cache_hit_ratio", "Prompt tokens found in the prefix cache, of all", ratio)
