"""Requests that wait, in order of arrival; preempted ones come back to their old place."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from trivium.schedule.request import Request, RequestState


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
    """Ordered by arrival (`sequence`)."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Enter a request at its place."""
        insort(self._requests, request, key=_by_arrival)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        self._requests.remove(request)

    def ready(self, *, followers_wait: bool) -> list[Request]:
        """Return the requests that may start, oldest first."""
        if not followers_wait:
            return list(self._requests)
        return [request for request in self._requests if is_ready(request)]

    def oldest_ready(self, *, followers_wait: bool) -> Request | None:
        """Return the oldest request that may start, or `None`."""
        return next((request for request in self._requests if not followers_wait or is_ready(request)), None)
