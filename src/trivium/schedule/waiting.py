"""Requests that wait: in order of arrival, and in order of need. Preempted ones come back to their old place."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from trivium.schedule.request import Request, RequestState

Ranked = tuple[int, int, Request]
"""(tokens, sequence, request); the sequence is unique, so that requests are never compared."""


def _by_arrival(request: Request) -> int:
    return request.sequence


def is_ready(request: Request) -> bool:
    """Return whether a request need not wait for its leader's prompt."""
    leader = request.leader
    return (
        leader is None
        or leader.output_len > 0
        or leader.computed_len >= leader.prompt_len
        or leader.state is RequestState.FINISHED
    )


class WaitingQueue:
    """The waiting requests in two orders: by arrival (`sequence`), and by the KV length that they need to start.

    A waiting request's tokens do not change, so neither does its need.
    """

    def __init__(self, *, followers_wait: bool) -> None:
        """Make an empty queue.

        Args:
            followers_wait: Whether later choices wait until their leader's prompt is computed and can be shared.
        """
        self._followers_wait = followers_wait
        self._by_arrival: list[Request] = []
        self._by_need: list[Ranked] = []

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, request: Request) -> None:
        """Enter a request at its places."""
        insort(self._by_arrival, request, key=_by_arrival)
        insort(self._by_need, (request.need_len, request.sequence, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._by_arrival[bisect_left(self._by_arrival, request.sequence, key=_by_arrival)]
        del self._by_need[bisect_left(self._by_need, (request.need_len, request.sequence))]

    def is_startable(self, request: Request) -> bool:
        """Return whether a request waits for nothing but room."""
        return not self._followers_wait or is_ready(request)

    def oldest(self) -> Request | None:
        """Return the oldest request that waits for nothing but room, or `None`."""
        return next(filter(self.is_startable, self._by_arrival), None)

    def by_need(self) -> list[Ranked]:
        """Return a copy of the queue as (need, sequence, request), ascending."""
        return self._by_need.copy()

    def after(self, sequence: int, count: int) -> list[Request]:
        """Return up to `count` requests that arrived after `sequence`, oldest first."""
        first = bisect_right(self._by_arrival, sequence, key=_by_arrival)
        return self._by_arrival[first : first + count]
