"""A thread that runs a shared loop while requests of its own are open, and hands out their news.

`SharedLoop` runs steps in the thread of whoever waits. Programs wait in an event loop, which must not; so this thread
waits for all of them, and all that came while a step ran join the next one. The news of a step are handed to an event
loop together: it wakes once per step, not once per token.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.api.shared_loop import Inbox, SharedLoop
from trivium.base.errors import CapacityError, InternalError, RequestError, TriviumError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from trivium.api.prompts import ReadPrompt
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta


_WAIT_S = 5.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A request on its way."""

    prompt: ReadPrompt
    params: SamplingParams
    loop: AbstractEventLoop
    tell: Callable[[Delta | TriviumError], object]
    """Called in that event loop; an error is the last that is told."""
    request_id: str | None = None
    num_open: int = 0
    """Choices that have not ended, once it is submitted."""
    is_cancelled: bool = False


class Pump:
    """Submits requests to a shared loop and runs it."""

    def __init__(self, shared: SharedLoop) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._new: deque[Ticket] = deque()
        self._dropped: deque[Ticket] = deque()
        self._thread: threading.Thread | None = None
        self._inbox = Inbox()
        self._open: dict[str, Ticket] = {}
        """By request id; touched by the pump's thread only, as is the queue below."""
        self._waiting: deque[Ticket] = deque()
        """Those for which the engine's queue had no room."""
        self._told: list[tuple[Ticket, Delta | TriviumError]] = []
        """News that have still to be handed to event loops."""

    def submit(self, ticket: Ticket) -> None:
        """Run a request."""
        with self._lock:
            self._new.append(ticket)
            self._ensure_thread()

    def cancel(self, ticket: Ticket) -> None:
        """End a request, if it has not ended; nothing more is told of it."""
        with self._lock:
            ticket.is_cancelled = True
            self._dropped.append(ticket)
            self._ensure_thread()

    def wait(self) -> None:
        """Wait until nothing is open, 5 s at most."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trivium-pump", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._waiting.extend(self._new)
                dropped = list(self._dropped)
                self._new.clear()
                self._dropped.clear()
                if not (self._waiting or dropped or self._open):
                    self._thread = None
                    return
            try:
                self._turn(dropped)
            except Exception as error:  # the loop is closed, or broken: nobody may wait for it
                self._fail(error if isinstance(error, TriviumError) else InternalError(f"the engine failed: {error!r}"))
            self._hand_out()

    def _turn(self, dropped: list[Ticket]) -> None:
        ids = [ticket.request_id for ticket in dropped if ticket.request_id is not None]
        ids = [each for each in ids if self._open.pop(each, None) is not None]
        if ids:
            self._shared.abort(self._inbox, ids)
        self._submit_waiting()
        if self._inbox.is_open:
            for news in self._shared.read(self._inbox):
                self._tell(news)
        elif self._waiting:  # the queue is full of what others submitted
            self._shared.step()

    def _submit_waiting(self) -> None:
        while self._waiting:
            ticket = self._waiting[0]
            if not ticket.is_cancelled and not self._try_submit(ticket):
                return
            self._waiting.popleft()

    def _try_submit(self, ticket: Ticket) -> bool:
        """Submit one; returns whether it is dealt with, be it by a refusal."""
        try:
            [ticket.params] = self._shared.seeded([ticket.params])
            ticket.request_id = self._shared.try_submit(self._inbox, ticket.prompt, ticket.params)
        except (RequestError, CapacityError) as error:
            self._told.append((ticket, error))
            return True
        if ticket.request_id is None:
            return False
        ticket.num_open = ticket.params.num_draws
        self._open[ticket.request_id] = ticket
        return True

    def _tell(self, news: Delta) -> None:
        ticket = self._open.get(news.request_id)
        if ticket is None:
            return
        ticket.num_open -= news.finish_reason is not None
        if not ticket.num_open:
            del self._open[news.request_id]
        self._told.append((ticket, news))

    def _hand_out(self) -> None:
        told, self._told = self._told, []
        for loop in dict.fromkeys(ticket.loop for ticket, _ in told):
            own = [(ticket, news) for ticket, news in told if ticket.loop is loop and not ticket.is_cancelled]
            with suppress(RuntimeError):  # a loop that is closed has no readers
                loop.call_soon_threadsafe(_tell_all, own)

    def _fail(self, error: TriviumError) -> None:
        tickets = [*self._waiting, *self._open.values()]
        self._waiting.clear()
        self._open.clear()
        self._shared.leave(self._inbox)
        self._inbox = Inbox()
        self._told += [(ticket, error) for ticket in tickets]


def _tell_all(told: Sequence[tuple[Ticket, Delta | TriviumError]]) -> None:
    for ticket, news in told:
        ticket.tell(news)
