"""The scheduler: requests come, steps are chosen and recorded, requests go.

`next` and `commit` alternate; requests may come and go between the two. Knows lengths, pages and budgets; neither texts
nor logits nor executors. Who gets what in a step is decided in `choose`, in which order in `orders`, whether a waiting
request fits in `admit`, whether it waits for another's prefix in `look_ahead`, who makes room in `running`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

from trivium.base.clock import Clock
from trivium.base.errors import CapacityError, InternalError, InvalidParameterError, TriviumError, ensure
from trivium.base.ids import FinishReason
from trivium.cache.accounting import check
from trivium.cache.kv_cache import KVCache
from trivium.cache.pins import Pin, PinRefusal, Pins
from trivium.cache.spec import KVSpec
from trivium.config.limits import parse_weights
from trivium.config.options import ScheduleOptions
from trivium.schedule.adapter_slots import AdapterSlots
from trivium.schedule.admit import POLICIES, Admission, longest_hit
from trivium.schedule.below import Below, NothingBelow, TiersBelow
from trivium.schedule.budget import TokenBudget
from trivium.schedule.build import build_step
from trivium.schedule.choose import StepChooser
from trivium.schedule.decision import Entry, Outcome, ScheduledStep, SchedulerStats
from trivium.schedule.fair import FairShare
from trivium.schedule.limits import Limits
from trivium.schedule.look_ahead import LookAhead, NoLookAhead, SharedPrefixes
from trivium.schedule.orders import ORDERS
from trivium.schedule.output_estimate import OutputEstimate
from trivium.schedule.programs import Programs
from trivium.schedule.rate import DepartureRate
from trivium.schedule.recorder import Recorder
from trivium.schedule.request import Request, RequestState
from trivium.schedule.running import RunningSet, StepDraft, computed_tokens
from trivium.schedule.statistics import Counters, describe_cache, summarize
from trivium.schedule.steady import SteadyBatch, is_steady
from trivium.schedule.timeline import WaitReason
from trivium.schedule.waiting import WaitingQueue
from trivium.tiers.lower import LowerTiers

if TYPE_CHECKING:
    from trivium.cache.page_runs import PageFollower
    from trivium.schedule.step import Int32Array, Step


class Scheduler:
    """Continuous batching over one model's KV memory.

    Invariants (see `check`):
        - Every page is free, in the prefix index, or in page tables of running requests, with the right counts.
        - A request is in the waiting queue, or running, or finished.
    """

    def __init__(  # noqa: PLR0913  (what it is made of, by name)
        self,
        options: ScheduleOptions,
        spec: KVSpec,
        num_pages: Sequence[int],
        max_model_len: int,
        *,
        prefix_cache: bool,
        clock: Clock,
        eviction: str = "lru",
        max_logit_rows: int | None = None,
        tiers: LowerTiers | None = None,
        num_adapter_slots: int = 1,
    ) -> None:
        """Make an idle scheduler.

        Args:
            options: Budgets and queue length.
            spec: KV groups of the model.
            num_pages: Pages of each group's pool.
            max_model_len: Longest request in tokens.
            prefix_cache: Whether prefixes are shared.
            clock: Time, for the measured rate and for timelines.
            eviction: Which unused prefix goes first; a policy of `cache.evict.ORDERS`.
            max_logit_rows: Wanted rows per step, at least 1; `None` means `max_num_seqs`.
            tiers: Where pages go that leave the pool, and come back from; moved by whoever executes the steps.
            num_adapter_slots: Most adapters that running requests may have.
        """
        self._options = options
        self._cache = KVCache(spec, num_pages, prefix_cache=prefix_cache, eviction=eviction, clock=clock)
        self._eviction = eviction
        self.pins = Pins(self._cache, clock)
        """Prefixes that stay."""
        self.programs = Programs(self._cache.index, clock, options.program_idle_s)
        """Whose paths are dropped last."""
        self._limits = Limits(spec, num_pages, max_model_len, self._pinned_len)
        self._max_rows = options.max_num_seqs if max_logit_rows is None else max_logit_rows
        self._clock = clock
        self.recorder = Recorder(clock)
        self._below: Below = NothingBelow()
        if tiers is not None:
            self._below = TiersBelow(self._cache, tiers, self.recorder, clock, options.preemption)
        order = ORDERS[options.order]
        self._fair = FairShare(parse_weights(options.tenant_weight)) if options.fair_share else None
        self._estimate = OutputEstimate()
        admission = Admission(
            self._cache, options.max_num_batched_tokens, POLICIES[options.admission], self._estimate, self._below
        )
        self._waiting = WaitingQueue(lambda: order.make(clock, self._cached_len), admission.need_len, self._fair)
        self.slots = AdapterSlots(num_adapter_slots)
        """Where adapters are; whoever executes the steps follows its changes."""
        self._running = RunningSet(
            self._cache, options.max_num_seqs, self._below, self.slots, by_priority=order.ranks_running
        )
        self._look_ahead: LookAhead = NoLookAhead()
        if prefix_cache and options.look_ahead:
            self._look_ahead = SharedPrefixes(self._cached_len, by_priority=order.ranks_running)
        self._budget = TokenBudget(
            options.max_num_batched_tokens, tpot_target_s=options.tpot_target, ttft_target_s=options.ttft_target
        )
        self._chooser = StepChooser(
            waiting=self._waiting,
            running=self._running,
            admission=admission,
            slots=self.slots,
            look_ahead=self._look_ahead,
            budget=self._budget,
            recorder=self.recorder,
            clock=clock,
            order=order,
            aging_s=options.aging_s,
            may_preempt=options.preempt_for_priority,
            may_probe=prefix_cache,
        )
        self._rate = DepartureRate(clock)
        self._counters = Counters()
        self._arrivals = count()
        self._in_flight: ScheduledStep | None = None
        self._steady: SteadyBatch | None = None

    # -- arrivals and departures ------------------------------------------------------------------------------

    def add(self, *requests: Request, was_accepted: bool = False) -> None:
        """Queue requests, all or none (the choices of one user request arrive together).

        Args:
            requests: New, or continued from an earlier engine.
            was_accepted: Whether an earlier engine had taken them: a full queue does not refuse them.

        Raises:
            PromptTooLongError: Prompt and wanted tokens exceed `max_model_len`.
            RequestTooLargeError: The prompt can never fit the KV memory.
            InvalidParameterError: There are more choices than could ever wait and run together.
            CapacityError: The queue is full; says when to try again.
        """
        try:
            self._refuse(requests, was_accepted=was_accepted)
        except TriviumError:
            self._counters.num_refused += len(requests)
            raise
        now_s = self._clock.now_s()
        for request in requests:
            request.sequence = next(self._arrivals)
            request.queued_s = now_s
            request.end_len = self._limits.end_len(request)
            request.state = RequestState.WAITING
            self.programs.join(request)
            self._waiting.add(request)
            self.recorder.arrived(request)
            if request.choice == 0:  # the others wait for its prompt
                self._below.queued(request, longest_hit(request))
        if self._running.tables.num_free == 0:  # then nobody is chosen anew, and asked why others wait
            self.recorder.blocked(WaitReason.SEAT)

    def end_len(self, request: Request) -> int:
        """Return the number of tokens with which a request would end at the latest, were it added now."""
        return self._limits.end_len(request)

    def ensure_room(self, *requests: Request, num_expected: int) -> None:
        """Raise what `add` would if it were called with these after `num_expected` others that are still to come."""
        self._refuse(requests, was_accepted=False, num_expected=num_expected)

    def set_max_queue(self, max_queue: int) -> None:
        """Let so many requests wait from now on; those that wait already stay."""
        self._options = replace(self._options, max_queue=max_queue)

    def _refuse(self, requests: Sequence[Request], *, was_accepted: bool, num_expected: int = 0) -> None:
        for request in requests:
            self._limits.refuse_misfit(request)
        if was_accepted:
            return
        most = self._options.max_queue + self._options.max_num_seqs
        if len(requests) > most:
            raise InvalidParameterError(
                f"{len(requests)} answers are asked for; this server holds at most {most} at a time "
                f"(max_num_seqs {self._options.max_num_seqs} running, max_queue {self._options.max_queue} waiting). "
                "Ask for fewer",
                param="n" if requests[0].params.best_of is None else "best_of",
            )
        if len(self._waiting) + num_expected + len(requests) > self._options.max_queue + self._running.tables.num_free:
            raise CapacityError(
                f"{len(requests)} more answers do not fit: {len(self._waiting)} wait already, of at most "
                f"{self._options.max_queue}; try again later",
                retry_after_s=self._rate.retry_after_s(len(self._waiting)),
            )

    def abort(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request now, wherever it is; its part of a step in flight is dropped at `commit`."""
        if request.state is RequestState.FINISHED:
            return
        self._counters.num_aborted += 1
        self._end(request, reason)

    def finish(self, request: Request, reason: FinishReason, output_len: int) -> None:
        """Record that an answer is complete for a reason that its text gave, after the `commit` of its last token.

        Its part of a step in flight is dropped at `commit`. For one that has ended by then only the reason is noted.

        Args:
            request: Waiting, running or finished.
            reason: Why it is complete.
            output_len: Tokens of the answer; what `commit` was given beyond them is dropped.
        """
        if request.output_len > output_len:  # in a new list: a step in flight may still look at the old one
            request.tokens = request.tokens[: request.prompt_len + output_len]
        if request.state is RequestState.FINISHED:
            request.finish_reason = reason
            return
        self._count_finished(request)
        self._end(request, reason)

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.state is RequestState.WAITING:
            self._waiting.remove(request)
            self._look_ahead.forget(request)
            self._finish(request, reason)
        else:
            self._leave(request, reason)

    def _leave(self, request: Request, reason: FinishReason) -> None:
        self._running.stop(request, keep=True)
        self._end_prefill(request)
        self._finish(request, reason)

    def _end_prefill(self, request: Request) -> None:
        """Let go of whoever waits for a prefix that this request does not compute any more."""
        self._release(self._look_ahead.end(request))

    def _release(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._waiting.release(request)
            self.recorder.release(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        self._below.forget(request)
        self.programs.leave(request)
        self.recorder.ended(request)
        self._rate.note()

    # -- choosing ---------------------------------------------------------------------------------------------

    def next(self) -> ScheduledStep | None:
        """Choose the next step; `None` when nothing can run.

        Effects:
            The step must be given to `commit`, or to `discard` when it was not executed, before the next call. That
            may change the same record.
        """
        if self._in_flight is not None:
            raise InternalError("the last step was neither committed nor discarded")
        steady = self._steady
        if steady is not None and not self._may_start and steady.move_on():
            self._in_flight = steady.scheduled
        else:
            self._in_flight = self._choose()
        return self._in_flight

    def prepare(self) -> None:
        """While a step is in flight: make the next one ready, as far as that is known before its tokens are."""
        if self._steady is not None and self._in_flight is self._steady.scheduled:
            self._steady.prepare()

    def foresee(self, token_ids: Int32Array) -> Step | None:
        """Return the step that `next` will give once these draws are committed; `None` where that is not known.

        Args:
            token_ids: [R] what the wanted rows drew, without an error among them.
        """
        if self._steady is None or self._may_start:
            return None
        return self._steady.foresee(token_ids)

    @property
    def _may_start(self) -> bool:
        """Whether a request waits and there is a seat for it, or may be made."""
        has_seat = self._running.tables.num_free > 0 or self._options.preempt_for_priority
        return self._waiting.num_ready > 0 and has_seat

    def _choose(self) -> ScheduledStep | None:
        self._steady = None
        self.pins.expire()
        self.programs.expire()
        draft = StepDraft(self._options.max_num_batched_tokens, self._max_rows)
        self._chooser.choose(draft)
        for request, num_tokens, kind in self._running.preempted:
            self._end_prefill(request)
            self._waiting.add(request)
            self._counters.num_preemptions += 1
            self.recorder.preempted(request, num_tokens, kind)
        self._running.preempted.clear()
        self._note_why_others_wait(draft)
        if not draft.entries:
            return None
        entries = list(draft.entries.values())
        fresh = [entry.request for entry in entries if entry.is_fresh]
        for request in fresh:
            self.recorder.started(request, self._below.found(request))
        copies = [copy for request in fresh for copy in self._cache.copies(request.held)]
        imports = [page for request in fresh for page in self._below.imports(request)]
        step = build_step(entries, self._running.tables, copies)
        scheduled = ScheduledStep(step, entries, imports, self._clock.now_s())
        if is_steady(scheduled, self._running) and not self._may_start:
            self._steady = SteadyBatch(scheduled, self._running, self._cache)
        return scheduled

    def _note_why_others_wait(self, draft: StepDraft) -> None:
        reason = self._chooser.why_nobody_more(draft)
        self.recorder.blocked(reason)
        if reason is WaitReason.ORDER and (head := self._waiting.oldest()) is not None:
            self.recorder.hold(head, WaitReason.PAGES)

    def waited_too_long(self) -> list[tuple[Request, CapacityError]]:
        """Return the requests that wait for their first start since more than `max_queue_wait`, and what to tell them.

        Cost: O(those, and requests that were preempted).
        """
        limit_s = self._options.max_queue_wait
        if limit_s is None or not len(self._waiting):
            return []
        before_s = self._clock.now_s() - limit_s
        late = takewhile(lambda request: request.queued_s < before_s, self._waiting.everyone())
        told = f"the request waited more than {limit_s:g} s for its start (max_queue_wait); try again later"
        retry_after_s = self._rate.retry_after_s(len(self._waiting))
        return [
            (request, CapacityError(told, retry_after_s=retry_after_s)) for request in late if not request.has_begun
        ]

    # -- recording --------------------------------------------------------------------------------------------

    def learn(self, scheduled: ScheduledStep, seconds: float) -> None:
        """Learn from how long a step took, where targets ask for it."""
        if self._budget.is_adaptive:
            num_decodes = sum(entry.num_tokens == 1 for entry in scheduled.entries)
            self._budget.cost.learn(num_decodes, scheduled.step.num_tokens - num_decodes, seconds)

    def commit(self, scheduled: ScheduledStep, outcomes: Sequence[Outcome]) -> list[Request]:
        """Record that a step was executed.

        Args:
            scheduled: What `next` returned last.
            outcomes: One per entry; those of requests that were aborted meanwhile are ignored.

        Returns:
            The requests that ended with this step, with `finish_reason` set: what the outcome says, else `LENGTH`
            for those that reached their `end_len`. Others may be told to `finish` when their text has been read.
        """
        ensure(scheduled is self._in_flight, "the committed step is not the one in flight")
        self._in_flight = None
        self._below.note_step(scheduled)
        finished = []
        for entry, outcome in zip(scheduled.entries, outcomes, strict=True):
            if entry.request.state is RequestState.RUNNING and self._record(entry, outcome, scheduled.chosen_s):
                finished.append(entry.request)
        return finished

    def _record(self, entry: Entry, outcome: Outcome, chosen_s: float) -> bool:
        """Take over one outcome; return whether the request ended."""
        request = entry.request
        if entry.draws and not outcome.tokens and outcome.finish is None:
            raise InternalError(f"{request.request_id} drew nothing")
        if entry.is_fresh:
            self._record_start(request)
        request.computed_len = entry.start + entry.num_tokens
        if entry.num_rows > entry.draws:
            request.num_scored += entry.num_scored
        request.tokens.extend(outcome.tokens)
        if request.program is not None:
            request.program.used_tokens += entry.num_tokens
        if self._fair is not None:
            self._fair.charge(request.tenant, entry.num_tokens)
        finish = outcome.finish or (FinishReason.LENGTH if _is_at_end(entry) else None)
        if entry.start < request.started_len:  # no decode
            self.recorder.computed(request, entry.start, entry.num_tokens, chosen_s, has_drawn=bool(outcome.tokens))
            if finish is None:
                self._enter(request)
        if finish is not None:
            self._count_finished(request)
            self._leave(request, finish)
            return True
        if self._cache.has_windows:
            self._cache.release_window(request.held, request.computed_len)
        return False

    def _count_finished(self, request: Request) -> None:
        self._counters.num_finished += 1
        self._estimate.learn(request.output_len)

    def _enter(self, request: Request) -> None:
        """Let others find what was computed, those who were held for it first of all."""
        self._cache.settle(request.held, computed_tokens(request))
        self._release(self._look_ahead.advance(request))

    def _record_start(self, request: Request) -> None:
        self._cache.confirm_copies(request.held)
        self._below.forget(request)
        if request.num_preemptions == 0:
            self._counters.queried_tokens += request.prompt_len
            self._counters.hit_tokens += request.cached_len

    def discard(self, scheduled: ScheduledStep, *, is_import_bad: bool = False) -> None:
        """Record that a step was not executed: it leaves nothing behind.

        Args:
            scheduled: What `next` returned last.
            is_import_bad: Whether its imports failed; then those who start with it go without the tiers.
        """
        ensure(scheduled is self._in_flight, "the discarded step is not the one in flight")
        self._in_flight = None
        for entry in scheduled.entries:
            if entry.is_fresh and entry.request.state is RequestState.RUNNING:
                if is_import_bad:
                    self._below.give_up(entry.request)
                self._running.stop(entry.request, keep=False)
                self._end_prefill(entry.request)
                entry.request.state = RequestState.WAITING
                self._waiting.add(entry.request)
                self.recorder.undone(entry.request)

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting) or bool(self._running.requests)

    def _cached_len(self, request: Request) -> int:
        return self._cache.index.match_len(request.known_array(), request.namespace, longest_hit(request))

    def follow_cache(self, follower: PageFollower) -> None:
        """Tell `follower` what the prefix index holds; to be called before the first request."""
        self._cache.follow(follower)

    def flush(self) -> None:
        """Drop all cached KV that no running request uses."""
        self._cache.index.flush()
        self._below.flush()

    def check(self) -> list[str]:
        """Re-derive by brute force who owns every page; return the differences, none when all is well."""
        holdings = [request.held for request in self._running.requests] + [pin.holding for pin in self.pins]
        problems = check(self._cache, holdings) + self._running.tables.problems(self._running.requests)
        problems += self.slots.problems(self._running.requests)
        return problems + self._below.problems() + self._look_ahead.problems() + self.programs.problems()

    def _pinned_len(self, request: Request) -> int:
        return self.pins.lost_len(request.known_array(), request.namespace) if self.pins else 0

    def pin(self, pin_id: str, tokens: Int32Array, namespace: Hashable, ttl_s: float | None) -> Pin | PinRefusal:
        """Keep a cached prefix, unless a request under way may then not get the memory that it was promised."""
        made = self.pins.pin(pin_id, tokens, namespace, ttl_s)
        if isinstance(made, Pin) and any(map(self._limits.outgrows, self._open_requests())):
            self.pins.unpin(pin_id)
            return PinRefusal("requests under way may need the memory; try again when they have ended", is_final=False)
        return made

    def _open_requests(self) -> Iterator[Request]:
        yield from self._running.requests
        yield from self._waiting.everyone()

    def describe_cache(self) -> dict[str, object]:
        """Describe the cache in full; see `statistics.describe_cache`."""
        return describe_cache(self.stats(), self._cache, self.pins, self._running.requests, self._eviction)

    def stats(self) -> SchedulerStats:
        """Return counters since the start and the state now."""
        return summarize(
            self._counters, self.recorder, self._estimate, self._cache, self._running.requests, len(self._waiting)
        )


def _is_at_end(entry: Entry) -> bool:
    """Return whether a request has all tokens that it may have, and nothing to compute of them."""
    target = len(entry.request.tokens)
    return target >= entry.request.end_len and (entry.draws or entry.request.computed_len == target)
