"""Requests that wait, in one line, or in one per tenant where shares are fair.

A line knows its requests in three ways; held ones (see `look_ahead`) are in none of them, only in the queue::

    by arrival     who is the oldest, and who has waited so long that nobody may overtake it
    by order       who is offered a start next
    by need        who needs least, so that whoever fits is found behind those that do not

Preempted requests come back to their old place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivium.schedule.fair import FairShare
    from trivium.schedule.orders import OrderIndex
    from trivium.schedule.request import Request


def _by_arrival(request: Request) -> int:
    return request.sequence


class Line:
    """The waiting requests of one tenant that may start as soon as there is room."""

    def __init__(self, index: OrderIndex) -> None:
        """Make an empty line over an empty index."""
        self._index = index
        self._by_arrival: list[Request] = []

    def __len__(self) -> int:
        return len(self._by_arrival)

    def add(self, request: Request) -> None:
        """Enter a request at its places."""
        insort(self._by_arrival, request, key=_by_arrival)
        self._index.add(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._by_arrival[bisect_left(self._by_arrival, request.sequence, key=_by_arrival)]
        self._index.remove(request)

    def oldest(self) -> Request | None:
        """Return the oldest request, or `None`."""
        return self._by_arrival[0] if self._by_arrival else None

    def due(self, queued_before_s: float) -> list[Request]:
        """Return the requests that were queued before that moment, oldest first."""
        return list(takewhile(lambda request: request.queued_s < queued_before_s, self._by_arrival))

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield running prefills and waiting requests by the order."""
        return self._index.offers(prefilling)

    def due_first(self, queued_before_s: float) -> Iterator[tuple[Request, bool]]:
        """Yield waiting requests, those queued before that moment first and marked, then by the order."""
        for request in self.due(queued_before_s):
            yield request, True
        for request in self._index.offers(()):
            yield request, False


class WaitingQueue:
    """All waiting requests."""

    def __init__(
        self, make_index: Callable[[], OrderIndex], need_len: Callable[[Request], int], fair: FairShare | None
    ) -> None:
        """Make an empty queue.

        Args:
            make_index: Makes the index of a line.
            need_len: Tokens for which a request must find room.
            fair: Shares between tenants; `None` is one line for all.
        """
        self._make_index = make_index
        self._need_len = need_len
        self._fair = fair
        self._lines: dict[str, Line] = {}
        self._by_need: list[tuple[int, int, Request]] = []
        self._everyone: list[Request] = []

    def __len__(self) -> int:
        return len(self._everyone)

    @property
    def num_ready(self) -> int:
        """Requests that wait for nothing but room and their turn."""
        return len(self._by_need)

    @property
    def num_held(self) -> int:
        """Requests that wait for a prefix which another one computes."""
        return len(self._everyone) - len(self._by_need)

    def add(self, request: Request) -> None:
        """Enter a request."""
        insort(self._everyone, request, key=_by_arrival)
        self.release(request)

    def remove(self, request: Request) -> None:
        """Take a request out, held or not."""
        del self._everyone[bisect_left(self._everyone, request.sequence, key=_by_arrival)]
        if request.held_by is None:
            self.withdraw(request)

    def release(self, request: Request) -> None:
        """Enter a request of the queue into its line."""
        tenant = self._tenant_of(request)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line(self._make_index())
            if self._fair is not None:
                self._fair.enter(tenant)
        line.add(request)
        insort(self._by_need, (self._need_len(request), request.sequence, request))

    def withdraw(self, request: Request) -> None:
        """Take a request out of its line, and leave it in the queue: it is held."""
        tenant = self._tenant_of(request)
        line = self._lines[tenant]
        line.remove(request)
        if not line:
            del self._lines[tenant]
            if self._fair is not None:
                self._fair.leave(tenant)
        at = bisect_left(self._by_need, (self._need_len(request), request.sequence))
        ensure(self._by_need[at][2] is request, f"{request.request_id} waits with another need than it came with")
        del self._by_need[at]

    def offers(self, prefilling: Sequence[Request], queued_before_s: float) -> Iterator[Request]:
        """Yield running prefills and waiting requests by turn and order; they may leave the queue meanwhile.

        Where there is a line for each tenant, whose turn it is, is asked anew for each; those of a line that were
        queued before that moment come first, and nobody of the line comes after one of them that did not leave.
        """
        if self._fair is None:
            line = self._lines.get("")
            yield from line.offers(prefilling) if line is not None else prefilling
            return
        yield from prefilling
        listed: dict[str, Iterator[tuple[Request, bool]]] = {}
        done: set[str] = set()
        while (tenant := next((one for one in self._fair.turns() if one not in done), None)) is not None:
            if tenant not in listed:
                listed[tenant] = self._lines[tenant].due_first(queued_before_s)
            request, is_due = next(listed[tenant], (None, False))
            if request is not None:
                yield request
            if request is None or (is_due and request.is_ready):
                done.add(tenant)

    def due(self, queued_before_s: float) -> list[Request]:
        """Return who was queued before that moment, oldest first; of the tenant whose turn it is, where turns are."""
        line = self._line_in_turn()
        return line.due(queued_before_s) if line is not None else []

    def oldest(self) -> Request | None:
        """Return the oldest request that waits for nothing but room, of the tenant whose turn it is, or `None`."""
        line = self._line_in_turn()
        return line.oldest() if line is not None else None

    def oldest_beside(self, request: Request) -> Request | None:
        """Return the oldest request of the line in which this one stands."""
        line = self._lines.get(self._tenant_of(request))
        return line.oldest() if line is not None else None

    def _line_in_turn(self) -> Line | None:
        tenant = "" if self._fair is None else next(iter(self._fair.turns()), "")
        return self._lines.get(tenant)

    def by_need(self) -> list[Request]:
        """Return the requests that are not held, smallest need first; a copy."""
        return [request for _, _, request in self._by_need]

    def everyone(self) -> Sequence[Request]:
        """Return all requests, held ones too, in order of arrival; not to be mutated."""
        return self._everyone

    def after(self, sequence: int, count: int) -> list[Request]:
        """Return up to `count` requests that arrived after `sequence`, oldest first."""
        first = bisect_right(self._everyone, sequence, key=_by_arrival)
        return self._everyone[first : first + count]

    def _tenant_of(self, request: Request) -> str:
        return "" if self._fair is None else request.tenant
