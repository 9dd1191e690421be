"""Writes the timelines of requests, and the sums over them that `/metrics` shows.

Told of arrivals, starts, prompt chunks, preemptions and ends; never of a decoded token. Why requests wait is not noted
per request and step either: at each moment nobody more starts for one reason, so the seconds are summed by reason once,
and a request's share is the difference of two readings::

    reason     step  │ seat ......................... │ pages ......... │ seat ...
    request a        arrival ─────────── seat 5 s ──── pages 3 s ── start
    request b                        arrival ─ prefix 4 s (its own) ── released ── seat ...

A request that waits for something of its own (`hold`) leaves the common account until its `release`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.schedule.timeline import Chunk, Preemption, PreemptionKind, Start, Tier, WaitReason

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.schedule.request import Request

_REASONS = tuple(WaitReason)


@dataclass(slots=True, eq=False)
class Wait:
    """A wait under way."""

    sums: dict[WaitReason, float]
    """Seconds by reason of the parts that have ended."""
    since_s: float
    """When the present part began."""
    reading: list[float] | None
    """The common account at that moment; `None` when the request waits for something of its own."""
    own: WaitReason | None = None


class Recorder:
    """Keeps the timelines of one scheduler's requests.

    Invariants:
        A request waits (`Request.wait`) from `arrived` or `preempted` until `started` or `ended`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = [0.0] * len(_REASONS)
        self._reason = WaitReason.STEP
        self._born_s = self._since_s = clock.now_s()
        self._num_own: Counter[WaitReason] = Counter()
        self.waited_seconds: dict[WaitReason, float] = dict.fromkeys(WaitReason, 0.0)
        """Seconds by reason of all waits that have ended."""
        self.cached_tokens: dict[Tier, int] = dict.fromkeys(Tier, 0)
        """Prompt tokens found at first starts, by where."""
        self.preemptions: dict[PreemptionKind, int] = dict.fromkeys(PreemptionKind, 0)

    # -- waiting ----------------------------------------------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """Begin a request's wait, which it has done since its arrival; one from before our time had another engine."""
        arrived_s, since_s = request.arrival_s, max(request.arrival_s, self._since_s)
        here_s = max(arrived_s, self._born_s)
        earlier = {WaitReason.ENGINE: here_s - arrived_s, WaitReason.STEP: since_s - here_s}
        self._wait_from(request, since_s)
        if request.wait is not None:
            request.wait.sums = {reason: seconds for reason, seconds in earlier.items() if seconds > 0.0}

    def undone(self, request: Request) -> None:
        """Note that a start's step was not executed; the request waits again."""
        self._wait_from(request, self._clock.now_s())

    def blocked(self, reason: WaitReason) -> None:
        """Say why nobody more starts from now on, but for those that are held."""
        if reason is not self._reason:
            now_s = self._clock.now_s()
            self._seconds[_REASONS.index(self._reason)] += now_s - self._since_s
            self._reason, self._since_s = reason, now_s

    def hold(self, request: Request, reason: WaitReason) -> None:
        """Note that a waiting request waits for something of its own."""
        wait = request.wait
        if wait is None or wait.own is reason:
            return
        self._end_part(wait, self._clock.now_s())
        wait.own, wait.reading = reason, None
        self._num_own[reason] += 1

    def release(self, request: Request) -> None:
        """Note that a request that was held waits like all others from now on."""
        wait = request.wait
        if wait is not None and wait.own is not None:
            self._leave_own(wait)
            wait.reading = self._reading(wait.since_s)

    def reason_of(self, request: Request) -> WaitReason | None:
        """Return why a request waits at this moment, or `None` when it does not wait."""
        return None if request.wait is None else request.wait.own or self._reason

    def waited(self, request: Request) -> dict[WaitReason, float]:
        """Return for how many seconds a request has waited for which reason, the present wait included."""
        sums = request.timeline.waited
        if (wait := request.wait) is not None:
            present = Wait(dict(wait.sums), wait.since_s, wait.reading, wait.own)
            self._end_part(present, self._clock.now_s())
            for reason, seconds in present.sums.items():
                sums[reason] = sums.get(reason, 0.0) + seconds
        return sums

    def count_waiting(self, num_waiting: int) -> dict[WaitReason, int]:
        """Return how many of `num_waiting` requests wait for which reason."""
        counts = dict.fromkeys(WaitReason, 0) | {reason: self._num_own[reason] for reason in self._num_own}
        counts[self._reason] += num_waiting - self._num_own.total()
        return counts

    # -- running ----------------------------------------------------------------------------------------------

    def started(self, request: Request, cached: Mapping[Tier, int]) -> None:
        """Note that a waiting request runs, with so many tokens found in the cache."""
        now_s = self._clock.now_s()
        waited = self._end_wait(request, now_s)
        if request.num_preemptions == 0:
            for tier, num_tokens in cached.items():
                self.cached_tokens[tier] += num_tokens
        request.timeline.add_start(Start(at_s=now_s - request.arrival_s, waited=waited, cached=dict(cached)))

    def computed(self, request: Request, start: int, num_tokens: int, chosen_s: float, *, has_drawn: bool) -> None:
        """Note that a step ran known tokens of a request; told of prompts and of what preemptions lost, not of decodes.

        Args:
            request: Whose they are.
            start: Position of the first token that ran.
            num_tokens: How many ran.
            chosen_s: When the step was chosen.
            has_drawn: Whether the step drew a token of it, maybe its first.
        """
        now_s = self._clock.now_s()
        chunk = Chunk(at_s=chosen_s - request.arrival_s, seconds=now_s - chosen_s, start=start, num_tokens=num_tokens)
        request.timeline.add_chunk(chunk)
        if has_drawn and request.timeline.first_token_s is None:
            request.timeline.first_token_s = now_s - request.arrival_s

    def preempted(self, request: Request, num_tokens: int, kind: PreemptionKind = PreemptionKind.RECOMPUTE) -> None:
        """Note that a running request had to make room, giving up the KV of so many tokens, and waits again."""
        now_s = self._clock.now_s()
        self.preemptions[kind] += 1
        preemption = Preemption(at_s=now_s - request.arrival_s, kind=kind, num_tokens=num_tokens)
        request.timeline.add_preemption(preemption)
        self._wait_from(request, now_s)

    def ended(self, request: Request) -> None:
        """Note the end of a request, wherever it was."""
        now_s = self._clock.now_s()
        request.timeline.unstarted = self._end_wait(request, now_s)
        request.timeline.finished_s = now_s - request.arrival_s

    # -- accounts ---------------------------------------------------------------------------------------------

    def _reading(self, now_s: float) -> list[float]:
        seconds = self._seconds.copy()
        seconds[_REASONS.index(self._reason)] += now_s - self._since_s
        return seconds

    def _wait_from(self, request: Request, now_s: float) -> None:
        request.wait = Wait({}, now_s, self._reading(now_s))

    def _end_part(self, wait: Wait, now_s: float) -> None:
        """Add the present part of a wait to its sums; the next one begins."""
        if wait.own is not None:
            wait.sums[wait.own] = wait.sums.get(wait.own, 0.0) + now_s - wait.since_s
        elif wait.reading is not None:
            for reason, before, after in zip(_REASONS, wait.reading, self._reading(now_s), strict=True):
                if after > before:
                    wait.sums[reason] = wait.sums.get(reason, 0.0) + after - before
        wait.since_s = now_s

    def _leave_own(self, wait: Wait) -> None:
        if wait.own is not None:
            self._end_part(wait, self._clock.now_s())
            self._num_own[wait.own] -= 1
            wait.own = None

    def _end_wait(self, request: Request, now_s: float) -> dict[WaitReason, float]:
        wait, request.wait = request.wait, None
        if wait is None:
            return {}
        if wait.own is not None:
            self._leave_own(wait)
        else:
            self._end_part(wait, now_s)
        for reason, seconds in wait.sums.items():
            self.waited_seconds[reason] += seconds
        return wait.sums
