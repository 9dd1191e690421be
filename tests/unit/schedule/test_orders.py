"""Orders: who starts first, who makes room, and that nobody waits beyond the bound."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from support.scheduling import Bench, full_spec, make_request, output_of
from support.scripted_executor import tokens_alone
from trivium.base.errors import CapacityError
from trivium.schedule.orders import ORDERS
from trivium.schedule.request import Request, RequestState

SPEC = full_spec(4)


def starts(bench: Bench, requests: Sequence[Request]) -> list[str]:
    """Run everything; return the ids in the order in which they started."""
    seen: list[str] = []
    bench.scheduler.add(*requests)
    while (scheduled := bench.step()) is not None:
        seen += [entry.request.request_id for entry in scheduled.entries if entry.is_fresh]
    return seen


def one_by_one(order: str, **options: object) -> Bench:
    return Bench(SPEC, 400, max_num_seqs=1, order=order, aging_s=1e6, **options)


def test_fcfs_starts_in_order_of_arrival() -> None:
    requests = [make_request(name, range(length)) for name, length in (("a", 30), ("b", 3), ("c", 9))]
    assert starts(one_by_one("fcfs"), requests) == ["a", "b", "c"]


def test_srf_starts_the_shortest_beside_the_oldest() -> None:
    bench = Bench(SPEC, 400, max_num_seqs=2, order="srf", aging_s=1e6)
    requests = [
        make_request(name, range(base, base + length), max_tokens=1)
        for name, base, length in (("long", 0, 60), ("middle", 100, 40), ("short", 200, 5))
    ]
    assert starts(bench, requests) == ["long", "short", "middle"]


def test_priority_starts_the_smallest_number_first_and_then_by_arrival() -> None:
    requests = [make_request(name, range(9), priority=rank) for name, rank in (("a", 1), ("b", 0), ("c", -1), ("d", 0))]
    assert starts(one_by_one("priority"), requests) == ["c", "b", "d", "a"]


def test_lpm_starts_the_longest_cached_prefix_first_also_when_it_was_cached_later() -> None:
    bench = one_by_one("lpm", look_ahead=False)
    tail = [7, 7, 7]
    warm = make_request("warm", range(40), max_tokens=1)
    cold = make_request("cold", range(100, 140), max_tokens=1)
    some = make_request("some", [*range(20), *tail], max_tokens=1)
    most = make_request("most", [*range(36), *tail], max_tokens=1)
    assert starts(bench, [warm, cold, some, most]) == ["warm", "most", "some", "cold"]
    assert (most.cached_len, some.cached_len) == (36, 20)


def test_dfs_starts_the_busiest_branch_first_and_keeps_neighbours_together() -> None:
    left, right = list(range(10)), list(range(50, 60))
    prompts = {"r1": [*right, 1], "l1": [*left, 1], "l2": [*left, 2], "r2": [*right, 2], "l3": [*left, 3]}
    requests = [make_request(name, prompt, max_tokens=1) for name, prompt in prompts.items()]
    assert starts(one_by_one("dfs", look_ahead=False), requests) == ["l1", "l2", "l3", "r1", "r2"]


def test_hrrn_prefers_the_short_until_the_long_has_waited_in_proportion() -> None:
    bench = one_by_one("hrrn")
    running = make_request("running", [1], max_tokens=2)
    long, early, late = (
        make_request(name, range(length), max_tokens=1) for name, length in (("long", 80), ("e", 8), ("l", 8))
    )
    bench.scheduler.add(running)
    bench.step()
    bench.scheduler.add(long)
    bench.clock.advance(1.0)
    bench.scheduler.add(early)
    bench.clock.advance(1.0)
    assert starts(bench, []) == ["e", "long"], "waited 1 s of 8 tokens is more than 2 s of 80"
    bench.scheduler.add(make_request("again", [1], max_tokens=2))
    bench.step()
    aged = make_request("aged", range(80), max_tokens=1)
    bench.scheduler.add(aged)
    bench.clock.advance(50.0)
    bench.scheduler.add(late)
    bench.clock.advance(1.0)
    assert starts(bench, []) == ["aged", "l"], "waited 51 s of 80 tokens is more than 1 s of 8"


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_every_order_answers_as_if_alone_and_starts_everybody(order: str) -> None:
    rng = random.Random(5)  # noqa: S311
    bench = Bench(SPEC, 40, max_num_seqs=4, max_num_batched_tokens=16, order=order)
    requests = [
        make_request(str(idx), [idx % 3, *[1] * rng.randint(0, 20), idx % 5], priority=rng.randint(-1, 1), max_tokens=6)
        for idx in range(40)
    ]
    assert sorted(starts(bench, requests), key=int) >= sorted(request.request_id for request in requests)
    for request in requests:
        assert output_of(request) == tokens_alone(SPEC, request.tokens[: request.prompt_len], 6)
    bench.assert_idle_pages()


def test_a_better_priority_takes_the_place_of_the_worst_that_runs_where_that_is_asked_for() -> None:
    for is_asked in (True, False):
        bench = Bench(SPEC, 100, max_num_seqs=2, order="priority", preempt_for_priority=is_asked)
        low, high = (
            make_request(name, [rank, 1], max_tokens=20, priority=rank) for name, rank in (("low", 5), ("high", 1))
        )
        bench.scheduler.add(low, high)
        for _ in range(3):
            bench.step()
        urgent = make_request("urgent", [9, 9], max_tokens=2, priority=0)
        bench.scheduler.add(urgent)
        bench.step()
        assert (low.state is RequestState.WAITING) == is_asked
        assert (urgent.output_len > 0) == is_asked
        assert high.state is RequestState.RUNNING
        bench.run()
        for request in (low, high, urgent):
            count = len(output_of(request))
            assert output_of(request) == tokens_alone(SPEC, request.tokens[:2], count)


def test_who_is_due_is_not_preempted_for_one_that_is_not() -> None:
    bench = Bench(SPEC, 100, max_num_seqs=1, order="priority", preempt_for_priority=True, aging_s=1.0)
    due = [make_request(name, [ord(name), 1], max_tokens=8, priority=5) for name in "ab"]
    bench.scheduler.add(*due)
    bench.step()
    bench.clock.advance(2.0)
    better = [make_request(name, [ord(name), 1], max_tokens=8, priority=0) for name in "cd"]
    assert starts(bench, better) == ["b", "c", "d"]
    assert all(request.num_preemptions == 0 for request in (*due, *better))


def test_older_ones_that_are_due_take_the_place_of_worse_ones_once() -> None:
    bench = Bench(SPEC, 100, max_num_seqs=1, max_num_batched_tokens=1, order="priority", preempt_for_priority=True,
                  aging_s=1.0)  # fmt: skip
    requests = [
        make_request(str(idx), [9, idx, *[1] * 8], max_tokens=4, priority=rank)
        for idx, rank in enumerate([3, 1, 3, 0, 2, 0])
    ]
    bench.scheduler.add(*requests)
    bench.step()
    bench.clock.advance(2.0)
    for _ in range(200):
        bench.clock.advance(0.01)
        bench.step()
    assert all(request.state is RequestState.FINISHED for request in requests)
    assert sum(request.num_preemptions for request in requests) <= len(requests)


def test_nobody_is_preempted_for_one_that_would_not_fit_even_then() -> None:
    bench = Bench(SPEC, 12, max_num_seqs=4, order="priority", preempt_for_priority=True)
    equal, worse = (make_request(name, range(base, base + 12), max_tokens=8, priority=rank) for name, base, rank in
                    (("equal", 0, 0), ("worse", 50, 5)))  # fmt: skip
    bench.scheduler.add(equal, worse)
    bench.step()
    bench.scheduler.add(make_request("large", range(100, 140), max_tokens=1, priority=0))
    bench.step()
    assert worse.state is RequestState.RUNNING
    bench.run()


def test_memory_is_taken_from_the_worst_priority_first() -> None:
    bench = Bench(SPEC, 10, max_num_seqs=3, order="priority")
    requests = [
        make_request(name, [rank, 1, 2], max_tokens=24, priority=rank) for name, rank in (("c", 3), ("a", 1), ("b", 2))
    ]
    bench.scheduler.add(*requests)
    while not any(request.num_preemptions for request in requests):
        bench.step()
    assert [request.num_preemptions for request in requests] == [1, 0, 0]
    bench.run()


def test_a_request_that_waits_too_long_for_its_start_is_handed_back_with_a_time() -> None:
    bench = Bench(SPEC, 100, max_num_seqs=1, max_queue_wait=5.0)
    running, waiting = make_request("a", [1], max_tokens=50), make_request("b", [2])
    bench.scheduler.add(running, waiting)
    bench.step()
    bench.clock.advance(4.9)
    assert bench.scheduler.waited_too_long() == []
    bench.clock.advance(0.2)
    ((late, error),) = bench.scheduler.waited_too_long()
    assert late is waiting
    assert isinstance(error, CapacityError)
    assert "5 s" in str(error)
    assert error.retry_after_s >= 1.0
    bench.scheduler.abort(late)
    bench.run()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_smallest_of_a_tenant_does_not_overtake_one_of_it_that_is_due(order: str) -> None:
    """The other tenant has its turn, and its request starts; so the due one is passed by and does not end the step."""
    bench = Bench(SPEC, 10, order=order, fair_share=True, aging_s=1.0, admission="guaranteed-no-evict")
    other = make_request("other", [1, 2], max_tokens=2, tenant="b")
    large = make_request("large", list(range(36)), max_tokens=2, tenant="a")
    small = make_request("small", [3, 4], max_tokens=2, tenant="a")
    for request in (other, large, small):
        bench.scheduler.add(request)
    bench.clock.advance(2.0)
    started: list[str] = []
    while bench.scheduler.has_work:
        scheduled = bench.step()
        assert scheduled is not None
        started += [entry.request.request_id for entry in scheduled.entries if entry.is_fresh]
    assert started == ["other", "large", "small"]
