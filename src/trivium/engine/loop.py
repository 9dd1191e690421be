"""The engine loop: choose, launch, collect, record, read.

The same loop serves a process of its own (`engine.process`) and the caller's process (`api.LLM`). It knows the
executor by its protocol only, owns every open answer, and turns each step into deltas. Where a device runs by itself,
the next step is launched before the last one is read (`engine.flight`). A fault in one step ends the answers of that
step with an error and leaves the others, and the loop, alive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from trivium.base.errors import (
    DeadlineExceededError,
    InternalError,
    TriviumError,
    UnsupportedFeatureError,
    ensure,
)
from trivium.base.ids import FinishReason, RequestId
from trivium.engine.admit import Answer, ModelLimits, admit, constrain
from trivium.engine.compiling import Compiling, Refusal
from trivium.engine.flight import Flight, launch
from trivium.engine.journal import Journal, admitting
from trivium.engine.masks import Masks
from trivium.engine.messages import AnswerReport, Delta, Submit
from trivium.engine.operations import adapters_of, operations
from trivium.engine.output import accepted, failed, outcomes_of, read_entry
from trivium.engine.report import report, report_open
from trivium.engine.stats import EngineStats, StepTimes
from trivium.grammar.constraint import constraint_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trivium.base.clock import Clock
    from trivium.config.sampling import SamplingParams
    from trivium.engine.adapters import EngineAdapters, HeldAdapter
    from trivium.engine.kv_events import KVEvents
    from trivium.engine.operations import Answer as CallAnswer
    from trivium.engine.step_trace import StepTrace
    from trivium.runtime.executor import Executor
    from trivium.sampling.batch import Sampled
    from trivium.schedule.decision import ScheduledStep
    from trivium.schedule.request import Request
    from trivium.schedule.scheduler import Scheduler
    from trivium.schedule.step import Step
    from trivium.tiers.lower import LowerTiers
    from trivium.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_WAIT_S = 0.005


class EngineLoop:
    """Runs requests over one executor.

    Invariants:
        Every open answer is known to the scheduler, and the reverse.
        An answer ends with exactly one delta that has a finish reason.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        limits: ModelLimits,
        info: dict[str, object],
        clock: Clock,
        check_accounting: bool = False,
        tiers: LowerTiers | None = None,
    ) -> None:
        """Take ownership of executor, scheduler and the tiers that the scheduler was made with."""
        self._executor = executor
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self.limits = limits
        self.info = info
        self._clock = clock
        self._check_accounting = check_accounting
        self._tiers = tiers
        self.adapters: EngineAdapters | None = None
        """Where adapters are kept, if the executor takes any."""
        self.compiling: Compiling | None = None
        """What has constraints compiled; without it, requests with one are refused."""
        self._masks = Masks(limits.vocab_size)
        self._num_constrained = 0
        """Open answers under a grammar: only steps with one of them need masks."""
        self._refusals: list[Refusal] = []
        self._answers: dict[RequestId, Answer] = {}
        self._choices: dict[str, list[RequestId]] = {}
        self._with_deadline: set[RequestId] = set()
        self._pending: list[Delta] = []
        self._ended: list[AnswerReport] | None = None
        self._flight: Flight | None = None
        """The step that the executor runs between two calls of `step`, when it runs by itself."""
        self._forwarded: Step | None = None
        """The step whose forward pass was launched before it was chosen."""
        self._began_s = self._chosen_s = 0.0
        """When the choice of the step launched last began and ended, on `time.perf_counter`."""
        self._last_step: tuple[ScheduledStep | None, list[Answer]] = (None, [])
        self._noted: tuple[Sequence[Answer], Sequence[Answer]] = ((), ())
        """Whom the journal names: those of the step launched last, and those of the one before."""
        self.trace: StepTrace | None = None
        """Where its steps are written down, if anywhere."""
        self.kv_events: KVEvents | None = None
        """What happens to the prefix cache, where it is to be told."""
        self._stats = EngineStats()
        self._times = StepTimes(self._stats)
        self.journal: Journal | None = None
        """Where a process of its own notes what it is at work on."""

    @property
    def has_work(self) -> bool:
        """Whether a step, or a delta, is waiting."""
        is_loading = self.adapters is not None and self.adapters.is_loading
        has_news = bool(self._pending or self.compiling or is_loading)
        return has_news or self._flight is not None or self._scheduler.has_work

    @property
    def open_requests(self) -> Sequence[str]:
        """Ids of user requests that have not ended."""
        return (*self._choices, *(self.compiling.request_ids if self.compiling else ()))

    def report_ends(self) -> None:
        """Keep a report of every answer that ends from now on, until `take_ended`."""
        self._ended = []

    def take_ended(self) -> list[AnswerReport]:
        """Return the reports of the answers that have ended since the last call, if they are kept."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return ended

    def submit(self, message: Submit) -> None:
        """Queue a request, once its constraint is compiled if it has one; its first delta says that it was accepted.

        Raises:
            RequestError: The request is refused; nothing of it remains.
            CapacityError: The queue is full, or too many constraints wait to be compiled.
        """
        with admitting(self.journal, message.request_id):
            adapter = self.find_adapter(message.adapter, message.adapter_generation)
            answers = admit(message, self.limits, self._tokenizer, now_s=self._clock.now_s(), adapter=adapter)
            if constraint_of(message.params) is None:
                self._queue(message, answers)
                return
            compiling = self._constraints(message.params)
            if not message.was_accepted:
                self._scheduler.ensure_room(*(each.request for each in answers), num_expected=compiling.num_answers)
            compiling.add(message, answers, self._clock.now_s())

    def find_adapter(self, name: str | None, generation: int) -> HeldAdapter | None:
        """Return the adapter that a new request names, if it names one.

        Raises:
            RequestError: It is not there.
        """
        return None if name is None else adapters_of(self.adapters).find(name, generation)

    def take_refusals(self) -> list[Refusal]:
        """Return the requests that were submitted and will not run: their constraint, or by then the queue, refused."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def _constraints(self, params: SamplingParams) -> Compiling:
        if self.compiling is None:
            name = "structured_outputs" if params.structured_outputs is not None else "tools"
            raise UnsupportedFeatureError(f"{name} needs a tokenizer with an end token", param=name)
        return self.compiling

    def _queue_compiled(self) -> None:
        """Queue the requests whose grammars are there."""
        if not self.compiling:
            return
        for each in self.compiling.take(self._clock.now_s()):
            if isinstance(each, Refusal):
                self._refusals.append(each)
                continue
            message, answers, grammar = each
            try:
                with admitting(self.journal, message.request_id):
                    for answer in answers:
                        constrain(answer, grammar, self._scheduler.end_len(answer.request))
                    self._queue(structs.replace(message, was_accepted=True), answers)
            except TriviumError as error:
                self._refusals.append(Refusal(message.request_id, error))

    def _queue(self, message: Submit, answers: Sequence[Answer]) -> None:
        self._scheduler.add(*(answer.request for answer in answers), was_accepted=message.was_accepted)
        for answer in answers:
            self._answers[answer.request.request_id] = answer
            if answer.deadline_at_s is not None:
                self._with_deadline.add(answer.request.request_id)
            self._num_constrained += answer.automaton.is_constrained
        self._choices[message.request_id] = [answer.request.request_id for answer in answers]
        self._stats.prompt_tokens_total += len(message.prompt_ids)
        self._pending.append(accepted(answers[0]))

    def refuse_early(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> None:
        """Check a request without queueing it; waits until its constraint is compiled.

        Raises:
            RequestError: `submit` would refuse it whatever the queue holds.
        """
        message = Submit(request_id="", prompt_ids=list(prompt_ids), params=params, priority=priority)
        admit(message, self.limits, self._tokenizer, now_s=0.0)
        if (wanted := constraint_of(params)) is not None:
            self._constraints(params).check(wanted)

    def abort(self, user_ids: Iterable[str]) -> None:
        """End these requests without further deltas; unknown ids are ignored."""
        user_ids = tuple(user_ids)
        if self.compiling:
            self.compiling.drop(user_ids)
        for user_id in user_ids:
            for request_id in tuple(self._choices.get(user_id, ())):
                self._scheduler.abort(self._answers[request_id].request)
                self._close(self._answers[request_id], FinishReason.ABORT)

    def step(self) -> list[Delta]:
        """Run a step to its end and return its news, along with what was pending; the next one may run already."""
        self._end_late()
        self._queue_compiled()
        flight = self._flight = self._flight or self._launch()
        if flight is None:
            self._wait_for_others()
        elif (sampled := self._collect(flight)) is not None:
            try:
                if flight.runs_by_itself:
                    self._flight = self._launch(unread=flight.answers)
            finally:
                self._read(flight, sampled)
        if self._flight is not None:
            self._scheduler.prepare()
        if self._check_accounting:
            self._check()
        deltas, self._pending = self._pending, []
        return deltas

    def _end_late(self) -> None:
        """End the answers that waited too long for their start, or whose deadline has passed."""
        if self._with_deadline:
            self._end_overdue()
        waited = self._scheduler.waited_too_long()
        late = [one for one in waited if not self._has_begun(self._answers[one[0].request_id].user_id)]
        for request, error in late:  # none is in the middle of its answers
            self._end(request, error)

    def _wait_for_others(self) -> None:
        """Sleep a little while nothing can run but what is being read from a lower tier, or compiled."""
        if self._tiers is not None and self._scheduler.has_work:
            self._tiers.worker.wait(_WAIT_S)
        elif self.compiling:
            self.compiling.wait(_WAIT_S)
        elif not self._pending:
            time.sleep(_WAIT_S)  # an adapter is being loaded

    def idle(self) -> bool:
        """Use a moment in which nothing runs; returns whether there is more to be done with the next one."""
        return self._tiers is not None and self._tiers.write_hot(self._executor)

    def _move_pages(self, scheduled: ScheduledStep) -> bool:
        """Copy pages out of the pool and into it before a step; returns whether the step can be executed."""
        if self._tiers is None:
            return True
        try:
            self._tiers.export(self._executor)
            for group, page, content in scheduled.imports:
                self._executor.import_page(group, page, content)
        except Exception:
            logger.exception("pages could not be moved between KV memory and its lower tiers; computing instead")
            self._scheduler.discard(scheduled, is_import_bad=True)
            return False
        except BaseException:
            self._scheduler.discard(scheduled)
            raise
        return True

    def _launch(self, unread: Sequence[Answer] = ()) -> Flight | None:
        """Choose a step and have the executor run it; `None` when nothing can run.

        Args:
            unread: The answers of the step before, when it is still to be read.
        """
        self._began_s = time.perf_counter()
        scheduled = self._scheduler.next()
        if self.adapters is not None:
            self.adapters.place()
        if scheduled is None:
            return None
        self._chosen_s = time.perf_counter()
        if not self._move_pages(scheduled):
            return None
        answers = self._answers_of(scheduled)
        self._note(answers, unread)
        is_forwarded, self._forwarded = scheduled.step is self._forwarded, None
        try:
            masks = self._masks if self._num_constrained else None
            return launch(self._executor, scheduled, answers, masks, is_forwarded=is_forwarded)
        except BaseException:  # Ctrl-C in the caller's thread: as if the step had never been chosen
            self._scheduler.discard(scheduled)
            raise

    def _answers_of(self, scheduled: ScheduledStep) -> list[Answer]:
        """Return the answers to a step's entries: those of the step before when it is the same record, moved on."""
        known, answers = self._last_step
        if known is not scheduled:
            answers = [self._answers[entry.request.request_id] for entry in scheduled.entries]
            self._last_step = scheduled, answers
        return answers

    def _note(self, answers: Sequence[Answer], unread: Sequence[Answer]) -> None:
        """Note in the journal whom the engine is at work on, when it is others than before."""
        if self.journal is None:
            return
        work = answers, () if unread is answers else unread
        if work[0] is not self._noted[0] or work[1] is not self._noted[1]:
            self._noted = work
            self.journal.note_step((answer.user_id, answer.request.choice) for part in work for answer in part)

    def _collect(self, flight: Flight) -> Sampled | None:
        """Wait for a step and record its tokens; `None` when it failed, and its answers have ended."""
        scheduled = flight.scheduled
        try:
            sampled = flight.draws.result()
            flight.errors.update({row: InternalError(text) for row, text in sampled.errors.items()} | flight.errors)
            if flight.runs_by_itself and not flight.errors:
                self._forward_early(sampled)
            outcomes = outcomes_of(scheduled.entries, flight.answers, sampled, flight.errors)
        except Exception as error:
            self._flight, sampled = None, None
            self._scheduler.discard(scheduled)
            self._fail_step(flight, error)
        else:
            self._flight = None
            self._scheduler.commit(scheduled, outcomes)
        ended_s = time.perf_counter()
        self._times.note(self._began_s, self._chosen_s, ended_s, len(scheduled.step.token_ids))
        self._scheduler.learn(scheduled, ended_s - self._began_s)
        return sampled

    def _forward_early(self, sampled: Sampled) -> None:
        """Launch the forward pass of the step that will be chosen next, if that is known: all else can wait."""
        must_export = self._tiers is not None and self._tiers.has_exports
        may_end = self._num_constrained > 0  # any token may complete a grammar
        step = None if must_export or may_end else self._scheduler.foresee(sampled.token_ids)
        if step is not None and step is not self._forwarded:
            with suppress(Exception):  # then it is launched again in its place, and told from there
                self._executor.forward(step)
                self._forwarded = step

    def _read(self, flight: Flight, sampled: Sampled) -> None:
        """Turn the draws of a recorded step into news; answers may turn out to have ended with it."""
        rows, pending, stats = flight.rows, self._pending, self._stats
        try:
            for entry, answer in zip(flight.scheduled.entries, flight.answers, strict=True):
                news = None if answer.is_closed else read_entry(entry, answer, rows, sampled, flight.errors)
                if news is not None:
                    pending.append(news)
                    if num_tokens := len(news.token_ids):
                        stats.generation_tokens_total += num_tokens
                        stats.forced_tokens_total += num_tokens - 1  # one is drawn
                    if news.finish_reason is not None:
                        self._finish(answer, FinishReason(news.finish_reason))
        except BaseException as error:  # some answers have read their token, some have not: none can go on
            self._fail_step(flight, error)
            if not isinstance(error, Exception):
                raise

    def _finish(self, answer: Answer, reason: FinishReason) -> None:
        self._scheduler.finish(answer.request, reason, answer.num_told)
        self._close(answer, reason)

    def _fail_step(self, flight: Flight, error: BaseException) -> None:
        """End every answer of a step that went wrong."""
        open_answers = [answer for answer in flight.answers if not answer.is_closed]
        ids = [answer.request.request_id for answer in open_answers]
        logger.error("step failed, ending its %d requests: %s", len(ids), " ".join(ids), exc_info=error)
        self._stats.step_errors_total += 1
        message = f"the step failed inside the engine ({type(error).__name__}); the server's log says more"
        for answer in open_answers:
            self._end(answer.request, InternalError(message))

    def _end_overdue(self) -> None:
        now_s = self._clock.now_s()
        for request_id in tuple(self._with_deadline):
            answer = self._answers[request_id]
            if answer.deadline_at_s is not None and now_s >= answer.deadline_at_s:
                waited = now_s - answer.request.arrival_s
                passed = DeadlineExceededError(f"the request's deadline passed after {waited:.1f} s")
                self._end(answer.request, passed)

    def _end(self, request: Request, error: TriviumError) -> None:
        answer = self._answers.get(request.request_id)
        if answer is None:
            return
        self._scheduler.abort(request, FinishReason.ERROR)
        self._pending.append(failed(answer, error))
        self._finish(answer, FinishReason.ERROR)

    def _close(self, answer: Answer, reason: FinishReason) -> None:
        request_id = answer.request.request_id
        answer.is_closed = True
        self._num_constrained -= answer.automaton.is_constrained
        del self._answers[request_id]
        self._with_deadline.discard(request_id)
        siblings = self._choices[answer.user_id]
        siblings.remove(request_id)
        if not siblings:
            del self._choices[answer.user_id]
        counts = self._stats.finished_total
        counts[reason.value] = counts.get(reason.value, 0) + 1
        if self._ended is not None:
            self._ended.append(report(answer, self._scheduler.recorder))

    def _check(self) -> None:
        for difference in self.check():
            logger.error("page accounting: %s", difference)
            self._stats.accounting_differences_total += 1

    def check(self) -> list[str]:
        """Re-derive the owner of every page by brute force; returns the differences."""
        return self._scheduler.check()

    def flush(self) -> dict[str, object]:
        """Forget every cached prefix that no running request uses."""
        self._scheduler.flush()
        if self.kv_events is not None and self._tiers is not None:
            self.kv_events.cleared(self._tiers.stats())
        return {"flushed": True}

    def call(self, name: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> CallAnswer | Future[CallAnswer]:
        """Do one of the `operations`; one that takes its time is promised.

        Raises:
            InternalError: The name is unknown.
        """
        known = operations(self, self._scheduler)
        ensure(name in known, f"unknown engine call '{name}'; known are {', '.join(known)}")
        return known[name](**arguments)

    def report(self, request_ids: Collection[str] | None) -> dict[str, object]:
        """Describe the open answers of some requests in full, or all in short; see `report.read_reports`."""
        return report_open(self._answers.values(), self._scheduler.recorder, request_ids)

    def queued_requests(self) -> list[str]:
        """Return the user requests of which nothing has been computed in this engine, nor delivered by another."""
        new = self.compiling.new_requests() if self.compiling else []
        return new + [user_id for user_id in self._choices if not self._has_begun(user_id)]

    def _has_begun(self, user_id: str) -> bool:
        """Return whether any choice of an open request has run, or has ended."""
        requests = [self._answers[request_id].request for request_id in self._choices[user_id]]
        return len(requests) < requests[0].params.num_draws or any(request.has_begun for request in requests)

    def stats(self) -> dict[str, object]:
        """Counters and gauges, as plain values."""
        self._stats.read(self._scheduler, self._tiers, self.compiling)
        self._times.count()
        built: dict[str, object] = msgspec.to_builtins(self._stats)
        return built

    def close(self) -> None:
        """Let a running step end, write what the lower tiers are to keep, and give the executor back."""
        if self.compiling is not None:
            self.compiling.compiler.close()
        if self.adapters is not None:
            self.adapters.close()
        if self._flight is not None:
            with suppress(Exception):
                self._flight.draws.result()
        if self._tiers is not None:
            self._tiers.close(self._executor)
        self._executor.close()
        if self.trace is not None:
            self.trace.close()
