"""Steps of the steady state are moved on in place; whatever happens between two steps, they are what they would be."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

import numpy as np
import pytest

from support.scheduling import Bench, full_spec, make_request, mixed_spec
from trivium.base.errors import InternalError
from trivium.base.ids import TokenId
from trivium.cache.spec import KVSpec
from trivium.schedule.build import build_step
from trivium.schedule.decision import ScheduledStep
from trivium.schedule.steady import SteadyBatch, is_steady
from trivium.schedule.step import Step
from trivium.schedule.tables import WIDTH_STEP

SPECS = pytest.mark.parametrize("spec", [full_spec(), mixed_spec(), full_spec(page_len=1)])


def decoding(spec: KVSpec, count: int = 3, *, max_tokens: int = 60, num_pages: int = 256) -> Bench:
    """A bench in which `count` requests of different lengths decode."""
    bench = Bench(spec, num_pages)
    for idx in range(count):
        bench.scheduler.add(make_request(str(idx), range(idx, 3 * idx + 2), max_tokens=max_tokens))
    bench.step()
    return bench


def chosen(bench: Bench) -> ScheduledStep:
    scheduled = bench.next()
    assert scheduled is not None
    return scheduled


def run(bench: Bench, scheduled: ScheduledStep) -> None:
    bench.executor.forward(scheduled.step)
    bench.commit(scheduled)


def assert_same(left: Step, right: Step) -> None:
    for name in (field.name for field in fields(Step)):
        ours, theirs = getattr(left, name), getattr(right, name)
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


@SPECS
def test_a_step_that_was_moved_on_is_what_building_it_gives(spec: KVSpec) -> None:
    bench = decoding(spec)
    first = chosen(bench)
    run(bench, first)
    for _ in range(2 * WIDTH_STEP):
        scheduled = chosen(bench)
        assert scheduled is first
        assert_same(scheduled.step, build_step(scheduled.entries, bench.scheduler._running.tables, ()))
        run(bench, scheduled)


def test_nothing_is_allocated_for_a_step_that_is_moved_on() -> None:
    bench = decoding(full_spec())
    scheduled = chosen(bench)
    arrays = [id(getattr(scheduled.step, field.name)) for field in fields(Step)]
    run(bench, scheduled)
    again = chosen(bench)
    assert [id(getattr(again.step, field.name)) for field in fields(Step)] == arrays


def test_tables_that_become_too_narrow_are_taken_anew() -> None:
    bench = decoding(full_spec(page_len=1), count=2)
    first = chosen(bench)
    run(bench, first)
    widths = set()
    while (scheduled := bench.next()) is first:
        widths.add(scheduled.step.page_tables[0].shape[1])
        run(bench, scheduled)
    assert widths == {WIDTH_STEP * count for count in range(1, 5)}


def test_a_step_that_was_discarded_is_moved_on_to_itself() -> None:
    bench = decoding(full_spec())
    run(bench, chosen(bench))
    scheduled = chosen(bench)
    before = deepcopy(scheduled.step)
    bench.scheduler.discard(scheduled)
    assert_same(chosen(bench).step, before)


def test_a_request_that_starts_again_in_another_seat_is_another_batch() -> None:
    bench = Bench(full_spec(page_len=1), 64)
    one, other = (make_request(name, [7], max_tokens=9) for name in "ab")
    bench.scheduler.add(one, other)
    first = chosen(bench)
    seats = [entry.request.seat for entry in first.entries]
    assert is_steady(first, bench.scheduler._running)
    bench.scheduler.discard(first)
    again = chosen(bench)
    assert [entry.request for entry in again.entries] == [one, other]
    assert [entry.request.seat for entry in again.entries] != seats
    run(bench, again)
    bench.run()


@SPECS
def test_who_leaves_and_who_comes_ends_the_batch(spec: KVSpec) -> None:
    bench = decoding(spec, count=4)
    scheduled = chosen(bench)
    bench.scheduler.abort(scheduled.entries[1].request)
    run(bench, scheduled)
    smaller = chosen(bench)
    assert len(smaller.entries) == 3
    run(bench, smaller)
    bench.scheduler.add(make_request("late", [9, 9, 9], max_tokens=5))
    larger = chosen(bench)
    assert [entry.num_tokens for entry in larger.entries] == [1, 1, 1, 3]
    run(bench, larger)
    bench.run()
    bench.assert_idle_pages()


def test_a_batch_without_a_page_for_its_next_token_is_chosen_anew() -> None:
    bench = decoding(full_spec(), count=3, max_tokens=30, num_pages=12)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    bench.assert_idle_pages()


def test_who_waits_starts_as_soon_as_a_seat_is_free() -> None:
    bench = Bench(full_spec(), 64, max_num_seqs=2)
    short, long, late = (make_request(n, [k], max_tokens=m) for k, (n, m) in enumerate([("a", 3), ("b", 9), ("c", 4)]))
    bench.scheduler.add(short, long, late)
    while short.finish_reason is None:
        assert len(chosen(bench).entries) == 2
        run(bench, bench.scheduler._in_flight)  # type: ignore[arg-type]
    assert [entry.request for entry in chosen(bench).entries] == [long, late]


def test_a_step_with_a_prompt_is_not_steady() -> None:
    bench = Bench(full_spec(), 64)
    bench.scheduler.add(make_request("a", range(5)))
    scheduled = chosen(bench)
    assert not is_steady(scheduled, bench.scheduler._running)
    with pytest.raises(InternalError, match="not steady"):
        SteadyBatch(scheduled, bench.scheduler._running, bench.scheduler._cache)


# -- prepared while the step before runs -----------------------------------------------------------------------------


def drawn(bench: Bench) -> np.ndarray:
    return np.array(bench.executor.drawn(), np.int32)


@pytest.mark.parametrize("spec", [full_spec(), full_spec(page_len=1)])
def test_a_step_that_was_prepared_is_the_one_that_is_chosen(spec: KVSpec) -> None:
    bench = decoding(spec)
    scheduled = chosen(bench)
    for _ in range(2 * WIDTH_STEP):
        running, before = scheduled.step, deepcopy(scheduled.step)
        bench.scheduler.prepare()
        assert bench.scheduler.check() == []
        bench.executor.forward(running)
        foreseen = bench.scheduler.foresee(drawn(bench))
        assert foreseen is not None
        assert_same(running, before)
        told = deepcopy(foreseen)
        bench.commit(scheduled)
        scheduled = chosen(bench)
        assert scheduled.step is foreseen
        assert_same(foreseen, told)
    run(bench, scheduled)
    bench.run()
    bench.assert_idle_pages()


def foreseen_after(bench: Bench, scheduled: ScheduledStep) -> Step | None:
    bench.scheduler.prepare()
    bench.executor.forward(scheduled.step)
    return bench.scheduler.foresee(drawn(bench))


def test_nothing_is_foreseen_where_somebody_ends_or_starts() -> None:
    bench = decoding(full_spec(), max_tokens=3)
    scheduled = chosen(bench)
    assert foreseen_after(bench, scheduled) is not None
    bench.scheduler.add(make_request("late", [9]))
    assert bench.scheduler.foresee(drawn(bench)) is None, "a request waits and there is a seat"
    bench.scheduler.abort(bench.scheduler._waiting.oldest())  # type: ignore[arg-type]
    assert bench.scheduler.foresee(drawn(bench)) is not None
    bench.scheduler.abort(scheduled.entries[0].request)
    assert bench.scheduler.foresee(drawn(bench)) is None, "a request has gone"
    bench.commit(scheduled)
    assert foreseen_after(bench, chosen(bench)) is None, "the last token of all is drawn"


def test_nothing_is_foreseen_where_a_token_may_end_an_answer() -> None:
    bench = Bench(full_spec(), 64)
    bench.scheduler.add(make_request("a", [7, 8], max_tokens=9, end_ids=(TokenId(3), TokenId(5))))
    bench.step()
    scheduled = chosen(bench)
    bench.scheduler.prepare()
    found = [bench.scheduler.foresee(np.array([token], np.int32)) is None for token in range(7)]
    assert found == [token in (3, 5) for token in range(7)]
    run(bench, scheduled)


def test_nothing_is_foreseen_where_windows_move() -> None:
    bench = decoding(mixed_spec())
    assert foreseen_after(bench, chosen(bench)) is None
