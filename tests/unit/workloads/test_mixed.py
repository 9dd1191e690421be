"""What the mixed load's figures are made of."""

from __future__ import annotations

import pytest

from benchmarks.mixed import Run, gaps_inside, table
from trivium.bench.measure import Measured


def answer(began_s: float, ttft_s: float, *gaps_s: float) -> Measured:
    ended_s = began_s + ttft_s + sum(gaps_s)
    return Measured(
        began_s=began_s, ttft_s=ttft_s, gaps_s=list(gaps_s), ended_s=ended_s, completion_tokens=1 + len(gaps_s)
    )


def test_gaps_beside_a_long_prompt_are_those_that_overlap_its_wait() -> None:
    stream = answer(0.0, 1.0, 1.0, 2.0, 4.0, 8.0)  # tokens at 1, 2, 4, 8, 16
    assert list(gaps_inside(stream, [(2.5, 3.0)])) == [2.0]
    assert list(gaps_inside(stream, [(3.9, 4.1)])) == [2.0, 4.0]
    assert list(gaps_inside(stream, [(0.0, 1.0), (16.0, 20.0)])) == []


def test_a_run_tells_gaps_waits_and_rate() -> None:
    run = Run([answer(0.0, 1.0, 0.5, 0.5)], [answer(1.2, 0.2, 0.1)], 2.5, 0.0)
    assert run.tokens_per_s == pytest.approx(5 / 2.5)
    values = run.values_s()
    assert values["gap"] == [0.5, 0.5]
    assert values["gap beside"] == [0.5]
    assert values["TTFT long"] == [0.2]


def test_the_table_has_the_medians_of_the_rounds() -> None:
    rounds = [Run([answer(0.0, 0.05, gap_s)], [answer(0.0, gap_s)], 1.0, 0.02) for gap_s in (0.1, 0.3, 0.2)]
    head, line = table({"fixed": rounds})
    assert "gap p50 / p99" in head
    assert line.startswith("fixed")
    assert line.count("200.0 / 200.0") == 4  # gap, gap beside, time per token, first token of the long prompt
