"""Everything at once: policies, shares, priorities, tiers, pins, retention, aborts, deadlines, faults and lost engines.

One story is one server's life. Its engine loop is the real one, with scheduler, tiers, journal, streams and replay;
its executor is scripted, so that a wrong page, length, random key or resumption changes the answer. After every step
all pages are accounted for by brute force, nobody who is due was overtaken, and nobody outlives a deadline. In the end
every client was told exactly what a client alone with the model would be told, or an error that the story explains.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from support.engine_stories import Router, Wish, common_len, held_by_media, policies, sizes, windows, wishes
from support.grammars import TOKENIZER, VOCAB_SIZE
from support.mortal_engine import Client, MortalEngine, SteppedWorker, stepped_tiers
from support.scheduling import assert_step_follows_from_entries
from support.scripted_loop import MortalExecutor, ReadyCompiler, Told, answer_alone, scores_alone
from trivium.base.clock import FakeClock
from trivium.base.errors import CapacityError, DeadlineExceededError, EngineDeadError, PoisonRequestError, RequestError
from trivium.cache.evict import ORDERS as EVICTIONS
from trivium.cache.spec import KVGroup, KVSpec
from trivium.cache.window import capacity_len
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.engine.admit import ModelLimits
from trivium.engine.compiling import Compiling
from trivium.engine.flight import Flight
from trivium.engine.kv_events import KVEvents
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.engine.suspects import MOST_DEATHS_ALONE
from trivium.sampling.batch import Sampled
from trivium.schedule.decision import ScheduledStep
from trivium.schedule.request import Request, RequestState
from trivium.schedule.scheduler import Scheduler

MAX_MODEL_LEN = 80
HOLDERS = ("disk", "host", "both", None)
MOMENTS = ("forward", "sample", "export_page", "import_page")
STEP_S = 1e-3
ROUNDING_S = 1e-9
"""What sums of times may be off by."""


class EngineStory(RuleBasedStateMachine):
    """A server's life; see the module."""

    @initialize(
        memory=st.fixed_dictionaries({
            "windows": windows,
            "page_len": st.sampled_from([1, 4, 16]),
            "pool_len": st.integers(30, 90),
            "eviction": st.sampled_from(sorted([*EVICTIONS, "priority"])),
            "holder": st.sampled_from(HOLDERS),
        }),
        max_logit_rows=st.sampled_from([None, 1, 2]),
        options=st.tuples(sizes, policies).map(lambda parts: {**parts[0], **parts[1]}),
        is_ruthless=st.booleans(),
        is_late=st.booleans(),
        jumps=st.booleans(),
        below=st.fixed_dictionaries({
            "disk_pages": st.sampled_from([16, 40, 1000]),
            "host_pages": st.integers(1, 30),
            "queue_bytes": st.sampled_from([1, 500, 1 << 20]),
            "compute_per_s": st.sampled_from([1e-3, 1.0, 1e3]),
            "bytes_per_s": st.sampled_from([1e3, 1e6]),
        }),
    )
    def make(
        self,
        memory: dict[str, Any],
        max_logit_rows: int | None,
        options: dict[str, Any],
        is_ruthless: bool,
        is_late: bool,
        jumps: bool,
        below: dict[str, Any],
    ) -> None:
        windows, page_len, holder = memory["windows"], memory["page_len"], memory["holder"]
        groups = [KVGroup("window" if window else "full", (idx,), 8, window) for idx, window in enumerate(windows)]
        self.spec = KVSpec(tuple(groups), page_len)
        self.num_pages = [memory["pool_len"] // page_len + 1] * len(groups)
        may_preempt = options["order"] == "priority" and options["admission"] == "max-utilization"
        if holder is None:
            options["preemption"] = "recompute"
        self.options = ScheduleOptions(**options, preempt_for_priority=is_ruthless and may_preempt)
        self.max_logit_rows, self.eviction, self.holder = max_logit_rows, memory["eviction"], holder
        self.below, self.is_late, self.jumps = below, is_late, jumps
        self.folder = Path(mkdtemp(prefix="trivium-story-"))
        self.clock = FakeClock()
        self.engine = MortalEngine(self.make_loop, self.folder, self.clock)
        self.engine.on_step = self.watch
        self.queued: dict[Request, float] = {}
        self.may_fail: set[str] = set()
        """Requests of steps in which something went wrong."""
        self.pins: dict[str, tuple[list[int], tuple[Any, ...], int, float | None]] = {}
        self.was_pinned = False
        self.router = Router()
        self.is_broken = False
        """Whether a step has raised."""
        self.step(0.0)

    # -- the engine -------------------------------------------------------------------------------------------

    def make_loop(self, hooks: Mapping[str, Any]) -> EngineLoop:
        executor = MortalExecutor(self.spec, self.num_pages, is_late=self.is_late)
        tiers = None if self.holder is None else stepped_tiers(executor, self.holder, self.folder / "kv", **self.below)
        scheduler = Scheduler(
            self.options,
            self.spec,
            self.num_pages,
            MAX_MODEL_LEN,
            prefix_cache=True,
            eviction=self.eviction,
            clock=self.clock,
            max_logit_rows=self.max_logit_rows,
            tiers=tiers,
        )
        limits = ModelLimits(
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            end_ids=(),
            namespace=("scripted",),
            bad_word_ids=lambda _: (),
            eviction=self.eviction,
            page_len=self.spec.page_len,
            takes_priority=self.options.order == "priority",
            jump_forward=self.jumps,
            **hooks,
        )
        events = KVEvents(len(self.spec.groups), self.spec.page_len)
        scheduler.follow_cache(events)
        if tiers is not None:
            events.cleared(tiers.stats())
            tiers.worker.listen(events)
        loop = EngineLoop(
            executor=executor,  # type: ignore[arg-type]
            scheduler=scheduler,
            tokenizer=TOKENIZER,
            limits=limits,
            info={},
            clock=self.clock,
            tiers=tiers,
        )
        loop.kv_events = events
        loop.compiling = Compiling(ReadyCompiler())  # type: ignore[arg-type]
        return loop

    def watch(self, loop: EngineLoop) -> None:
        """Judge every choice of a new engine's scheduler."""
        scheduler = loop._scheduler
        choose, learn, hold = scheduler.next, scheduler.learn, scheduler._look_ahead.hold
        self.queued, self.pins = {}, {}
        held: set[Request] = set()

        def hold_and_note(request: Request) -> bool:
            if is_held := hold(request):
                held.add(request)
            return is_held

        def choose_and_judge() -> ScheduledStep | None:
            waiting = [request for request in self.requests() if request.state is RequestState.WAITING]
            for request in waiting:
                self.queued.setdefault(request, self.clock.now_s())
            held.clear()
            held.update(request for request in waiting if request.held_by is not None)
            scheduled = choose()
            if scheduled is not None:
                assert_step_follows_from_entries(scheduled, self.spec.page_len)
                self.assert_nobody_due_is_overtaken([one for one in waiting if one not in held], scheduled)
            return scheduled

        fail_step, read = loop._fail_step, loop._read
        executor = self.engine.executor

        def fail_and_note(flight: Flight, error: BaseException) -> None:
            assert executor.num_failed, error
            self.may_fail |= {answer.user_id for answer in flight.answers}
            fail_step(flight, error)

        def read_and_note(flight: Flight, sampled: Sampled) -> None:
            self.may_fail |= {
                answer.user_id
                for answer in flight.answers
                if any(answer.request.tokens is spoiled for spoiled in executor.spoiled)
            }
            read(flight, sampled)

        loop._fail_step, loop._read = fail_and_note, read_and_note  # type: ignore[method-assign]
        scheduler._look_ahead.hold = hold_and_note  # type: ignore[method-assign]
        scheduler.next = choose_and_judge  # type: ignore[method-assign]
        scheduler.learn = lambda scheduled, _: learn(scheduled, STEP_S * scheduled.step.num_tokens)  # type: ignore[method-assign]

    def requests(self) -> list[Request]:
        """Those that the engine has."""
        loop = self.engine.loop
        return [] if loop is None else [answer.request for answer in loop._answers.values()]

    def assert_nobody_due_is_overtaken(self, waiting: list[Request], scheduled: ScheduledStep) -> None:
        started = [entry.request for entry in scheduled.entries if entry.is_fresh]
        due_s = self.clock.now_s() - self.options.aging_s
        for late in (request for request in waiting if request.state is RequestState.WAITING):
            if self.queued[late] < due_s:
                rivals = [one for one in started if not self.options.fair_share or one.tenant == late.tenant]
                assert all(rival.sequence < late.sequence for rival in rivals), "a due request was overtaken"

    # -- what happens -----------------------------------------------------------------------------------------

    @rule(wishes=st.lists(wishes, min_size=1, max_size=5))
    def ask(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.ask_one(wish)

    def ask_one(self, wish: Wish) -> None:
        asked = dict(wish.asked)
        if asked["prompt_logprobs"] is None or asked["prompt_logprob_start"] >= len(wish.prompt):
            asked["prompt_logprob_start"] = 0
        asked["min_tokens"] = min(asked["min_tokens"], asked["max_tokens"])
        if self.eviction == "priority":
            asked |= {"cache_retention": tuple(wish.ranges), "cache_retention_decode": wish.decode}
        message = Submit(
            request_id=f"r{len(self.engine.clients):03}",
            prompt_ids=wish.prompt,
            params=SamplingParams(**asked),
            priority=wish.priority if self.options.order == "priority" else 0,
            tenant=wish.tenant,
            program=wish.program,
            cache_salt=wish.cache_salt,
            deadline_s=wish.deadline_s,
        )
        self.engine.ask(Client(message, wish.kills_at))

    @rule(count=st.integers(1, 20), seconds=st.sampled_from([0.0, 0.01, 0.01, 1.0]), work=st.integers(0, 9))
    def steps(self, count: int, seconds: float, work: int) -> None:
        for _ in range(count):
            self.let_tiers_work(work)
            self.step(seconds)

    def step(self, seconds: float, *, loses_news: bool = False) -> None:
        """Run a step, and judge what it leaves."""
        num_deaths, self.is_broken = len(self.engine.deaths), True
        self.engine.step(seconds, loses_news=loses_news)
        for work, death in self.engine.deaths[num_deaths:]:
            if death.condemned is not None:
                alone = [one for one, _ in self.engine.deaths if set(one.request_ids) == {death.condemned}]
                assert set(work.request_ids) == {death.condemned}
                assert len(alone) >= MOST_DEATHS_ALONE, "a request is condemned without having been tried alone"
        if self.engine.loop is not None:
            self.judge(self.engine.loop)
        self.is_broken = False

    def judge(self, loop: EngineLoop) -> None:
        assert loop.check() == []
        now_s = self.clock.now_s()
        for client in self.engine.clients.values():
            deadline_s = client.message.deadline_s
            if not client.is_done and deadline_s is not None:
                assert now_s < client.began_s + deadline_s + ROUNDING_S, "a request has outlived its deadline"
        if self.options.admission != "max-utilization":
            assert loop._scheduler.stats().num_preemptions == 0
        for pin_id, (prompt, namespace, length, until_s) in self.pins.items():
            if until_s is None or now_s < until_s:
                found = loop._scheduler._cache.index.match_len(np.array(prompt, np.int32), namespace, len(prompt))
                assert found >= length, f"{pin_id} has lost tokens"

        assert loop.kv_events is not None
        self.router.hear(loop.kv_events.take())
        assert self.router.held == held_by_media(loop)

    @rule(pick=st.integers(0, 1000))
    def leave(self, pick: int) -> None:
        if clients := [client for client in self.engine.clients.values() if not client.is_done]:
            self.engine.leave(clients[pick % len(clients)])

    # -- trouble ----------------------------------------------------------------------------------------------

    def has_engine(self) -> bool:
        return self.engine.loop is not None

    @precondition(has_engine)
    @rule(
        moment=st.sampled_from(["between steps", "before the news", *MOMENTS]),
        seconds=st.sampled_from([0.0, 1.0]),
        is_cruel=st.sampled_from([False, False, False, True]),
    )
    def kill(self, moment: str, seconds: float, is_cruel: bool) -> None:
        if not (self.engine.has_delivered or is_cruel):
            return  # engines that die again and again without a token are given up
        if moment == "between steps":
            self.engine.kill()
            self.clock.advance(seconds)
            return
        if moment in MOMENTS:
            self.engine.executor.dies_in = moment
        self.step(seconds, loses_news=moment == "before the news")

    @precondition(has_engine)
    @rule(moment=st.sampled_from([*MOMENTS, "one row"]), row=st.integers(0, 9))
    def fail(self, moment: str, row: int) -> None:
        if moment == "one row":
            self.engine.executor.bad_row = row
        else:
            self.engine.executor.fails_in = moment
        self.step(0.01)

    @precondition(lambda self: self.holder in {"disk", "both"})
    @rule(seed=st.integers(0, 1000))
    def damage_files(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        for path in sorted(self.folder.glob("kv/*.kv")):
            raw = bytearray(path.read_bytes())
            for _ in range(chance.randrange(60)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            path.write_bytes(raw)

    @precondition(lambda self: self.has_engine() and not self.engine.is_open)
    @rule()
    def start_anew(self) -> None:
        self.step(0.0)  # takes what clients that left have sent last
        self.engine.executor.fails_in = self.engine.executor.dies_in = None
        self.engine.end_in_good_order()

    # -- the cache --------------------------------------------------------------------------------------------

    @precondition(has_engine)
    @rule()
    def flush(self) -> None:
        assert self.engine.loop is not None
        self.engine.loop.call("flush")

    def let_tiers_work(self, count: int) -> None:
        tiers = self.engine.loop._tiers if self.engine.loop is not None else None
        if tiers is not None and isinstance(tiers.worker, SteppedWorker):
            tiers.worker.work(count)

    @precondition(
        lambda self: self.has_engine() and self.engine.executor.fails_in is self.engine.executor.dies_in is None
    )
    @rule()
    def use_an_idle_moment(self) -> None:
        assert self.engine.loop is not None
        self.engine.loop.idle()

    @precondition(has_engine)
    @rule(pick=st.integers(0, 1000), ttl_s=st.sampled_from([None, 2.0]))
    def pin(self, pick: int, ttl_s: float | None) -> None:
        assert self.engine.loop is not None
        if not self.engine.clients:
            return
        message = list(self.engine.clients.values())[pick % len(self.engine.clients)].message
        asked = {"prompt_ids": message.prompt_ids, "cache_salt": message.cache_salt, "ttl_s": ttl_s}
        pin_id = f"p{pick}-{self.clock.now_s()}-{len(self.pins)}"
        made = self.engine.loop.call("pin", {"pin_id": pin_id, **asked})
        if "refused" not in made:
            namespace = self.engine.loop.limits.namespace_of(cache_salt=message.cache_salt, limit_len=0)
            until_s = None if ttl_s is None else self.clock.now_s() + ttl_s
            self.pins[pin_id] = (message.prompt_ids, namespace, int(str(made["tokens"])), until_s)
            self.was_pinned = True

    @precondition(lambda self: self.has_engine() and self.pins)
    @rule()
    def unpin(self) -> None:
        assert self.engine.loop is not None
        pin_id, (*_, until_s) = self.pins.popitem()
        is_over = until_s is not None and self.clock.now_s() >= until_s
        assert is_over or self.engine.loop.call("unpin", {"pin_id": pin_id}) == {"unpinned": True}

    # -- the end ----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            if not self.is_broken:
                self.end()
        finally:
            self.engine.close()
            shutil.rmtree(self.folder)

    def end(self) -> None:
        """Let everything end, and compare; a step may be of one token, and what suspects lose is computed again."""
        open_messages = [client.message for client in self.engine.clients.values() if not client.is_done]
        num_tokens = sum(
            (len(each.prompt_ids) + (each.params.max_tokens or 0)) * each.params.num_draws for each in open_messages
        )
        for _ in range(4000 + 3 * num_tokens):
            if not self.engine.is_open:
                break
            self.let_tiers_work(1)
            self.step(0.01)
        assert not self.engine.is_open, "requests have not ended"
        self.step(0.0)
        for client in self.engine.clients.values():
            self.assert_as_if_alone(client)
            self.assert_cached_before(client)
        if self.engine.loop is not None:
            self.assert_nothing_is_left(self.engine.loop)

    def assert_nothing_is_left(self, loop: EngineLoop) -> None:
        scheduler = loop._scheduler
        assert not loop.has_work
        for pin in scheduler.pins:
            scheduler.pins.unpin(pin.pin_id)
        scheduler.flush()
        stats = scheduler.stats()
        assert stats.pages_free == stats.pages_total
        assert loop.check() == []

    def assert_as_if_alone(self, client: Client) -> None:
        """Compare what a client was told with what a client alone would be told."""
        prompt, params = client.message.prompt_ids, client.message.params
        has_failed = client.has_left or client.error is not None or bool(client.codes)
        if client.error is not None or client.codes:
            self.assert_explained(client)
        for choice, told in enumerate(client.answers):
            expected = self.alone(client, choice)
            if has_failed and told.finish in {None, "error"}:
                assert told.tokens == expected.tokens[: len(told.tokens)]
                assert expected.text.startswith(told.text)
                continue
            if self.was_pinned and told.finish == "length":
                expected = answer_alone(self.spec, prompt, params, choice, len(prompt) + len(told.tokens))
            if params.logprobs is None:
                expected = Told(expected.tokens, expected.text, [], expected.finish, expected.stop_reason)
            assert told == expected
        if not has_failed:
            scored = params.prompt_logprobs is not None
            assert client.scores == (scores_alone(self.spec, prompt, params) if scored else None)
            is_bound = params.structured_outputs is not None  # then it may end beyond the moment in which it would kill
            assert client.kills_at is None or is_bound or client.kills_at >= len(client.answers[0].tokens)

    def alone(self, client: Client, choice: int) -> Told:
        prompt, pool_len = client.message.prompt_ids, capacity_len(self.spec, self.num_pages)
        ends = [len(prompt) + (client.message.params.max_tokens or 0), MAX_MODEL_LEN]
        if pool_len is not None:
            ends.append(max(len(prompt), pool_len + 1))
        return answer_alone(self.spec, prompt, client.message.params, choice, min(ends))

    def assert_explained(self, client: Client) -> None:
        """A story explains why a client was told of an error."""
        message, lived_s = client.message, client.ended_s - client.began_s
        for code in {*client.codes, *([client.error.code] if client.error is not None else ())}:
            if code == DeadlineExceededError.code:
                assert message.deadline_s is not None
                assert lived_s >= message.deadline_s - ROUNDING_S
            elif code == PoisonRequestError.code:
                assert any(death.condemned == message.request_id for _, death in self.engine.deaths)
            elif code == EngineDeadError.code:
                assert any(death.is_hopeless for _, death in self.engine.deaths)
            elif code == CapacityError.code:
                assert not any(told.tokens for told in client.answers), "refused in the middle of an answer"
            elif isinstance(client.error, RequestError):
                assert not any(told.tokens for told in client.answers)
                assert self.was_pinned or self.is_too_long(client)
            else:
                assert code == "internal_error", client
                assert message.request_id in self.may_fail, client.error

    def is_too_long(self, client: Client) -> bool:
        prompt_len, pool_len = len(client.message.prompt_ids), capacity_len(self.spec, self.num_pages)
        limit_len = prompt_len + (client.message.params.max_tokens or 0)
        return limit_len > MAX_MODEL_LEN or (pool_len is not None and prompt_len > pool_len)

    def assert_cached_before(self, client: Client) -> None:
        """What a client is told to have found in the cache, somebody with the same salt has computed."""
        if not client.cached_len or all(group.window == 1 for group in self.spec.groups):
            return  # who sees nothing but the last token finds all that is needed, always
        prompt = client.message.prompt_ids
        assert client.cached_len < len(prompt)
        if client.message.params.prompt_logprobs is not None:
            assert client.cached_len <= max(0, client.message.params.prompt_logprob_start - 1)
        texts = [
            [*other.message.prompt_ids, *told.tokens]
            for other in self.engine.clients.values()
            if other.message.cache_salt == client.message.cache_salt and (other is not client or self.engine.deaths)
            for told in other.answers
        ]
        assert client.cached_len <= max(common_len(prompt, text) for text in texts)


QUICK = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
EngineStory.TestCase.settings = QUICK
TestEngineStory = EngineStory.TestCase


@pytest.mark.soak
def test_long_stories_of_a_whole_engine_hold_too() -> None:
    run_state_machine_as_test(EngineStory, settings=LONG)
