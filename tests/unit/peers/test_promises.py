"""Promises are judged against the best peer, and one that was not measured is not kept."""

from __future__ import annotations

import pytest

from benchmarks.peers.promises import are_kept, judge
from benchmarks.peers.record import Record
from benchmarks.peers.report import to_markdown
from benchmarks.peers.summary import summarize
from support.peer_records import record

FIGURES = {"seconds": 10.0, "prompt_tokens": 1000.0, "computed_tokens": 400.0, "ttft_cold_p50_ms": 5.0}


def shared(engine: str, rate: float, point: str = "rag 100", **figures: float) -> Record:
    suite = point.rpartition(" ")[0]
    return record(engine, "v", rate, point=point, suite=suite, figures={**FIGURES, **figures})


def both(ours: float, *peers: float) -> list[Record]:
    made = []
    for point in ("rag 100", "multi-turn 16"):
        made += [shared("trivium", ours, point), *(shared(f"peer{idx}", rate, point) for idx, rate in enumerate(peers))]
    return made


def test_the_best_peer_is_the_one_to_beat() -> None:
    [first, _] = list(judge(summarize(both(90.0, 10.0, 29.0), 0.15)))
    assert first.point == "multi-turn 16"  # in the order of the points
    assert first.peer is not None
    assert (first.peer.engine, first.ratio) == ("peer1", pytest.approx(90 / 29))
    assert first.is_kept


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        (both(90.0, 30.0), True),
        (both(89.0, 30.0), False),
        (both(90.0), False),
        ([shared("trivium", 90.0), shared("peer", 10.0)], False),
        ([], False),
    ],
)
def test_a_promise_is_kept_only_where_all_of_it_was_measured(records: list[Record], kept: bool) -> None:
    assert are_kept(records, 0.15) is kept


def test_the_report_shows_wall_time_avoided_tokens_and_the_verdict() -> None:
    report = to_markdown([shared("trivium", 60.0), shared("peer", 30.0, seconds=20.0, computed_tokens=1000.0)], 0.15)
    assert "| rag 100 | trivium v | 10.0 | - | 60.0 | 1000 | 400.0 | 60% | 5.0 / - |" in report
    assert "| rag 100 | peer v | 20.0 | **2.00** | 30.0 | 1000 | 1000 | 0% |" in report
    assert "| rag 100 | peer v | 20.0 | 10.0 | **2.00** | 3 | no |" in report


def test_streams_and_long_prompts_have_a_table_of_their_own() -> None:
    mixed = shared("trivium", 60.0, "mixed 16", long_ttft_p50_ms=7.0, long_ttft_p99_ms=8.0)
    assert "| mixed 16 | trivium v | 7.0 / 8.0 | - / - | - / - |" in to_markdown([mixed], 0.15)


def test_a_report_of_other_points_has_neither_table() -> None:
    report = to_markdown([record("trivium", "v", 10.0)], 0.15)
    assert "share beginnings" not in report
    assert "promised" not in report
