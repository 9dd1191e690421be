"""Who gets how many tokens of the next step.

Every decoding request gets a token first (a budget smaller than their number lets the last ones wait). What is left
of the token budget goes to those whose grammars have forced several, and to prefills, running and waiting alike::

    forced      the rest of what was forced, in the order in which the requests run
    oldest      where the order shares with it: half of what is left, so that it computes at no less than half speed
    due         requests that came `aging_s` ago, oldest first: from then on nobody overtakes them
    the rest    by the order (`orders`), turn by turn between tenants where shares are fair (`fair`)
    left over   the oldest, or who is in front, again

A waiting request starts in the step in which it gets its first tokens, if there is a seat, if its pages fit (`admit`),
if its adapter finds a slot (`adapter_slots`), and if nobody is computing a prefix that it shares (`look_ahead`). One
that does not fit is passed by, so it never blocks one that does, until it is due: then nobody else starts before it. So
no request waits longer than `aging_s` while others overtake it. (One that is held for a prefix is not overtaken: its
prefix is being computed.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.base.errors import ensure
from trivium.base.intmath import ceil_div
from trivium.schedule.budget import Front, TokenBudget
from trivium.schedule.request import Request, RequestState
from trivium.schedule.timeline import WaitReason

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.schedule.adapter_slots import AdapterSlots
    from trivium.schedule.admit import Admission
    from trivium.schedule.look_ahead import LookAhead
    from trivium.schedule.orders import Order
    from trivium.schedule.recorder import Recorder
    from trivium.schedule.running import RunningSet, StepDraft
    from trivium.schedule.waiting import WaitingQueue

PROBES_PER_STEP = 2
"""Waiting requests per step, in turns, that fit only if enough of them is cached, and are looked up to find out."""
_MOST_PASSED = 4
"""Requests by the order that may turn out not to fit before a step looks for those that need least."""
_MOST_WITHOUT_SLOT = 64
"""Likewise, requests whose adapters find no slot, which says nothing of the others."""


@dataclass(slots=True, kw_only=True)
class StepChooser:
    """Turns the waiting queue and the running set into the draft of a step."""

    waiting: WaitingQueue
    running: RunningSet
    admission: Admission
    """Whether pages fit."""
    slots: AdapterSlots
    """Whether adapters do."""
    look_ahead: LookAhead
    """Whose prefix is being computed."""
    budget: TokenBudget
    """Tokens of a step for prefills."""
    recorder: Recorder
    """Told who is held."""
    clock: Clock
    order: Order
    """Rules of the order; its index is in `waiting`."""
    aging_s: float
    """Seconds after which a waiting request is overtaken by nobody."""
    may_preempt: bool
    """Whether a waiting request of better priority takes the place of running ones."""
    may_probe: bool
    """Whether a request that does not fit by its length may fit by what is cached of it."""
    _probed_until: int = -1
    _may_start: bool = False
    _due_before_s: float = 0.0
    _is_due_waiting: bool = False

    def choose(self, draft: StepDraft) -> None:
        """Fill `draft` with entries.

        Effects:
            Waiting requests may start; running ones may be preempted and then lie in `RunningSet.preempted`.
        """
        self._may_start = self.waiting.num_ready > 0 and not (
            self.admission.policy.is_batchwise and self.running.requests
        )
        self._due_before_s = self.clock.now_s() - self.aging_s
        self._is_due_waiting = False
        if self.may_preempt and self._may_start:
            self._make_room()
        self.running.grant_decodes(draft)
        is_anybody_left = self.waiting.num_ready or len(draft.entries) < len(self.running.requests)
        if draft.tokens_left and (is_anybody_left or draft.unfinished):
            self._share_rest(draft)

    def why_nobody_more(self, draft: StepDraft) -> WaitReason:
        """Return what keeps the requests that still wait, and are not held, from starting after this choice."""
        if self.waiting.num_ready == 0:
            return WaitReason.STEP
        if self.running.tables.num_free == 0:
            return WaitReason.SEAT
        if self.admission.policy.is_batchwise and not self._may_start:
            return WaitReason.BATCH
        if draft.tokens_left == 0 or draft.rows_left <= 0:
            return WaitReason.BUDGET
        return WaitReason.ORDER if self._is_due_waiting else WaitReason.PAGES

    # -- prefills -----------------------------------------------------------------------------------------------

    def _share_rest(self, draft: StepDraft) -> None:
        prefilling = [request for request in self.running.requests if request.is_prefilling]
        if self._can_start(draft):
            self.admission.begin_step(self.running.requests)
        if self.budget.is_adaptive:
            self._limit(draft, prefilling)
        for request in draft.unfinished:
            if draft.tokens_left and request.state is RequestState.RUNNING:
                self.running.grant(draft, request, request.left_len)
        oldest = self._oldest(draft, prefilling) if self.order.shares_with_oldest else None
        if oldest is not None:
            self._offer(draft, oldest, ceil_div(draft.tokens_left, 2))
        if self._offer_due(draft, prefilling):
            self._offer_in_order(draft, prefilling)
        for request in prefilling if oldest is None else [oldest, *prefilling]:
            if draft.tokens_left and request.state is RequestState.RUNNING:
                self.running.grant(draft, request, request.target_len)

    def _limit(self, draft: StepDraft, prefilling: list[Request]) -> None:
        """Leave only as many tokens for prefills as keep the targets."""
        front = min(prefilling, key=lambda request: request.sequence, default=self.waiting.oldest())
        told = None
        if front is not None:
            told = Front(front.left_len, self.clock.now_s() - front.queued_s)
        draft.tokens_left = min(draft.tokens_left, self.budget.for_prefills(len(draft.entries), told))

    def _oldest(self, draft: StepDraft, prefilling: list[Request]) -> Request | None:
        head = self.waiting.oldest() if self._can_start(draft) else None
        known = [request for request in (head, *prefilling) if request is not None]
        return min(known, key=lambda request: request.sequence, default=None)

    def _offer_due(self, draft: StepDraft, prefilling: list[Request]) -> bool:
        """Offer to those that nobody may overtake; return whether all of them have started, or none is left."""
        if not self._can_start(draft):
            return True
        due = self.waiting.due(self._due_before_s)
        if not self.order.shares_with_oldest:
            due += [request for request in prefilling if request.queued_s < self._due_before_s]
            due.sort(key=lambda request: request.sequence)
        for request in due:
            self._offer(draft, request, draft.tokens_left)
            if request.is_ready:
                self._is_due_waiting = True
                return False
        return True

    def _offer_in_order(self, draft: StepDraft, prefilling: list[Request]) -> None:
        """Offer what is left, best first, until the tokens are given, or too many were found not to fit."""
        num_passed = num_without_slot = 0
        for request in self.waiting.offers(prefilling, self._due_before_s):
            if draft.tokens_left == 0:
                return
            if request.state is RequestState.WAITING and not self._can_start(draft):
                return
            self._offer(draft, request, draft.tokens_left)
            if request.is_ready and not self.slots.has_room(request.adapter):
                num_without_slot += 1
            else:
                num_passed += request.is_ready
            if num_passed == _MOST_PASSED or num_without_slot == _MOST_WITHOUT_SLOT:
                break
        if num_passed or num_without_slot == _MOST_WITHOUT_SLOT:
            self._offer_smallest(draft)
            self._probe(draft)

    def _offer_smallest(self, draft: StepDraft) -> None:
        """Offer to those that need least, as long as they fit: somebody who needs more was passed by."""
        for request in self.waiting.by_need():
            if not self.slots.has_room(request.adapter):
                continue
            if draft.tokens_left == 0 or not self._can_start(draft) or not self.admission.fits_uncached(request):
                return
            if not self._would_overtake(request):
                self._offer(draft, request, draft.tokens_left)

    def _probe(self, draft: StepDraft) -> None:
        """Look up a few that may fit by what is cached of them."""
        batch = self.waiting.after(self._probed_until, PROBES_PER_STEP if self.may_probe else 0)
        self._probed_until = batch[-1].sequence if batch else -1
        for request in batch:
            if request.is_ready and not self._would_overtake(request):
                self._offer(draft, request, draft.tokens_left)

    def _would_overtake(self, request: Request) -> bool:
        """Return whether one that nobody may overtake waits before a request, in its line."""
        oldest = self.waiting.oldest_beside(request)
        return oldest is not None and oldest is not request and oldest.queued_s < self._due_before_s

    # -- starts -------------------------------------------------------------------------------------------------

    def _can_start(self, draft: StepDraft) -> bool:
        has_room = self.running.tables.num_free > 0 and draft.rows_left > 0
        return self._may_start and has_room and not draft.has_preempted

    def _offer(self, draft: StepDraft, request: Request, num_tokens: int) -> None:
        """Give a request up to `num_tokens` tokens, starting it first when it waits and may."""
        if request.state is RequestState.RUNNING:
            self.running.grant(draft, request, num_tokens)
            return
        if draft.tokens_left == 0 or not self._can_start(draft):
            return
        if not self.slots.has_room(request.adapter):
            self.recorder.hold(request, WaitReason.ADAPTER)
            return
        if request.adapter is not None:
            self.recorder.release(request)
        if self.look_ahead.hold(request):
            self.waiting.withdraw(request)
            self.recorder.hold(request, WaitReason.PREFIX)
            return
        holding = self.admission.try_open(request)
        if holding is None:
            return
        self.waiting.remove(request)
        if request.num_preemptions == 0:
            request.cached_len = min(holding.cached_len, request.prompt_len - 1)
        self.look_ahead.begin(request)
        self.running.start(request, holding)
        self.running.grant(draft, request, num_tokens)
        ensure(request in draft.entries, f"{request.request_id} fits and got no token")
        draft.entries[request].is_fresh = True

    def _make_room(self) -> None:
        """Let running requests of worse priority make room for the waiting one that starts next, if that does it."""
        oldest = self.waiting.oldest()
        is_due = oldest is not None and oldest.queued_s < self._due_before_s
        head = oldest if is_due else next(self.waiting.offers((), self._due_before_s), None)
        if head is None or not self.running.requests or self.running.requests[-1].priority <= head.priority:
            return
        self.admission.begin_step(self.running.requests)
        lacking = self.admission.lacking(head)
        if self.running.tables.num_free and all(count <= 0 for count in lacking):
            return

        def would_go_first(running: Request) -> bool:
            return running.queued_s < self._due_before_s and not (is_due and head.sequence < running.sequence)

        # Whoever would start before the head once it waits keeps its place: the two would change places for ever.
        for victim in self.running.worse_than(head, lacking, spare=would_go_first):
            self.running.preempt(victim)
