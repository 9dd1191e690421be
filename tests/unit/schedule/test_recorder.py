"""Timelines: why requests waited, what was found, which chunks ran, when the first token came; all derived anew."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scheduling import Bench, full_spec, make_request
from trivium.schedule.decision import ScheduledStep
from trivium.schedule.recorder import Recorder
from trivium.schedule.request import Request, RequestState
from trivium.schedule.timeline import (
    MOST_CHUNKS,
    MOST_STARTS,
    WAIT_MEANINGS,
    Chunk,
    Preemption,
    Start,
    Tier,
    Timeline,
    WaitReason,
)
from trivium.schedule.timeline import PreemptionKind as Kind


def waited(request: Request) -> dict[str, float]:
    return {reason.value: pytest.approx(seconds) for reason, seconds in request.timeline.waited.items()}


def tick(bench: Bench, seconds: float = 1.0) -> ScheduledStep | None:
    """Run a step that takes so many seconds."""
    scheduled = bench.next()
    bench.clock.advance(seconds)
    if scheduled is not None:
        bench.executor.forward(scheduled.step)
        bench.commit(scheduled)
    return scheduled


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    bench = Bench(full_spec(), 64)
    request = make_request("a", range(4))
    bench.scheduler.add(request)
    bench.clock.advance(2.0)
    tick(bench)
    assert waited(request) == {"step": 2.0}
    assert request.timeline.starts[0].cached == {Tier.DEVICE: 0}


def test_a_request_without_a_seat_says_so() -> None:
    bench = Bench(full_spec(), 64, max_num_seqs=1)
    first, second = make_request("a", range(4), max_tokens=4), make_request("b", range(5, 9))
    bench.scheduler.add(first, second)
    for _ in range(5):
        assert bench.scheduler.recorder.reason_of(second) is (WaitReason.SEAT if bench.num_steps else WaitReason.STEP)
        tick(bench)
    assert first.state is RequestState.FINISHED
    assert waited(second) == {"seat": 4.0}


def test_a_request_that_comes_while_all_seats_are_taken_says_so() -> None:
    bench = Bench(full_spec(), 64, max_num_seqs=1)
    first, second = make_request("a", range(4), max_tokens=4), make_request("b", range(5, 9))
    bench.scheduler.add(first)
    tick(bench)
    second.arrival_s = bench.clock.now_s()
    bench.scheduler.add(second)
    assert bench.scheduler.recorder.reason_of(second) is WaitReason.SEAT
    for _ in range(4):
        tick(bench)
    assert waited(second) == {"seat": 3.0}


def test_a_request_whose_kv_does_not_fit_says_so() -> None:
    bench = Bench(full_spec(4), 8, prefix_cache=False)
    first, second = make_request("a", range(20), max_tokens=3), make_request("b", range(50, 70))
    bench.scheduler.add(first, second)
    for _ in range(4):
        tick(bench)
    assert first.state is RequestState.FINISHED
    assert waited(second) == {"pages": 3.0}


def test_a_prompt_that_finds_no_budget_says_so() -> None:
    bench = Bench(full_spec(), 64, max_num_batched_tokens=1)
    first, second = make_request("a", range(4), max_tokens=1), make_request("b", range(50, 60))
    bench.scheduler.add(first, second)
    for _ in range(5):
        tick(bench)
    assert first.timeline.finished_s == 4.0
    assert waited(second) == {"budget": 4.0}


def test_later_choices_wait_for_the_prefix_and_then_like_all_others() -> None:
    bench = Bench(full_spec(), 64, max_num_batched_tokens=8, max_num_seqs=2)
    leader = make_request("a", range(16), max_tokens=8)
    followers = [make_request(f"a#{choice}", range(16), choice=choice) for choice in (1, 2)]
    bench.scheduler.add(leader, *followers)
    recorder = bench.scheduler.recorder
    tick(bench)
    assert recorder.reason_of(followers[0]) is WaitReason.PREFIX
    assert recorder.count_waiting(2)[WaitReason.PREFIX] == 2
    tick(bench)
    assert recorder.count_waiting(2)[WaitReason.PREFIX] == 0
    bench.clock.advance(0.5)
    while followers[1].state is not RequestState.FINISHED:
        tick(bench)
    assert waited(followers[0]) == {"prefix": 2.0, "step": 0.5}
    assert set(waited(followers[1])) == {"prefix", "step", "seat"}
    assert followers[0].timeline.starts[0].cached[Tier.DEVICE] == 15


def test_who_waits_for_the_prefix_of_an_aborted_request_is_released() -> None:
    bench = Bench(full_spec(), 64, max_num_batched_tokens=8)
    first, second = make_request("a", range(16)), make_request("a#1", range(16), choice=1)
    bench.scheduler.add(first, second)
    tick(bench)
    bench.scheduler.abort(first)
    assert first.timeline.finished_s == 1.0
    bench.clock.advance(0.25)
    bench.run()
    assert waited(second)["prefix"] == 1.0


def test_once_the_oldest_is_due_the_others_wait_for_their_turn() -> None:
    bench = Bench(full_spec(4), 8, prefix_cache=False, aging_s=5.0)
    runs, large = make_request("runs", range(4), max_tokens=24), make_request("large", range(20))
    bench.scheduler.add(runs)
    tick(bench)
    large.arrival_s = bench.clock.now_s()
    bench.scheduler.add(large)
    bench.clock.advance(6.0)
    small = make_request("small", range(1))
    bench.scheduler.add(small)
    for _ in range(10):
        tick(bench)
    assert bench.scheduler.recorder.reason_of(small) is WaitReason.ORDER
    assert bench.scheduler.recorder.reason_of(large) is WaitReason.PAGES
    bench.run()
    assert WaitReason.ORDER in small.timeline.waited
    assert set(large.timeline.waited) == {WaitReason.STEP, WaitReason.PAGES}


def test_a_request_that_an_earlier_engine_had_says_so() -> None:
    bench = Bench(full_spec(), 64)
    bench.clock.advance(10.0)
    recorder = bench.scheduler.recorder = Recorder(bench.clock)
    bench.scheduler._chooser.recorder = recorder
    bench.clock.advance(1.0)
    request = make_request("a", range(4))
    request.arrival_s = 7.0
    bench.scheduler.add(request)
    bench.clock.advance(0.5)
    tick(bench)
    assert waited(request) == {"engine": 3.0, "step": 1.5}
    assert request.timeline.starts[0].at_s == 4.5


def test_every_reason_has_a_meaning() -> None:
    assert list(WAIT_MEANINGS) == list(WaitReason)


def test_long_lives_stay_small_and_lose_no_sum() -> None:
    timeline = Timeline()
    for idx in range(1000):
        moment = float(idx)
        timeline.add_start(Start(at_s=moment, waited={WaitReason.SEAT: 1.0}, cached={}))
        timeline.add_chunk(Chunk(at_s=moment, seconds=0.5, start=idx, num_tokens=2))
        timeline.add_preemption(Preemption(at_s=moment, kind=Kind.RECOMPUTE, num_tokens=3))
    assert (len(timeline.starts), len(timeline.chunks), len(timeline.preemptions)) == (
        MOST_STARTS,
        MOST_CHUNKS,
        MOST_STARTS,
    )
    assert timeline.waited == {WaitReason.SEAT: 1000.0}
    assert sum(chunk.num_tokens for chunk in timeline.chunks) == 2000
    assert sum(chunk.seconds for chunk in timeline.chunks) == 500.0
    assert (timeline.num_preemptions, sum(one.num_tokens for one in timeline.preemptions)) == (1000, 3000)
    assert Timeline().starts == [], "timelines share nothing"


arrivals = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 24), st.integers(0, 8), st.integers(0, 2), st.integers(1, 2)),
    min_size=1,
    max_size=8,
)


class Onlooker:
    """Sees the steps of a scheduler, and derives from them what timelines should say."""

    def __init__(self, bench: Bench, requests: list[Request]) -> None:
        self.bench = bench
        self.requests = requests
        self.chunks: dict[Request, list[tuple[float, float, int, int]]] = defaultdict(list)
        self.first_s: dict[Request, float] = {}
        self.waiting_s: dict[Request, float] = defaultdict(float)

    def pass_time(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        for request in self.requests:
            if request.state is RequestState.WAITING and request.end_len:
                self.waiting_s[request] += seconds

    def step(self, gap_s: float) -> None:
        """Wait so long, then run a step that takes as long."""
        self.pass_time(gap_s)
        scheduled = self.bench.next()
        chosen_s = self.bench.clock.now_s()
        self.pass_time(gap_s)
        if scheduled is None:
            return
        parts = [
            (entry.request, entry.start, entry.num_tokens, entry.request.started_len) for entry in scheduled.entries
        ]
        self.bench.executor.forward(scheduled.step)
        self.bench.commit(scheduled)
        for request, start, count, known in parts:
            if count > 1 or start + count <= known:
                self.chunks[request].append((chosen_s - request.arrival_s, gap_s, start, count))
            if request.output_len:
                self.first_s.setdefault(request, self.bench.clock.now_s() - request.arrival_s)

    def check(self, request: Request) -> None:
        timeline = request.timeline
        assert request.state is RequestState.FINISHED
        assert request.wait is None
        shown = [(chunk.at_s, chunk.seconds, chunk.start, chunk.num_tokens) for chunk in timeline.chunks]
        assert shown == self.chunks[request]
        assert timeline.first_token_s == self.first_s.get(request)
        assert sum(timeline.waited.values()) == self.waiting_s[request]
        assert timeline.num_preemptions == request.num_preemptions == len(timeline.starts) - 1
        ends = [0.0, *(one.at_s for one in timeline.preemptions)]
        for start, end in zip(timeline.starts, ends, strict=True):
            assert sum(start.waited.values()) == start.at_s - end


@given(arrivals, st.lists(st.integers(0, 8), min_size=8, max_size=8), st.integers(8, 14), st.integers(1, 4))
def test_timelines_are_what_an_onlooker_saw(
    arrivals: list[tuple[int, int, int, int, int]], gaps: list[int], num_pages: int, num_seats: int
) -> None:
    """Time moves in eighths of a second, so that sums are exact."""
    bench = Bench(full_spec(4), num_pages, max_num_seqs=num_seats, max_num_batched_tokens=7)
    families: list[tuple[int, list[Request]]] = []
    for idx, (turn, length, max_tokens, salt, num_choices) in enumerate(arrivals):
        family: list[Request] = []
        for choice in range(num_choices):
            made = make_request(f"{idx}#{choice}", range(length), max_tokens=max_tokens, namespace=salt, choice=choice)
            family.append(made)
        families.append((turn, family))
    onlooker = Onlooker(bench, [request for _, family in families for request in family])
    turn = 0
    while bench.scheduler.has_work or turn <= max(arrivals)[0]:
        for _, family in [one for one in families if one[0] == turn]:
            for request in family:
                request.arrival_s = bench.clock.now_s()
            bench.scheduler.add(*family)
        onlooker.step(gaps[turn % len(gaps)] / 8)
        turn += 1
        assert turn < 2000
    for request in onlooker.requests:
        onlooker.check(request)
    recorder = bench.scheduler.recorder
    assert sum(recorder.waited_seconds.values()) == sum(onlooker.waiting_s.values())
    assert recorder.count_waiting(0) == dict.fromkeys(WaitReason, 0)
