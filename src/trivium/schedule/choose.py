"""Who gets how many tokens of the next step.

Every decoding request gets its token first, in the order in which they started (a budget smaller than the number of
decoding requests lets the last started wait). What is left of the token budget goes to prefills::

    half        the oldest request that still has a prompt to compute, running or waiting: nothing starves
    the rest    shortest first, running and waiting alike: a long prompt does not hold up short ones
    what is     the oldest again
    left over

A waiting request starts in the step in which it gets its first tokens, if its pages fit (see `admit`). One that does
not fit is passed by; but once `MAX_OVERTAKEN` later arrivals have started before the oldest waiting request, nobody
else starts until it does. So a prompt is computed at no less than half the speed at which it would be without later
arrivals, and memory is denied to the oldest for at most that many starts and the answers that then run.

Other orders (longest cached prefix, tree order, priority) would replace the two rankings here: `sequence`, and
tokens to compute.
"""

from __future__ import annotations

from heapq import merge

from trivium.base.errors import ensure
from trivium.base.intmath import ceil_div
from trivium.schedule.admit import Admission
from trivium.schedule.request import Request, RequestState
from trivium.schedule.running import RunningSet, StepDraft
from trivium.schedule.timeline import WaitReason
from trivium.schedule.waiting import Ranked, WaitingQueue

MAX_OVERTAKEN = 64
"""Later arrivals that may start before the oldest waiting request."""
PROBES_PER_STEP = 2
"""Waiting requests per step, in turns, that fit only if enough of them is cached, and are looked up to find out."""


class StepChooser:
    """Turns the waiting queue and the running set into the draft of a step."""

    def __init__(self, waiting: WaitingQueue, running: RunningSet, admission: Admission, *, prefix_cache: bool) -> None:
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._probes = PROBES_PER_STEP if prefix_cache else 0
        self._probed_until = -1

    def choose(self, draft: StepDraft) -> None:
        """Fill `draft` with entries.

        Effects:
            Waiting requests may start; running ones may be preempted and then lie in `RunningSet.preempted`.
        """
        self._running.grant_decodes(draft)
        if draft.tokens_left and (len(self._waiting) or len(draft.entries) < len(self._running.requests)):
            self._share_prefill(draft)

    def why_nobody_more(self, draft: StepDraft) -> WaitReason:
        """Return what keeps the requests that still wait, and are not held, from starting after this choice."""
        head = self._waiting.oldest()
        if head is None:
            return WaitReason.STEP
        if self._running.tables.num_free == 0:
            return WaitReason.SEAT
        if draft.tokens_left == 0 or draft.rows_left <= 0:
            return WaitReason.BUDGET
        return WaitReason.ORDER if head.overtaken >= MAX_OVERTAKEN else WaitReason.PAGES

    def _share_prefill(self, draft: StepDraft) -> None:
        prefilling: list[Ranked] = sorted(
            (request.target_len - request.computed_len, request.sequence, request)
            for request in self._running.requests
            if request.target_len - request.computed_len > 1
        )
        head = None
        if self._can_start(draft):
            self._admission.begin_step(self._running.requests)
            head = self._waiting.oldest()
        oldest = min(
            (request for request in [head, *(ranked[2] for ranked in prefilling)] if request is not None),
            key=lambda request: request.sequence,
            default=None,
        )
        if oldest is None:
            return
        self._offer(draft, oldest, ceil_div(draft.tokens_left, 2))
        self._offer_shortest(draft, prefilling, oldest)
        if oldest.state is RequestState.RUNNING:
            self._running.grant(draft, oldest, oldest.target_len)

    def _offer_shortest(self, draft: StepDraft, prefilling: list[Ranked], oldest: Request) -> None:
        """Offer what is left to everyone but `oldest`, shortest first, until a waiting request does not fit."""
        is_passed_by = False
        for _, _, request in merge(prefilling, self._startable(draft)):
            if draft.tokens_left == 0:
                return
            if request is oldest:
                continue
            if request.state is RequestState.WAITING:
                if not self._waiting.is_startable(request):
                    continue
                if not self._admission.fits_uncached(request.need_len):
                    # Nor does any that needs more, unless enough of it is cached.
                    is_passed_by = True
                    break
            self._offer(draft, request, draft.tokens_left)
        for _, _, request in prefilling:
            if request is not oldest and request.state is RequestState.RUNNING and request not in draft.entries:
                self._running.grant(draft, request, draft.tokens_left)
        if is_passed_by:
            self._probe(draft)

    def _probe(self, draft: StepDraft) -> None:
        """Look up a few of those that were passed by."""
        if not self._startable(draft):
            return
        batch = self._waiting.after(self._probed_until, self._probes)
        self._probed_until = batch[-1].sequence if batch else -1
        for request in batch:
            if draft.tokens_left and self._waiting.is_startable(request):
                self._offer(draft, request, draft.tokens_left)

    def _can_start(self, draft: StepDraft) -> bool:
        has_room = self._running.tables.num_free > 0 and draft.rows_left > 0
        return has_room and not draft.has_preempted and len(self._waiting) > 0

    def _may_start(self, request: Request) -> bool:
        """Return whether a waiting request would not overtake one that was overtaken too often."""
        head = self._waiting.oldest()
        return head is None or head.overtaken < MAX_OVERTAKEN or request.sequence <= head.sequence

    def _startable(self, draft: StepDraft) -> list[Ranked]:
        """Return whom the rules let start, by need; only the oldest once it was overtaken too often."""
        if not self._can_start(draft):
            return []
        head = self._waiting.oldest()
        if head is not None and head.overtaken >= MAX_OVERTAKEN:
            return [(head.need_len, head.sequence, head)]
        return self._waiting.by_need()

    def _offer(self, draft: StepDraft, request: Request, num_tokens: int) -> None:
        """Give a request up to `num_tokens` tokens, starting it first when it waits and fits."""
        if request.state is RequestState.RUNNING:
            self._running.grant(draft, request, num_tokens)
            return
        if not self._can_start(draft) or not self._may_start(request):
            return
        holding = self._admission.try_open(request)
        if holding is None:
            return
        self._running.start(request, holding)
        self._running.grant(draft, request, num_tokens)
        ensure(request in draft.entries, f"{request.request_id} fits and got no token")
        draft.entries[request].is_fresh = True
        self._note_start(request, holding.cached_len)

    def _note_start(self, request: Request, cached_len: int) -> None:
        self._waiting.remove(request)
        request.overtaken = 0
        if request.num_preemptions == 0:
            request.cached_len = min(cached_len, request.prompt_len - 1)
        head = self._waiting.oldest()
        if head is not None and head.sequence < request.sequence:
            head.overtaken += 1
