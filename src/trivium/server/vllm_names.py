"""vLLM's names for our metrics: a table for people with dashboards, and the same as a second set of metrics.

With `--vllm-metric-names`, `/metrics` shows each metric of the table a second time, under vLLM's name and with the
labels that its dashboards select by (`model_name`, `engine`), so that a dashboard made for vLLM works as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample


class Alias(NamedTuple):
    """What vLLM calls a metric of ours."""

    name: str
    labels: Mapping[str, str | None] = {}
    """Our labels that have another name there; `None` where the metric is summed over it."""


VLLM_NAMES: Mapping[str, Alias] = {
    "time_to_first_token_seconds": Alias("time_to_first_token_seconds"),
    "inter_token_seconds": Alias("inter_token_latency_seconds"),
    "time_per_output_token_seconds": Alias("request_time_per_output_token_seconds"),
    "answer_seconds": Alias("e2e_request_latency_seconds"),
    "queue_seconds": Alias("request_queue_time_seconds"),
    "prefill_seconds": Alias("request_prefill_time_seconds"),
    "decode_seconds": Alias("request_decode_time_seconds"),
    "inference_seconds": Alias("request_inference_time_seconds"),
    "prompt_tokens": Alias("prompt_tokens"),
    "cached_prompt_tokens": Alias("prompt_tokens_cached", {"tier": None}),
    "generation_tokens": Alias("generation_tokens"),
    "answer_prompt_tokens": Alias("request_prompt_tokens"),
    "answer_generation_tokens": Alias("request_generation_tokens"),
    "answer_max_tokens": Alias("request_params_max_tokens"),
    "step_tokens": Alias("iteration_tokens_total"),
    "requests_running": Alias("num_requests_running"),
    "requests_waiting": Alias("num_requests_waiting"),
    "requests_waiting_by_reason": Alias("num_requests_waiting_by_reason"),
    "preemptions": Alias("num_preemptions"),
    "kv_usage_ratio": Alias("kv_cache_usage_perc"),
    "prefix_cache_query_tokens": Alias("prefix_cache_queries"),
    "prefix_cache_hit_tokens": Alias("prefix_cache_hits"),
    "answers_finished": Alias("request_success", {"reason": "finished_reason"}),
}
"""Our metric, without `trivium_`, to vLLM's, without `vllm:`; both as they are before a counter's `_total`."""


class VllmNames(Collector):
    """Shows the metrics of a registry again, under vLLM's names."""

    def __init__(self, registry: CollectorRegistry, read_model: Callable[[], str]) -> None:
        """Make it.

        Args:
            registry: Ours; this collector must not be in it.
            read_model: Says what `model_name` is.
        """
        self._registry = registry
        self._read_model = read_model

    def collect(self) -> Iterator[Metric]:
        """Yield what has a name there."""
        for family in self._registry.collect():
            alias = VLLM_NAMES.get(family.name.removeprefix("trivium_"))
            if alias is not None:
                yield self._renamed(family, alias)

    def _renamed(self, family: Metric, alias: Alias) -> Metric:
        theirs = Metric(f"vllm:{alias.name}", family.documentation, family.type)
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            labels = {"model_name": self._read_model(), "engine": "0"}
            for label, value in sample.labels.items():
                if (name := alias.labels.get(label, label)) is not None:
                    labels[name] = value
            key = theirs.name + sample.name.removeprefix(family.name), tuple(labels.items())
            sums[key] = sums.get(key, 0.0) + sample.value
        theirs.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
        return theirs
