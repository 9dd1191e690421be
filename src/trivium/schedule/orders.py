"""In which order waiting requests are offered a start: one small index per order, and their table.

An index holds the waiting requests of one line and yields them best first. None sorts or scans the whole queue when it
is asked; what each costs is said with it. Two things stand above every order (see `waiting` and `choose`): a request
that has waited `aging_s` is overtaken by nobody, and one that does not fit never blocks one that does.

Sources: hrrn: Brinch Hansen 1971; lpm and its depth-first form: Zheng et al. 2024, SGLang, section 3. program: what a
program has used stands for what is left of it, as in Luo et al. 2025, Autellix, where nobody says what is.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from trivium.schedule.look_ahead import CachedLen
from trivium.schedule.prompt_tree import PromptTree

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.schedule.request import Request

Key = Callable[["Request"], int]

_MOST_LISTED = 64
"""Requests that an order which walks a structure lists at a time: more cannot start in a step."""
_LOOKED_UP = 8
"""Waiting requests per step whose cached prefix is looked up anew, in turn."""
_CLASSES_PER_OCTAVE = 8


class OrderIndex(Protocol):
    """The waiting requests of one line, by one order."""

    def add(self, request: Request) -> None:
        """Enter a request; its tokens do not change while it waits."""
        ...

    def remove(self, request: Request) -> None:
        """Take a request out."""
        ...

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield running requests that have tokens to compute, and waiting ones, best first.

        Waiting ones may be removed meanwhile.
        """
        ...


class ByKey:
    """Smallest key first, then the earlier arrival; running and waiting requests alike.

    Cost: O(log n) to find a place, plus a move of the list's end; listing copies it once.
    """

    def __init__(self, key: Key, running_key: Key | None = None) -> None:
        """Order by `key`; a running request by `running_key`, where what is left of it differs."""
        self._key = key
        self._running_key = running_key or key
        self._ranked: list[tuple[int, int, Request]] = []

    def add(self, request: Request) -> None:
        """Enter a request."""
        insort(self._ranked, (self._key(request), request.sequence, request))

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._ranked[bisect_left(self._ranked, (self._key(request), request.sequence))]

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield by key."""
        running = sorted((self._running_key(request), request.sequence, request) for request in prefilling)
        for _, _, request in merge(running, self._ranked.copy()):
            yield request


class ByResponseRatio:
    """Highest response ratio next: (waited + need) / need, the need in tokens standing for the time it takes.

    Needs are rounded to classes an eighth of an octave wide; within a class the oldest has the highest ratio, so only
    the heads of the classes are compared. Running prefills come before.

    Cost: O(classes) to list, some tens.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure waiting with `clock`."""
        self._clock = clock
        self._classes: dict[int, list[tuple[int, Request]]] = {}

    def add(self, request: Request) -> None:
        """Enter a request."""
        insort(self._classes.setdefault(self._class_of(request), []), (request.sequence, request))

    def remove(self, request: Request) -> None:
        """Take a request out."""
        at = self._class_of(request)
        line = self._classes[at]
        del line[bisect_left(line, (request.sequence,))]
        if not line:
            del self._classes[at]

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield by ratio."""
        yield from prefilling
        now_s = self._clock.now_s()
        lines = {at: line.copy() for at, line in self._classes.items()}
        heads = [(self._rank(line[0][1], at, now_s), line[0][0], at, 0) for at, line in lines.items()]
        heapify(heads)
        while heads:
            _, _, at, idx = heappop(heads)
            line = lines[at]
            yield line[idx][1]
            if idx + 1 < len(line):
                following = line[idx + 1]
                heappush(heads, (self._rank(following[1], at, now_s), following[0], at, idx + 1))

    @staticmethod
    def _class_of(request: Request) -> int:
        return round(_CLASSES_PER_OCTAVE * math.log2(request.need_len))

    @staticmethod
    def _rank(request: Request, at: int, now_s: float) -> float:
        return -(now_s - request.queued_s) / 2 ** (at / _CLASSES_PER_OCTAVE)


class ByCachedPrefix:
    """Longest cached prefix first. Running prefills come before: they hold their prefix.

    What is cached changes with every step, so lengths are looked up again for those at the top and for a few others in
    turn; a request may stand for a while where it stood before.

    Cost: O(log n), and some lookups of the prefix index, to list.
    """

    def __init__(self, cached_len: CachedLen) -> None:
        """Look lengths up with `cached_len`."""
        self._cached_len = cached_len
        self._lengths: dict[Request, int] = {}
        self._ranked: list[tuple[int, int, Request]] = []
        self._turn: Iterator[Request] = iter(())

    def add(self, request: Request) -> None:
        """Enter a request."""
        length = self._cached_len(request)
        self._lengths[request] = length
        insort(self._ranked, (-length, request.sequence, request))

    def remove(self, request: Request) -> None:
        """Take a request out."""
        length = self._lengths.pop(request)
        del self._ranked[bisect_left(self._ranked, (-length, request.sequence))]

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield by length."""
        self._look_up([ranked[2] for ranked in self._ranked[:_LOOKED_UP]])
        self._look_up(self._next_in_turn())
        yield from prefilling
        for _, _, request in self._ranked.copy():
            yield request

    def _next_in_turn(self) -> list[Request]:
        batch = [request for request in islice(self._turn, _LOOKED_UP) if request in self._lengths]
        if not batch:
            self._turn = iter([ranked[2] for ranked in self._ranked])
        return batch

    def _look_up(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if self._cached_len(request) != self._lengths[request]:
                self.remove(request)
                self.add(request)


class DepthFirst:
    """Depth first through the tree of waiting prompts, busiest branches first, so that neighbours share most.

    Running prefills come before.

    Cost: O(tokens) to enter, O(nodes on the path) to leave, O(1) per request listed.
    """

    def __init__(self) -> None:
        self._tree = PromptTree()

    def add(self, request: Request) -> None:
        """Enter a request."""
        self._tree.add(request)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        self._tree.remove(request)

    def offers(self, prefilling: Sequence[Request]) -> Iterator[Request]:
        """Yield by place in the tree, some tens at a time."""
        return chain(prefilling, list(islice(self._tree.walk(), _MOST_LISTED)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One way to order requests."""

    make: Callable[[Clock, CachedLen], OrderIndex]
    """Makes the index of a line."""
    shares_with_oldest: bool = False
    """Whether the oldest request gets half of the tokens that a step has for prefills, whatever the order."""
    ranks_running: bool = False
    """Whether running requests are kept in the order of their priority, so that the worst makes room first."""


ORDERS: Mapping[str, Order] = {
    "srf": Order(
        make=lambda clock, cached_len: ByKey(lambda request: request.need_len, lambda request: request.left_len),
        shares_with_oldest=True,
    ),
    "fcfs": Order(make=lambda clock, cached_len: ByKey(lambda request: request.sequence)),
    "lpm": Order(make=lambda clock, cached_len: ByCachedPrefix(cached_len)),
    "dfs": Order(make=lambda clock, cached_len: DepthFirst()),
    "hrrn": Order(make=lambda clock, cached_len: ByResponseRatio(clock)),
    "program": Order(
        make=lambda clock, cached_len: ByKey(
            lambda request: request.need_len + request.program_left,
            lambda request: request.left_len + request.program_left,
        ),
    ),
    "priority": Order(
        make=lambda clock, cached_len: ByKey(lambda request: request.priority),
        ranks_running=True,
    ),
}
