"""Steps of decodes are built from the step before; whatever happens between two steps, they are what they would be."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from support.scheduling import Bench, full_spec, make_request, mixed_spec
from trivium.cache.spec import KVSpec
from trivium.schedule.build import StepBuilder
from trivium.schedule.decision import ScheduledStep
from trivium.schedule.step import Step

SPECS = pytest.mark.parametrize("spec", [full_spec(), mixed_spec(), full_spec(page_len=1)])


def decoding(spec: KVSpec, count: int = 3, **options: int) -> Bench:
    """A bench in which `count` requests of different lengths decode."""
    bench = Bench(spec, 64, **options)
    for idx in range(count):
        bench.scheduler.add(make_request(str(idx), range(idx, 3 * idx + 2), max_tokens=40))
    bench.step()
    return bench


def chosen(bench: Bench) -> ScheduledStep:
    scheduled = bench.next()
    assert scheduled is not None
    return scheduled


def assert_same(left: Step, right: Step) -> None:
    for name in (field.name for field in fields(Step)):
        ours, theirs = getattr(left, name), getattr(right, name)
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


@SPECS
def test_decodes_are_packed_as_any_entries_are(spec: KVSpec) -> None:
    bench = decoding(spec)
    for _ in range(20):
        scheduled = chosen(bench)
        builder = StepBuilder(bench.scheduler._running.tables, spec.page_len)
        assert_same(scheduled.step, builder.any_entries(scheduled.entries, ()))
        bench.executor.forward(scheduled.step)
        bench.commit(scheduled)


def test_arrays_that_say_who_runs_are_kept_while_the_same_requests_run() -> None:
    bench = decoding(full_spec())
    first, second = chosen(bench), None
    bench.executor.forward(first.step)
    bench.commit(first)
    second = chosen(bench)
    assert second.step.reaches is first.step.reaches
    assert (second.step.positions == first.step.positions + 1).all()


def test_a_step_that_was_discarded_is_built_again() -> None:
    bench = decoding(full_spec())
    first = chosen(bench)
    bench.scheduler.discard(first)
    assert_same(chosen(bench).step, first.step)


def test_a_request_that_starts_again_in_another_seat_is_another_batch() -> None:
    bench = Bench(full_spec(page_len=1), 64)
    one, other = (make_request(name, [7], max_tokens=9) for name in "ab")
    bench.scheduler.add(one, other)
    first = chosen(bench)
    seats = [entry.request.seat for entry in first.entries]
    assert first.step.num_tokens == 2
    bench.scheduler.discard(first)
    again = chosen(bench)
    assert [entry.request for entry in again.entries] == [one, other]
    assert [entry.request.seat for entry in again.entries] != seats
    bench.executor.forward(again.step)
    bench.commit(again)
    bench.run()


@SPECS
def test_who_leaves_and_who_comes_changes_the_batch(spec: KVSpec) -> None:
    bench = decoding(spec, count=4)
    entries = chosen(bench)
    bench.scheduler.abort(entries.entries[1].request)
    bench.executor.forward(entries.step)
    bench.commit(entries)
    assert bench.step() is not None
    bench.scheduler.add(make_request("late", [9, 9, 9], max_tokens=5))
    bench.run()
    bench.assert_idle_pages()
