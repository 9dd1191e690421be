"""How a plan is come by: named, found or compiled, and with which tactics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fake_bench import FakeBench
from support.small_plan import LIMITS, small_key, small_plan, small_stored
from trivium.assembly import compiled
from trivium.assembly.compiled import machine_limits, obtain_plan, tune_plan
from trivium.base.clock import FakeClock
from trivium.base.errors import PlanMismatchError
from trivium.config.options import EngineOptions
from trivium.config.resolve import options_from
from trivium.plan.cost import MachineLimits
from trivium.plan.format import read_plan, write_plan
from trivium.plan.program import Plan

KEY, ORIGIN = small_key(), small_stored().origin
FOUND = MachineLimits(memory_bytes=1.0, cache_bytes=2.0, operations={"int8": 3.0, "bf16": 4.0, "f32": 5.0})


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """Tactics that take as long as a test says, in place of kernels."""
    bench = FakeBench(FakeClock(), lambda _, tactic: {"auto": 0.002, "direct": 0.001, "unpacked": 0.003}[tactic])
    own = compiled._bench
    monkeypatch.setattr(compiled, "_bench", lambda level: own(level) if level == "off" else bench)
    return bench


def options(cache: Path, **more: Any) -> EngineOptions:
    return options_from({"cache_dir": str(cache), **more})


def never() -> Plan:
    raise AssertionError("a plan was compiled")


def test_a_plan_is_compiled_then_found(tmp_path: Path) -> None:
    first = obtain_plan(options(tmp_path), KEY, ORIGIN, small_plan)
    again = obtain_plan(options(tmp_path), KEY, ORIGIN, never)
    assert (first.was_built, again.was_built) == (True, False)
    assert first.plan == again.plan == small_plan()


def test_a_named_plan_is_taken_as_it_is(tmp_path: Path) -> None:
    write_plan(small_stored(), tmp_path / "plan")
    held = obtain_plan(options(tmp_path / "cache", plan=str(tmp_path / "plan")), KEY, ORIGIN, never)
    assert held.plan == small_plan()
    assert held.directory == tmp_path / "plan"
    other = small_key(limits=type(LIMITS)(max_num_batched_tokens=1, max_logit_rows=1))
    with pytest.raises(PlanMismatchError, match="max_num_batched_tokens 128, asked 1"):
        obtain_plan(options(tmp_path / "cache", plan=str(tmp_path / "plan")), other, ORIGIN, never)


def test_a_start_times_nothing_and_takes_what_was_timed(tmp_path: Path, bench: FakeBench) -> None:
    untuned = obtain_plan(options(tmp_path), KEY, ORIGIN, small_plan)
    assert bench.runs == []
    tuned, tuning = tune_plan(options(tmp_path), untuned, "quick")
    assert tuning.num_timed > 0
    assert tuned.plan != untuned.plan
    started = obtain_plan(options(tmp_path), KEY, ORIGIN, never)
    assert started.plan == tuned.plan


def test_what_was_timed_is_written_to_the_plan(tmp_path: Path) -> None:
    untuned = obtain_plan(options(tmp_path), KEY, ORIGIN, small_plan)
    tuned, _ = tune_plan(options(tmp_path), untuned, "quick")
    assert tuned.directory is not None
    assert read_plan(tuned.directory).plan == tuned.plan


def test_a_start_may_be_told_to_tune(tmp_path: Path, bench: FakeBench) -> None:
    held = obtain_plan(options(tmp_path, tune="quick"), KEY, ORIGIN, small_plan)
    assert bench.runs
    assert held.plan != small_plan()


def test_tactics_of_another_machine_are_dropped_when_a_plan_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untuned = obtain_plan(options(tmp_path), KEY, ORIGIN, small_plan)
    tune_plan(options(tmp_path), untuned, "quick")
    here = compiled.this_machine()
    monkeypatch.setattr(compiled, "this_machine", lambda: type(here)(**{**_fields(here), "processor": "another"}))
    assert obtain_plan(options(tmp_path), KEY, ORIGIN, never).plan == small_plan()


def _fields(machine: Any) -> dict[str, Any]:
    return {name: getattr(machine, name) for name in type(machine).__slots__}


def test_limits_are_measured_when_fresh_ones_are_asked_for_or_none_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure() -> MachineLimits:
        measured.append(1)
        return FOUND

    monkeypatch.setattr(compiled, "measure_limits", measure)
    for is_fresh, count in ((False, 1), (False, 1), (True, 2), (False, 2)):
        assert machine_limits(options(tmp_path), is_fresh=is_fresh) == FOUND
        assert len(measured) == count
