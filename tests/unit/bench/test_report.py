"""Figures are what a reader would compute by hand from the same measurements."""

from __future__ import annotations

import json

import pytest

from trivium.bench.measure import Measured
from trivium.bench.report import spread, summarize, to_json, to_table


def _measured(*, ttft: float, gaps: list[float], cached: int = 0, error: str | None = None) -> Measured:
    return Measured(
        began_s=10.0,
        ttft_s=ttft,
        gaps_s=gaps,
        ended_s=10.0 + ttft + sum(gaps),
        prompt_tokens=8,
        cached_tokens=cached,
        completion_tokens=len(gaps) + 1,
        error=error,
    )


def test_percentiles_follow_the_nearest_rank_rule() -> None:
    found = spread([0.001 * value for value in range(100, 0, -1)])

    assert found is not None
    assert (found.p50_ms, found.p90_ms, found.p99_ms) == pytest.approx((50, 90, 99))
    assert found.range_ms == pytest.approx(99)
    assert spread([]) is None


def test_one_value_is_every_percentile() -> None:
    found = spread([0.25])

    assert found is not None
    assert (found.p50_ms, found.p99_ms, found.range_ms) == (250, 250, 0)


def test_cold_and_cached_first_tokens_are_told_apart_and_failures_left_out() -> None:
    results = [
        _measured(ttft=0.5, gaps=[0.1, 0.3]),
        _measured(ttft=0.1, gaps=[0.1], cached=7),
        _measured(ttft=9.0, gaps=[], error="HTTP 500"),
    ]

    figures = summarize(results, 2.0, concurrency=2, price_per_hour=3.6)

    assert figures.ttft_cold is not None
    assert figures.ttft_cold.p50_ms == pytest.approx(500)
    assert figures.ttft_cached is not None
    assert figures.ttft_cached.count == 1
    assert (figures.num_failed, figures.first_error) == (1, "HTTP 500")
    assert figures.output_tokens == 5
    assert figures.output_tokens_per_s == pytest.approx(2.5)
    assert figures.tpot is not None
    assert figures.tpot.p99_ms == pytest.approx(200)
    assert figures.cost_per_million_tokens == pytest.approx(0.002 / 21 * 1e6)


def test_every_figure_reaches_the_table_and_the_json() -> None:
    figures = summarize([_measured(ttft=0.5, gaps=[0.1])], 1.0, concurrency=4, price_per_hour=None)

    table = to_table([figures])
    record = json.loads(to_json([figures], url="http://x"))

    assert len(table.columns) == 2
    assert record["url"] == "http://x"
    assert record["runs"][0]["concurrency"] == 4
    assert record["runs"][0]["cost_per_million_tokens"] is None


@pytest.mark.parametrize(("cached", "is_cached"), [(0, False), (1, False), (2, True), (8, True)])
def test_a_few_cached_tokens_do_not_make_a_request_warm(cached: int, is_cached: bool) -> None:
    assert _measured(ttft=0.5, gaps=[], cached=cached).is_cached == is_cached
