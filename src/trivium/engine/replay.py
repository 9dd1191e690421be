"""Which open requests the engine has, and which wait for the next one: every request goes to each engine once.

::

    engine ready, nobody suspected     a new request is sent at once
    engine dies                        all open requests are unsent again; `suspects` says who is sent when
    no engine, or suspects on trial    a new request is held, up to `max_held` of them, each up to `HOLD_S`

Requests that an engine had accepted are never refused because engines die: they end by their own deadline, by the
client's leaving, when they are found to kill engines, or when engines die whatever they run.
"""

from __future__ import annotations

from collections.abc import Callable

from trivium.base.errors import CapacityError, DeadlineExceededError, EngineDeadError, PoisonRequestError
from trivium.engine.journal import LastWork
from trivium.engine.messages import Submit
from trivium.engine.streams import StreamTable
from trivium.engine.suspects import MOST_DEATHS_ALONE, Death, Suspects

HOLD_S = 30.0
"""Longest time that a request which no engine has accepted yet is held while there is none."""
RETRY_AFTER_S = 2.0
SendSubmit = Callable[[Submit], None]


class Replay:
    """Sends open requests to one engine after another; used from one event loop."""

    def __init__(self, streams: StreamTable, max_held: int) -> None:
        """Send what is open in `streams`, by their clock, and hold at most so many requests that no engine knows."""
        self._streams = streams
        self.max_held = max_held
        self._suspects = Suspects()
        self._send: SendSubmit | None = None
        self._unsent: dict[str, None] = {}
        """Open requests that the present engine, if there is one, does not have; in order of arrival."""
        self._points: dict[str, dict[int, int]] = {}
        """Of suspects: choices that were in the step of the death, and how many tokens each had delivered."""

    @property
    def is_idle(self) -> bool:
        """Whether there is an engine and it has every open request."""
        return self._send is not None and not self._unsent and self._suspects.is_settled

    def submit(self, message: Submit) -> None:
        """Send a new request, or hold it until it may be sent.

        Raises:
            CapacityError: So many are held already that this one is refused.
        """
        if self._send is not None and self._suspects.is_settled:
            self._send(message)
            return
        num_held = sum(not self._streams.was_accepted(each) for each in self._unsent if each in self._streams)
        if num_held >= self.max_held:
            raise CapacityError(
                f"the engine is being restarted and {num_held} new requests wait for it already, of at most "
                f"{self.max_held}; try again later",
                retry_after_s=RETRY_AFTER_S,
            )
        self._unsent[message.request_id] = None
        self.advance()

    def has_sent(self, request_id: str) -> bool:
        """Return whether the present engine has a request."""
        return request_id not in self._unsent

    def leave(self, request_id: str) -> None:
        """Forget a request whose reader has left."""
        self._unsent.pop(request_id, None)
        self.advance()

    def begin(self, send: SendSubmit) -> None:
        """Take a new engine that is ready, and send it what may be sent."""
        self._send = send
        self._send_due()

    def advance(self) -> None:
        """Look whether suspects have come beyond the point where the last engine died; send whom that sets free."""
        if self._suspects.is_settled:
            return
        self._suspects.came_beyond([each for each in self._suspects.on_trial if self._is_beyond(each)])
        self._send_due()

    def pause(self) -> None:
        """Send nothing any more: there is no engine."""
        self._send = None

    def died(self, work: LastWork, reason: str, *, has_delivered: bool) -> Death:
        """Make all open requests wait for the next engine, and end whom this death condemns.

        Args:
            work: What the engine was at work on.
            reason: How it died.
            has_delivered: Whether it had delivered a token.
        """
        self.pause()
        open_ids = self._streams.open_ids()
        self._unsent = dict.fromkeys(open_ids)
        self._note_points(work)
        death = self._suspects.died(work.request_ids, open_ids, has_progressed=has_delivered)
        if death.condemned is not None:
            self._streams.fail(death.condemned, _poison(reason))
            self._unsent.pop(death.condemned, None)
        if death.is_hopeless:
            self.give_up(f"{reason}, as the engines before it did, whatever they ran")
        return death

    def give_up(self, reason: str) -> None:
        """End every open request with `EngineDeadError`."""
        self._streams.fail_all(EngineDeadError, f"{reason}; please send the request again")
        self._unsent.clear()
        self._points.clear()
        self._suspects.forget_all()

    def unsent_ids(self) -> set[str]:
        """Return the requests of which nothing was delivered and which the engine does not have."""
        return set(self._unsent) - self._streams.begun_ids()

    def hand_back(self) -> None:
        """End those that the engine does not have, because the server stops."""
        for request_id in tuple(self._unsent):
            self._end(request_id, CapacityError("the server is shutting down", retry_after_s=5.0))

    def tick(self) -> None:
        """End those that have waited for an engine for too long."""
        if not self._unsent:
            return
        now_s = self._streams.clock.now_s()
        for request_id in self._streams.overdue_ids(now_s):
            if request_id in self._unsent:
                age_s = self._streams.age_s(request_id, now_s)
                self._end(request_id, DeadlineExceededError(f"the request's deadline passed after {age_s:.1f} s"))
        for request_id in [each for each in self._unsent if each in self._streams]:
            is_new = not self._streams.was_accepted(request_id)
            if is_new and self._streams.age_s(request_id, now_s) > HOLD_S:
                why = f"no engine could take the request within {HOLD_S:g} s; try again later"
                self._end(request_id, CapacityError(why, retry_after_s=RETRY_AFTER_S))

    def _end(self, request_id: str, error: CapacityError | DeadlineExceededError) -> None:
        self._streams.fail(request_id, error)
        self._unsent.pop(request_id, None)

    def _send_due(self) -> None:
        if self._send is None:
            return
        now_s = self._streams.clock.now_s()
        open_ids = self._streams.open_ids()
        for request_id in self._suspects.due(open_ids, self._streams.begun_ids()):
            if request_id in self._unsent:
                del self._unsent[request_id]
                self._send(self._streams.again(request_id, now_s))
        if self._suspects.is_settled:
            self._points.clear()

    def _note_points(self, work: LastWork) -> None:
        in_step = {} if work.admitted is not None else work.step
        for request_id in work.request_ids:
            counts = self._streams.counts(request_id)
            if counts is not None:
                # One that was being admitted has passed when its first open choice has a token more.
                first = next(choice for choice, count in enumerate(counts) if count >= 0)
                choices = in_step.get(request_id, (first,))
                self._points[request_id] = {choice: counts[choice] for choice in choices}

    def _is_beyond(self, request_id: str) -> bool:
        counts = self._streams.counts(request_id)
        if counts is None:
            return True
        points = self._points.get(request_id, {})
        return all(counts[choice] < 0 or counts[choice] > count for choice, count in points.items())


def _poison(reason: str) -> PoisonRequestError:
    return PoisonRequestError(
        f"{reason} while it ran this request and nothing else, for the {MOST_DEATHS_ALONE}nd time at the same token; "
        "the request is not tried again. Please report it with the server's log"
    )
