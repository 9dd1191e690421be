"""The scheduler as a state machine: whatever happens around a request, it draws what it would draw alone.

The scripted executor turns every mistake in pages, copies, windows, lengths or resumption into other tokens. Pools are
tiny, so that eviction and preemption happen all the time; every step is followed by the accounting check.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from support.scheduling import Bench, make_request, output_of
from support.scripted_executor import tokens_alone
from trivium.base.errors import RequestTooLargeError
from trivium.base.ids import FinishReason
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.program_share import ProgramShare
from trivium.schedule.admit import POLICIES
from trivium.schedule.decision import ScheduledStep
from trivium.schedule.orders import ORDERS
from trivium.schedule.request import Request, RequestState

prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=24),
    st.integers(1, 30).map(lambda length: [0] * length),
    st.tuples(st.integers(1, 16), st.lists(st.integers(0, 3), min_size=1, max_size=6)).map(
        lambda parts: [7] * parts[0] + parts[1]
    ),
)
shares = st.builds(
    ProgramShare,
    program_id=st.sampled_from("pq"),
    remaining_tokens=st.none() | st.integers(0, 60),
    ends=st.sampled_from([False, False, True]),
)
windows = st.lists(st.sampled_from([None, None, 1, 3, 7]), min_size=1, max_size=3)


def spec_of(windows: list[int | None], page_len: int) -> KVSpec:
    groups = [KVGroup("window" if window else "full", (idx,), 8, window) for idx, window in enumerate(windows)]
    return KVSpec(tuple(groups), page_len)


class SchedulerStory(RuleBasedStateMachine):
    """Requests come, run, are aborted; the cache is flushed; steps are discarded or lose members in flight.

    Whatever the order, the admission and the shares: nobody is overtaken once he is due, and where no request may be
    preempted, none is.
    """

    @initialize(
        windows=windows,
        page_len=st.sampled_from([1, 4, 16]),
        pool_len=st.integers(40, 110),
        sizes=st.fixed_dictionaries({
            "max_num_seqs": st.integers(1, 6),
            "max_num_batched_tokens": st.sampled_from([1, 3, 7, 32]),
            "max_logit_rows": st.sampled_from([None, 1, 2]),
            "prefix_cache": st.sampled_from([True, True, True, False]),
            "num_adapter_slots": st.integers(1, 3),
        }),
        policies=st.fixed_dictionaries({
            "order": st.sampled_from(sorted(ORDERS)),
            "admission": st.sampled_from(["max-utilization", "max-utilization", *sorted(POLICIES)]),
            "aging_s": st.sampled_from([0.0, 3.0, 10.0, 1e6]),
            "fair_share": st.booleans(),
            "look_ahead": st.sampled_from([True, True, False]),
            "program_idle_s": st.sampled_from([0.0, 0.5, 1e3]),
            "tpot_target": st.none() | st.just(0.02),
        }),
        is_ruthless=st.booleans(),
        data=st.data(),
    )
    def make(
        self,
        windows: list[int | None],
        page_len: int,
        pool_len: int,
        sizes: dict[str, Any],
        policies: dict[str, Any],
        is_ruthless: bool,
        data: st.DataObject,
    ) -> None:
        self.aging_s, self.is_fair = policies["aging_s"], policies["fair_share"]
        self.is_never_preempted = policies["admission"] != "max-utilization"
        may_preempt = policies["order"] == "priority" and not self.is_never_preempted
        spec = spec_of(windows, page_len)
        self.make_bench = partial(
            Bench,
            spec,
            pool_len // page_len + 1,
            **{**sizes, **policies, **self.further_options(spec, data)},
            preempt_for_priority=is_ruthless and may_preempt,
        )
        self.bench = self.make_bench()
        self.requests: list[Request] = []

    def further_options(self, spec: KVSpec, data: st.DataObject) -> dict[str, Any]:
        """Options of `Bench` that a story of its own kind draws."""
        del spec, data
        return {}

    @rule(
        prompt=prompts,
        max_tokens=st.integers(0, 40),
        choices=st.sampled_from([1, 1, 1, 3]),
        scored_from=st.none() | st.none() | st.integers(0, 12),
        whose=st.fixed_dictionaries({
            "priority": st.integers(-1, 1),
            "tenant": st.sampled_from("ab"),
            "share": st.none() | shares,
            "adapter": st.sampled_from([None, None, "p", "q", "r"]),
        }),
    )
    def add(
        self, prompt: list[int], max_tokens: int, choices: int, scored_from: int | None, whose: dict[str, Any]
    ) -> None:
        group = [
            make_request(
                f"{len(self.requests) + choice}",
                prompt,
                max_tokens=max_tokens,
                choice=choice,
                prompt_logprobs=None if scored_from is None else 1,
                prompt_logprob_start=scored_from or 0,
                **whose,
            )
            for choice in range(choices)
        ]
        try:
            self.bench.scheduler.add(*group)
        except RequestTooLargeError:
            return
        self.requests += group

    @rule(count=st.integers(1, 12), seconds=st.sampled_from([0.0, 0.01, 1.0]))
    def step(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.bench.clock.advance(seconds)
            waiting = self.waiting()
            scheduled = self.bench.next()
            if scheduled is not None:
                self.assert_nobody_due_is_overtaken(waiting, scheduled)
                self.bench.forward(scheduled)
                self.bench.commit(scheduled)

    def waiting(self) -> list[Request]:
        return [request for request in self.requests if request.state is RequestState.WAITING]

    def assert_nobody_due_is_overtaken(self, waiting: list[Request], scheduled: ScheduledStep) -> None:
        started = [entry.request for entry in scheduled.entries if entry.is_fresh]
        before_s = self.bench.clock.now_s() - self.aging_s
        for late in (request for request in waiting if request.state is RequestState.WAITING):
            if late.queued_s < before_s and late.held_by is None:
                rivals = [one for one in started if not self.is_fair or one.tenant == late.tenant]
                assert all(rival.sequence < late.sequence for rival in rivals), "a due request was overtaken"

    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        if self.requests:
            self.bench.scheduler.abort(self.requests[pick % len(self.requests)])

    @rule(pick=st.integers(0, 1000), is_before_forward=st.booleans())
    def abort_in_flight(self, pick: int, is_before_forward: bool) -> None:
        scheduled = self.bench.next()
        if scheduled is None:
            return
        if is_before_forward:
            self.bench.scheduler.abort(scheduled.entries[pick % len(scheduled.entries)].request)
        self.bench.forward(scheduled)
        if not is_before_forward:
            self.bench.scheduler.abort(scheduled.entries[pick % len(scheduled.entries)].request)
        self.bench.commit(scheduled)

    @rule(is_flushed=st.booleans())
    def discard(self, is_flushed: bool) -> None:
        scheduled = self.bench.next()
        if scheduled is not None:
            if is_flushed:
                self.bench.scheduler.flush()
            self.bench.scheduler.discard(scheduled)

    @rule(program_id=st.sampled_from("pq"), tenant=st.sampled_from("ab"))
    def end_program(self, program_id: str, tenant: str) -> None:
        is_open = any(request.program is not None and request.program.key == (tenant, program_id)
                      and request.program.claim is not None for request in self.requests)  # fmt: skip
        assert self.bench.scheduler.programs.end(program_id, tenant) or not is_open

    @rule()
    def flush(self) -> None:
        self.bench.scheduler.flush()

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        if hasattr(self, "bench"):
            assert self.bench.scheduler.check() == []

    @invariant()
    def who_may_not_be_preempted_is_not(self) -> None:
        if hasattr(self, "bench") and self.is_never_preempted:
            assert self.bench.scheduler.stats().num_preemptions == 0

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.run()
        self.bench.assert_idle_pages()
        self.bench.clock.advance(1e4)
        self.bench.scheduler.programs.expire()
        assert len(self.bench.scheduler.programs) == 0, "a program is open that nobody will ever end"
        for request in self.requests:
            self.assert_as_if_alone(request)
        self.bench.scheduler.flush()
        stats = self.bench.scheduler.stats()
        assert stats.pages_free == stats.pages_total

    def assert_as_if_alone(self, request: Request) -> None:
        prompt, output = request.tokens[: request.prompt_len], output_of(request)
        assert request.state is RequestState.FINISHED
        if output:
            assert output == tokens_alone(self.bench.executor.kv_spec, prompt, len(output))
        assert request.cached_len <= request.prompt_len - 1
        scored = self.bench.scored.get(request.request_id, [])
        first = request.first_scored_row
        expected = [] if first is None else list(range(first, request.prompt_len - 1))
        if request.finish_reason is FinishReason.LENGTH:
            assert request.target_len == request.end_len
            assert scored == expected
        else:
            assert scored == expected[: len(scored)]


QUICK = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=3000, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
SchedulerStory.TestCase.settings = QUICK
TestSchedulerStory = SchedulerStory.TestCase


@pytest.mark.soak
def test_long_scheduler_stories_hold_too() -> None:
    run_state_machine_as_test(SchedulerStory, settings=LONG)


@settings(max_examples=15, deadline=None)
@given(
    windows=windows,
    group=st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=6),
    budget=st.sampled_from([1, 5, 32]),
)
def test_page_length_prefix_cache_and_budget_change_no_token(
    windows: list[int | None], group: list[tuple[list[int], int]], budget: int
) -> None:
    outputs = []
    for page_len, prefix_cache, tokens in ((1, True, budget), (16, True, 32), (16, False, 32), (4, True, 7)):
        bench = Bench(
            spec_of(windows, page_len),
            96 // page_len,
            max_num_seqs=4,
            max_num_batched_tokens=tokens,
            prefix_cache=prefix_cache,
        )
        requests = [make_request(f"{idx}", prompt, max_tokens=count) for idx, (prompt, count) in enumerate(group)]
        for request in requests:
            bench.scheduler.add(request)
        bench.run()
        outputs.append([output_of(request) for request in requests])
    assert outputs.count(outputs[0]) == len(outputs)


@settings(max_examples=20, deadline=None)
@given(
    first=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    budget=st.integers(4, 16),
    later=st.integers(1, 12),
)
def test_no_request_waits_longer_than_twice_the_prompts_before_it(first: list[int], budget: int, later: int) -> None:
    """Memory is ample, short requests keep coming: the oldest prefill gets half of what decoding leaves."""
    bench = Bench(spec_of([None], 4), 400, max_num_seqs=32, max_num_batched_tokens=budget)
    requests = [make_request(f"{idx}", [idx] * length, max_tokens=1) for idx, length in enumerate(first)]
    for request in requests:
        bench.scheduler.add(request)
    half = budget / 2
    bounds = [sum(first[: idx + 1]) / half + idx + 1 for idx in range(len(first))]
    num_steps = 0
    while any(request.state is not RequestState.FINISHED for request in requests):
        bench.scheduler.add(make_request(f"late{num_steps}", [99] * later, max_tokens=1))
        bench.step()
        num_steps += 1
        for request, bound in zip(requests, bounds, strict=True):
            assert request.state is RequestState.FINISHED or num_steps <= bound
