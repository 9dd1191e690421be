"""Write docs/grafana/trivium.json, a dashboard of the server's metrics; with --check, fail when the file is behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from generated import write_or_compare

TARGET = Path(__file__).resolve().parent.parent / "docs" / "grafana" / "trivium.json"
SELECT = 'instance=~"$instance"'
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3


class Panel(NamedTuple):
    """A graph, and the queries of its lines."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    """(query, legend)."""


def rate(name: str, by: str = "") -> str:
    """Write the rate of a counter, summed over all labels but one."""
    of = f" by ({by})" if by else ""
    return f"sum{of} (rate(trivium_{name}{{{SELECT}}}[$__rate_interval]))"


def gauge(name: str, by: str = "") -> str:
    """Write a gauge, summed over all labels but one."""
    return f"sum{f' by ({by})' if by else ''} (trivium_{name}{{{SELECT}}})"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    """Write the median and two high quantiles of a histogram."""
    buckets = f"sum by (le) (rate(trivium_{name}_bucket{{{SELECT}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {buckets})", f"p{100 * q:g}") for q in (0.5, 0.9, 0.99))


def worst(name: str, how: str = "max") -> str:
    """Write the largest, or smallest, value of a gauge over the instances."""
    return f"{how} (trivium_{name}{{{SELECT}}})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "What clients see": (
        Panel("Time to first token", "s", quantiles("time_to_first_token_seconds")),
        Panel("Between two tokens", "s", quantiles("inter_token_seconds")),
        Panel("Time per output token of an answer", "s", quantiles("time_per_output_token_seconds")),
        Panel("Whole answer", "s", quantiles("answer_seconds")),
        Panel("HTTP requests by status", "reqps", ((rate("requests_total", "status"), "{{status}}"),)),
        Panel("HTTP errors by code", "reqps", ((rate("request_errors_total", "code"), "{{code}}"),)),
        Panel("HTTP requests, duration", "s", quantiles("request_duration_seconds")),
        Panel("HTTP requests under way", "short", ((gauge("open_requests"), "open"),)),
        Panel("Answers by finish reason", "reqps", ((rate("answers_finished_total", "reason"), "{{reason}}"),)),
    ),
    "Tokens": (
        Panel(
            "Tokens per second",
            "short",
            (
                (rate("prompt_tokens_total"), "prompt"),
                (rate("generation_tokens_total"), "generated"),
                (rate("forced_tokens_total"), "forced, not drawn"),
            ),
        ),
        Panel(
            "Prompt tokens from the cache, by tier",
            "short",
            ((rate("cached_prompt_tokens_total", "tier"), "{{tier}}"),),
        ),
        Panel("Prompt length", "short", quantiles("answer_prompt_tokens")),
        Panel("Answer length", "short", quantiles("answer_generation_tokens")),
        Panel(
            "Answer length that admission expects",
            "short",
            (
                (gauge("expected_output_tokens"), "expected"),
                (gauge("expected_output_error_tokens"), "mean distance from it"),
            ),
        ),
        Panel("Answer length allowed", "short", quantiles("answer_max_tokens")),
    ),
    "Queue": (
        Panel(
            "Answers running and waiting",
            "short",
            ((gauge("requests_running"), "running"), (gauge("requests_waiting"), "waiting")),
        ),
        Panel("Waiting answers by reason", "short", ((gauge("requests_waiting_by_reason", "reason"), "{{reason}}"),)),
        Panel("Seconds waited per second, by reason", "short", ((rate("wait_seconds_total", "reason"), "{{reason}}"),)),
        Panel("Time in the queue", "s", quantiles("queue_seconds")),
        Panel("Time in prefill", "s", quantiles("prefill_seconds")),
        Panel("Time in decode", "s", quantiles("decode_seconds")),
        Panel("Time from first step to end", "s", quantiles("inference_seconds")),
        Panel(
            "Constraints",
            "ops",
            (
                (rate("grammars_compiled_total"), "compiled"),
                (rate("grammars_cached_total"), "found compiled"),
                (rate("grammars_failed_total"), "refused"),
                (rate("grammars_timed_out_total"), "not compiled in time"),
                (rate("grammars_evicted_total"), "evicted"),
                (gauge("grammars_waiting"), "waiting"),
                (gauge("grammars_kept"), "kept"),
                (rate("grammar_seconds_total"), "seconds of compiling"),
            ),
        ),
        Panel("Memory of kept constraints", "bytes", ((gauge("grammar_cache_bytes"), "about"),)),
        Panel(
            "Preemptions by kind",
            "ops",
            ((rate("preemptions_by_kind_total", "kind"), "{{kind}}"), (rate("preemptions_total"), "all")),
        ),
    ),
    "KV memory": (
        Panel(
            "Use and waste",
            "percentunit",
            (
                (worst("kv_usage_ratio"), "used by running answers"),
                (worst("kv_waste_ratio"), "of that, without a token"),
            ),
        ),
        Panel("Pages by holder", "short", ((gauge("kv_pages", "state"), "{{state}}"),)),
        Panel("Pages evicted", "ops", ((rate("evicted_pages_total"), "evicted"),)),
        Panel(
            "Lower tiers: pages",
            "short",
            ((gauge("tier_pages", "tier"), "{{tier}}"), (gauge("tier_off", "tier"), "{{tier}} is off")),
        ),
        Panel("Lower tiers: bytes", "bytes", ((gauge("tier_bytes", "tier"), "{{tier}}"),)),
        Panel(
            "Lower tiers: bytes moved per second",
            "Bps",
            (
                (rate("tier_written_bytes_total", "tier"), "{{tier}} written"),
                (rate("tier_read_bytes_total", "tier"), "{{tier}} read"),
            ),
        ),
        Panel(
            "Lower tiers: pages lost",
            "ops",
            (
                (rate("tier_evicted_pages_total", "tier"), "{{tier}} evicted"),
                (rate("tier_damaged_pages_total", "tier"), "{{tier}} damaged"),
                (rate("tier_unwritten_pages_total"), "not written"),
            ),
        ),
        Panel("Lower tiers: measured rates", "short", ((gauge("tier_rates", "what"), "{{what}}"),)),
        Panel(
            "Prefix cache hit ratio",
            "percentunit",
            (
                (f"{rate('prefix_cache_hit_tokens_total')} / {rate('prefix_cache_query_tokens_total')}", "now"),
                (worst("prefix_cache_hit_ratio"), "since the start"),
            ),
        ),
    ),
    "Engine": (
        Panel("Step", "s", quantiles("step_seconds")),
        Panel("Tokens in a step", "short", quantiles("step_tokens")),
        Panel(
            "Share of time spent scheduling",
            "percentunit",
            ((rate("scheduler_seconds_total"), "scheduling"), (rate("step_seconds_sum"), "in steps")),
        ),
        Panel("Ready", "short", ((worst("engine_ready", "min"), "ready"),)),
        Panel("Seconds since the loop moved", "s", ((worst("engine_heartbeat_age_seconds"), "age"),)),
        Panel(
            "Faults",
            "ops",
            (
                (rate("engine_restarts_total"), "engine restarts"),
                (rate("step_errors_total"), "failed steps"),
                (rate("accounting_differences_total"), "pages without owner"),
            ),
        ),
        Panel(
            "What is served",
            "short",
            ((f"trivium_build_info{{{SELECT}}}", "{{instance}} {{model}} {{arithmetic}} {{executor}} {{version}}"),),
        ),
    ),
}


def panels() -> Iterator[dict[str, Any]]:
    """Lay the panels out, row under row."""
    number, top = 1, 0
    for title, row in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
        }
        number, top = number + 1, top + 1
        for place, panel in enumerate(row):
            across, down = place % COLUMNS * WIDTH, top + place // COLUMNS * HEIGHT
            yield graph(panel, number, {"h": HEIGHT, "w": WIDTH, "x": across, "y": down})
            number += 1
        top += -(-len(row) // COLUMNS) * HEIGHT


def graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """Write one panel."""
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"lineWidth": 1, "fillOpacity": 5}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + idx), "datasource": DATA_SOURCE, "expr": query, "legendFormat": legend}
            for idx, (query, legend) in enumerate(panel.lines)
        ],
    }


def dashboard() -> dict[str, Any]:
    """Write the dashboard."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    query = "label_values(trivium_engine_ready, instance)"
    instance = {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": DATA_SOURCE,
        "hide": 0,
        "refresh": 2,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "uid": "trivium",
        "title": "Trivium",
        "description": "Metrics of Trivium servers; written by tools/grafana_dashboard.py.",
        "tags": ["trivium", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [source, instance]},
        "annotations": {"list": []},
        "panels": list(panels()),
    }


def page() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, page, about=__doc__, behind="tools/grafana_dashboard.py: run it"))
