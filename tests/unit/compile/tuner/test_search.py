"""Tuning: bits come first, then clear speed; the budget holds, and nothing is timed twice."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.fake_bench import FakeBench
from support.small_plan import small_plan
from trivium.base.clock import FakeClock
from trivium.compile.tuner import BUDGETS, Case, TuningCache, tune
from trivium.compile.tuner.measure import is_clearly_faster, time_tactics
from trivium.compile.tuner.space import cases_of
from trivium.plan.machine import Machine
from trivium.plan.tactic import kernel_for

MACHINE = Machine(processor="Test 9000", isa="avx2", threads=2, kernels="k1", compiler="GNU")
NUM_CASES = len(list(cases_of(small_plan())))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cache(tmp_path: Path) -> TuningCache:
    return TuningCache(tmp_path, MACHINE)


def by_tactic(**seconds: float) -> FakeBench:
    return FakeBench(FakeClock(), lambda _, tactic: seconds[tactic])


def test_the_fastest_tactic_is_taken_where_it_is_clearly_faster(cache: TuningCache) -> None:
    def cost(case: Case, tactic: str) -> float:
        best = "direct" if case.num_rows <= 4 else "unpacked"
        return 0.001 if tactic in {best, "auto" if case.num_rows == 16 else best} else 0.0011

    bench = FakeBench(FakeClock(), cost)
    tuned = tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s)
    qkv = tuned.plan.programs["base"].instructions[3]
    assert [kernel_for(qkv, rows) for rows in (1, 4, 5, 16, 17, 128)] == [
        "direct", "direct", "auto", "auto", "unpacked", "unpacked",
    ]  # fmt: skip
    assert (tuned.num_cases, tuned.num_timed, tuned.num_known, tuned.num_left) == (NUM_CASES, NUM_CASES, 0, 0)


def test_a_little_faster_is_not_enough(cache: TuningCache) -> None:
    bench = by_tactic(auto=0.001, direct=0.00098, unpacked=0.002)
    assert tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s).plan == small_plan()


def test_a_tactic_with_other_bits_is_refused_however_fast(cache: TuningCache, caplog: pytest.LogCaptureFixture) -> None:
    bench = by_tactic(auto=0.001, direct=0.00001, unpacked=0.0005)
    bench.wrong = lambda _, tactic: tactic == "direct"
    with caplog.at_level(logging.ERROR, "trivium"):
        tuned = tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s)
    assert len(tuned.rejected) == NUM_CASES == len(caplog.records)
    assert "direct of store q8[64] x 320:i4m_g32, 1 rows" in tuned.rejected
    kernels = {kernel_for(each, rows) for each in tuned.plan.programs["base"].instructions for rows in (1, 16, 128)}
    assert kernels == {"auto", "unpacked"}


def test_where_every_other_tactic_is_wrong_the_rule_stays_and_nothing_is_timed(cache: TuningCache) -> None:
    bench = by_tactic(auto=0.001, direct=0.00001, unpacked=0.0005)
    bench.wrong = lambda _, tactic: tactic != "auto"
    assert tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s).plan == small_plan()
    assert bench.runs == []


@pytest.mark.parametrize("level", ["quick", "full"])
def test_the_budget_ends_the_search_and_the_heaviest_come_first(cache: TuningCache, level: str) -> None:
    bench = by_tactic(auto=0.2, direct=0.1, unpacked=0.3)
    tuned = tune(small_plan(), cache, bench, level, clock=bench.clock.now_s)  # type: ignore[arg-type]
    assert 0 < tuned.num_timed < NUM_CASES
    assert tuned.num_timed + tuned.num_left == NUM_CASES
    per_case = tuned.seconds / tuned.num_timed
    assert BUDGETS[level] <= tuned.seconds < BUDGETS[level] + per_case  # type: ignore[index]
    timed = list(dict.fromkeys(case for case, _ in bench.runs))
    assert timed == list(cases_of(small_plan()))[: tuned.num_timed]


def test_what_was_timed_is_known_and_a_second_search_goes_on_with_the_rest(cache: TuningCache) -> None:
    slow = by_tactic(auto=0.2, direct=0.1, unpacked=0.3)
    first = tune(small_plan(), cache, slow, "quick", clock=slow.clock.now_s)
    rest = by_tactic(auto=0.002, direct=0.001, unpacked=0.003)
    second = tune(small_plan(), cache, rest, "quick", clock=rest.clock.now_s)
    assert (second.num_known, second.num_timed, second.num_left) == (first.num_timed, first.num_left, 0)
    third = tune(small_plan(), cache, rest, "quick", clock=rest.clock.now_s)
    assert (third.num_known, third.num_timed) == (NUM_CASES, 0)
    assert third.plan == second.plan != small_plan()


def test_off_takes_what_is_known_and_times_nothing(cache: TuningCache) -> None:
    bench = by_tactic(auto=0.002, direct=0.001, unpacked=0.003)
    untuned = tune(small_plan(), cache, bench, "off", clock=bench.clock.now_s)
    assert (untuned.plan, untuned.num_left, bench.runs) == (small_plan(), NUM_CASES, [])
    tuned = tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s)
    assert tune(small_plan(), cache, bench, "off", clock=bench.clock.now_s).plan == tuned.plan


@pytest.mark.parametrize(
    "other",
    [
        replace(MACHINE, processor="Test 9001"),
        replace(MACHINE, isa="avx512"),
        replace(MACHINE, threads=4),
        replace(MACHINE, kernels="k2"),
        replace(MACHINE, compiler="Clang"),
    ],
)
def test_what_another_machine_timed_is_never_used(tmp_path: Path, cache: TuningCache, other: Machine) -> None:
    bench = by_tactic(auto=0.002, direct=0.001, unpacked=0.003)
    tune(small_plan(), cache, bench, "quick", clock=bench.clock.now_s)
    elsewhere = tune(small_plan(), TuningCache(tmp_path, other), bench, "off", clock=bench.clock.now_s)
    assert elsewhere.plan == small_plan()
    assert elsewhere.num_known == 0


def test_progress_is_told_case_by_case(cache: TuningCache) -> None:
    told: list[tuple[str, int, int]] = []
    bench = by_tactic(auto=0.002, direct=0.001, unpacked=0.003)
    tune(
        small_plan(), cache, bench, "quick", clock=bench.clock.now_s,
        on_case=lambda case, number, total: told.append((str(case), number, total)),
    )  # fmt: skip
    assert [number for _, number, _ in told] == list(range(NUM_CASES))
    assert {total for *_, total in told} == {NUM_CASES}


def test_every_round_times_every_tactic_and_begins_with_another() -> None:
    spikes: Iterator[float] = iter([9.0, 9.0, 9.0, 0.0] + [0.0] * 100)
    bench = FakeBench(FakeClock(), lambda _, tactic: {"auto": 0.002, "direct": 0.001}[tactic] + next(spikes))
    seconds = time_tactics(bench.prepare(next(iter(cases_of(small_plan())))), ["auto", "direct"], 5)
    assert statistics.median(seconds["auto"]) == pytest.approx(0.002)
    assert sorted(seconds["direct"]) == pytest.approx([0.001] * 5)
    order = [tactic for _, tactic in bench.runs[2:]]  # behind the two that warm up
    assert order == ["auto", "direct", "direct", "auto", "auto", "direct", "direct", "auto", "auto", "direct"]


@pytest.mark.parametrize(
    ("seconds", "than", "is_clear"),
    [
        ([0.9] * 5, [1.0] * 5, True),
        ([0.98] * 5, [1.0] * 5, False),
        ([0.5, 0.5, 0.5, 1.1, 1.1], [1.0] * 5, False),  # a coin that fell well
        ([0.5, 0.5, 0.5, 0.5, 9.0], [1.0] * 5, True),
        ([0.9, 9.0, 0.09, 0.9, 0.9], [1.0, 10.0, 0.1, 1.0, 1.0], True),  # moods that both met
    ],
)
def test_a_tactic_must_win_by_much_and_in_most_rounds(seconds: list[float], than: list[float], is_clear: bool) -> None:
    assert is_clearly_faster(seconds, than) == is_clear
