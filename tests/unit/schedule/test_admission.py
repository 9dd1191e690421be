"""Admission: who may start under each policy, and what is expected of answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scheduling import Bench, full_spec, make_request, mixed_spec
from trivium.schedule.output_estimate import OutputEstimate
from trivium.schedule.request import RequestState

SPEC = full_spec(4)


def test_where_nobody_is_evicted_a_request_starts_when_its_longest_answer_fits() -> None:
    bench = Bench(SPEC, 10, max_num_seqs=4, admission="guaranteed-no-evict", order="fcfs")
    first, second = (make_request(name, [base] * 8, max_tokens=13) for name, base in (("a", 1), ("b", 2)))
    small = make_request("small", [3] * 4, max_tokens=5)
    bench.scheduler.add(first, second, small)
    bench.step()
    assert [one.state for one in (first, second, small)] == [
        RequestState.RUNNING,
        RequestState.RUNNING,
        RequestState.WAITING,
    ], "5 + 5 pages are taken; 2 more do not fit"
    bench.run()
    assert bench.scheduler.stats().num_preemptions == 0


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=14),
    st.sampled_from([full_spec(4), mixed_spec(4, 6)]),
    st.sampled_from(["guaranteed-no-evict", "static-batch"]),
)
def test_who_started_is_never_preempted_where_that_is_promised(
    sizes: list[tuple[int, int]], spec: object, admission: str
) -> None:
    bench = Bench(spec, 18, max_num_seqs=8, max_num_batched_tokens=9, admission=admission)  # type: ignore[arg-type]
    requests = [
        make_request(str(idx), [idx % 3] * length, max_tokens=count) for idx, (length, count) in enumerate(sizes)
    ]
    bench.scheduler.add(*requests)
    bench.run()
    assert bench.scheduler.stats().num_preemptions == 0
    assert all(request.state is RequestState.FINISHED for request in requests)


def test_a_static_batch_ends_before_the_next_begins() -> None:
    bench = Bench(SPEC, 100, max_num_seqs=2, admission="static-batch")
    requests = [make_request(str(idx), [idx], max_tokens=3 + 4 * (idx % 2)) for idx in range(4)]
    bench.scheduler.add(*requests)
    while (scheduled := bench.step()) is not None:
        names = {entry.request.request_id for entry in scheduled.entries}
        assert names <= {"0", "1"} or names <= {"2", "3"}


@pytest.mark.parametrize("output_len", [1, 7, 40, 300])
def test_equal_answers_are_expected_as_they_were(output_len: int) -> None:
    estimate = OutputEstimate()
    assert estimate.expected_len(0) is None
    for _ in range(50):
        estimate.learn(output_len)
    assert estimate.expected_len(0) == pytest.approx(output_len, abs=1.0)
    assert estimate.mean_len == pytest.approx(output_len)
    assert estimate.mean_error <= 1.0
    assert (estimate.expected_len(2 * output_len + 2) or 0) >= 2 * output_len + 3


@given(st.lists(st.integers(0, 500), min_size=8, max_size=40), st.integers(0, 600))
def test_more_is_always_expected_and_what_is_recent_counts_more(lengths: list[int], now: int) -> None:
    estimate = OutputEstimate()
    for length in lengths:
        estimate.learn(length)
    expected = estimate.expected_len(now)
    assert expected is not None
    assert expected >= now + 1
    for _ in range(5000):
        estimate.learn(50)
    assert estimate.expected_len(0) == pytest.approx(50, abs=5)


def test_growth_that_is_expected_is_kept_free() -> None:
    """After long answers, fewer start at once than after short ones; so fewer are preempted."""

    def preempted(history: int) -> int:
        bench = Bench(SPEC, 40, max_num_seqs=16, aging_s=1e6)
        for idx in range(10):
            bench.scheduler.add(make_request(f"h{history}.{idx}", [history % 50], max_tokens=history))
            bench.run()
        bench.scheduler.flush()
        before = bench.scheduler.stats().num_preemptions
        bench.scheduler.add(*[make_request(str(idx), [idx, 1, 2], max_tokens=40) for idx in range(16)])
        bench.run()
        return bench.scheduler.stats().num_preemptions - before

    assert preempted(40) < preempted(2)
