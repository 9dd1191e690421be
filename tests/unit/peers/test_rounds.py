"""Rounds interleave engines, begin elsewhere each time, and leave out what fell behind."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers.points import choose
from benchmarks.peers.record import Record
from benchmarks.peers.rounds import Plan, run
from benchmarks.peers.turns import Turn
from support.peer_records import MODEL, ScriptedEngine, record

OURS = ScriptedEngine("trivium", {"batch 16": ["own"], "batch 64": ["own"]})
PEER = ScriptedEngine("peer", {"batch 16": ["Q4_0", "BF16"], "batch 64": ["Q4_0"]})
PLAN = Plan(model=MODEL, engines=[PEER, OURS], points=choose(["batch"], ["16", "64"]), num_rounds=3)


class Taker:
    """Answers turns with scripted rates and remembers their order."""

    def __init__(self, rates: dict[tuple[str, str], float | None], others: float = 0.0) -> None:
        self.order: list[tuple[int, str, str]] = []
        self._rates = rates
        self._others = others

    def __call__(self, turn: Turn) -> Record:
        self.order.append((turn.run, turn.point.name, turn.variant))
        rate = self._rates.get((turn.point.name, turn.variant), 100.0)
        return record(
            turn.engine.name,
            turn.variant,
            rate,
            point=turn.point.name,
            run=turn.run,
            error="broken" if rate is None else None,
            others_cpu_share=self._others,
        )


def test_every_round_measures_every_point_by_all_and_begins_one_further_along() -> None:
    taker = Taker({})
    made = list(run(replace(PLAN, num_rounds=2), taker))
    assert taker.order == [
        (0, "batch 16", "Q4_0"),
        (0, "batch 16", "BF16"),
        (0, "batch 16", "own"),
        (0, "batch 64", "Q4_0"),
        (0, "batch 64", "own"),
        (1, "batch 16", "BF16"),
        (1, "batch 16", "own"),
        (1, "batch 16", "Q4_0"),
        (1, "batch 64", "own"),
        (1, "batch 64", "Q4_0"),
    ]
    assert len(made) == len(taker.order)


def test_a_peers_variant_that_fell_behind_is_not_measured_again_at_that_point() -> None:
    taker = Taker({("batch 16", "BF16"): 70.0})
    list(run(PLAN, taker))
    assert taker.order.count((0, "batch 16", "BF16")) == 1
    assert (1, "batch 16", "BF16") not in taker.order
    assert (2, "batch 16", "Q4_0") in taker.order


def test_a_variant_close_behind_goes_on_and_so_does_ours_however_slow() -> None:
    taker = Taker({("batch 16", "BF16"): 77.0, ("batch 16", "own"): 1.0})
    list(run(PLAN, taker))
    assert {(1, "batch 16", "BF16"), (2, "batch 16", "BF16"), (2, "batch 16", "own")} <= set(taker.order)


def test_a_variant_that_failed_twice_is_given_up() -> None:
    taker = Taker({("batch 16", "BF16"): None})
    list(run(PLAN, taker))
    assert [turn for turn in taker.order if turn[1:] == ("batch 16", "BF16")] == [
        (0, "batch 16", "BF16"),
        (1, "batch 16", "BF16"),
    ]


def test_a_disturbed_turn_is_taken_again_and_both_are_kept() -> None:
    taker = Taker({}, others=0.5)
    plan = replace(PLAN, num_rounds=1, points=PLAN.points[1:], retries=2)
    made = list(run(plan, taker))
    assert [turn[2] for turn in taker.order] == ["Q4_0"] * 3 + ["own"] * 3
    assert len(made) == 6


def test_formats_limit_peers_and_not_us() -> None:
    taker = Taker({})
    list(run(replace(PLAN, num_rounds=1, formats=["BF16"]), taker))
    assert [turn[1:] for turn in taker.order] == [("batch 16", "BF16"), ("batch 16", "own"), ("batch 64", "own")]
