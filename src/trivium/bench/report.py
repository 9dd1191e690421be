"""From measured requests to figures, tables, JSON and plots."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from trivium.bench.measure import Measured
    from trivium.bench.options import ReportOptions

PLOT_KINDS = (".svg", ".png", ".pdf")
_MILLI = 1000.0
_SPREADS = {
    "ttft_cold": "time to first token, cold",
    "ttft_cached": "time to first token, cached",
    "tpot": "time per output token",
    "itl": "gap between pieces of text",
    "e2e": "end to end",
}
_PLOTTED = ("ttft_cold", "ttft_cached", "tpot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in milliseconds."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    range_ms: float
    """Largest less smallest."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run at one load."""

    concurrency: int
    """Requests that were open at the same time: as asked for, or the most there were when they came at a rate."""
    rate: float | None
    """Mean arrivals per second, when requests came at a rate."""
    seconds: float
    num_requests: int
    num_failed: int
    first_error: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_cold: Spread | None
    """Time to first token of requests that computed more than three quarters of their prompt."""
    ttft_cached: Spread | None
    """Time to first token of requests that found at least a quarter of their prompt in the cache."""
    tpot: Spread | None
    """Time per output token after the first."""
    itl: Spread | None
    """Gaps between pieces of text."""
    e2e: Spread | None
    cost_per_million_tokens: float | None
    """Price of a million prompt and output tokens, when a price per hour was given."""


def summarize(
    results: Sequence[Measured],
    seconds: float,
    *,
    concurrency: int,
    price_per_hour: float | None,
    rate: float | None = None,
) -> Figures:
    """Reduce measured requests to figures."""
    good = [result for result in results if result.error is None]
    prompt_tokens = sum(result.prompt_tokens for result in good)
    output_tokens = sum(result.completion_tokens for result in good)
    total = prompt_tokens + output_tokens
    cost = None if price_per_hour is None or not total else price_per_hour / 3600 * seconds / total * 1e6
    return Figures(
        concurrency=concurrency,
        rate=rate,
        seconds=seconds,
        num_requests=len(results),
        num_failed=len(results) - len(good),
        first_error=next((result.error for result in results if result.error), None),
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(result.cached_tokens for result in good),
        output_tokens=output_tokens,
        requests_per_s=len(good) / seconds,
        output_tokens_per_s=output_tokens / seconds,
        total_tokens_per_s=total / seconds,
        ttft_cold=spread([r.ttft_s for r in good if r.ttft_s is not None and not r.is_cached]),
        ttft_cached=spread([r.ttft_s for r in good if r.ttft_s is not None and r.is_cached]),
        tpot=spread([r.tpot_s for r in good if r.tpot_s is not None]),
        itl=spread([gap for r in good for gap in r.gaps_s]),
        e2e=spread([r.e2e_s for r in good]),
        cost_per_million_tokens=cost,
    )


def spread(seconds: Sequence[float]) -> Spread | None:
    """Percentiles by the nearest-rank rule; `None` without values."""
    if not seconds:
        return None
    ranked = sorted(seconds)

    def percentile(percent: int) -> float:
        rank = max(-(-len(ranked) * percent // 100), 1)
        return ranked[rank - 1] * _MILLI

    return Spread(
        p50_ms=percentile(50),
        p90_ms=percentile(90),
        p99_ms=percentile(99),
        range_ms=(ranked[-1] - ranked[0]) * _MILLI,
        count=len(ranked),
    )


def to_table(runs: Sequence[Figures]) -> Table:
    """Lay the runs out for a terminal, one column per run."""
    from rich.table import Table  # noqa: PLC0415  (start-up time)

    table = Table("figure")
    for run in runs:
        table.add_column(_heading(run), justify="right")
    for row in _rows(runs):
        table.add_row(*row)
    return table


def _rows(runs: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    yield "requests (failed)", *(f"{run.num_requests} ({run.num_failed})" for run in runs)
    yield "seconds", *(f"{run.seconds:.2f}" for run in runs)
    yield "requests/s", *(f"{run.requests_per_s:.2f}" for run in runs)
    yield "output tokens/s", *(f"{run.output_tokens_per_s:.1f}" for run in runs)
    yield "total tokens/s", *(f"{run.total_tokens_per_s:.1f}" for run in runs)
    yield "prompt tokens (cached)", *(f"{run.prompt_tokens} ({run.cached_tokens})" for run in runs)
    for name, label in _SPREADS.items():
        spreads: list[Spread | None] = [getattr(run, name) for run in runs]
        if not any(spreads):
            continue
        yield label, *("-" if one is None else f"of {one.count}" for one in spreads)
        for attribute, shown in (("p50_ms", "p50"), ("p90_ms", "p90"), ("p99_ms", "p99"), ("range_ms", "max - min")):
            yield f"  {shown} ms", *("-" if one is None else f"{getattr(one, attribute):.1f}" for one in spreads)
    if any(run.cost_per_million_tokens is not None for run in runs):
        yield "cost per million tokens", *(f"{run.cost_per_million_tokens or 0:.4f}" for run in runs)


def _heading(run: Figures) -> str:
    return f"concurrency {run.concurrency}" if run.rate is None else f"{run.rate:g}/s, at most {run.concurrency} open"


def to_json(runs: Sequence[Figures], **context: Any) -> str:
    """Write the runs and what they were made with as one JSON object."""
    return json.dumps({**context, "runs": [asdict(run) for run in runs]}, indent=2, default=str)


def check_targets(report: ReportOptions) -> None:
    """Check, before anything is measured, that results can be written where they shall go.

    Raises:
        ConfigError: A folder is missing, the kind of plot is unknown, or matplotlib is not installed.
    """
    for name, path in (("json_file", report.json_file), ("plot_file", report.plot_file)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{name} is {str(path)!r}; its folder must exist")
    if report.plot_file is None:
        return
    if report.plot_file.suffix not in PLOT_KINDS:
        raise ConfigError(f"plot_file is {str(report.plot_file)!r}; it must end in {', '.join(PLOT_KINDS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot_file needs matplotlib; install trivium[bench]")


def plot(runs: Sequence[Figures], path: Path) -> None:
    """Draw throughput and latency over concurrency; needs matplotlib (see `check_targets`)."""
    import matplotlib as mpl  # noqa: PLC0415  (optional dependency)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (optional dependency)

    levels = [run.concurrency for run in runs]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(levels, [run.output_tokens_per_s for run in runs], marker="o")
    left.set(xlabel="concurrency", ylabel="output tokens per second", ylim=(0, None), xticks=levels)
    for name in _PLOTTED:
        points = [(run.concurrency, getattr(run, name).p50_ms) for run in runs if getattr(run, name) is not None]
        if points:
            right.plot([x for x, _ in points], [y for _, y in points], marker="o", label=f"{_SPREADS[name]}, p50")
    right.set(xlabel="concurrency", ylabel="milliseconds", ylim=(0, None), xticks=levels)
    if right.lines:
        right.legend()
    figure.savefig(path)
    plt.close(figure)
