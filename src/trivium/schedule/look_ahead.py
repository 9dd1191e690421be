"""Look-ahead: a prefix that several requests share is computed once, and the others wait for that.

When a request would start while another one computes tokens that both begin with, it is held until they are there,
and then finds them in the cache::

    P, running     [ computed ....... | being computed ............. ]
    W, waiting     [ the same tokens ................ | its own ..... ]
                                      ^ starts now: computes these again
                                                      ^ starts here: finds them all

So the tokens that are computed are those of the tree of all prompts, each once, and one more for every request whose
whole prompt is in the tree. Forks of a prompt and the answers of n > 1 are the same case: prompts that are equal.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from trivium.base.errors import ensure
from trivium.schedule.admit import longest_hit
from trivium.schedule.prompt_tree import PromptTree

if TYPE_CHECKING:
    from trivium.schedule.request import Request

CachedLen = Callable[["Request"], int]
"""How many tokens of a request the cache has now, at most what it may take from it."""


class LookAhead(Protocol):
    """Whether a request shall wait for another's prefix: `SharedPrefixes`, or `NoLookAhead` where that is off."""

    def begin(self, request: Request) -> None:
        """Note that a request starts to compute its known tokens."""
        ...

    def hold(self, request: Request) -> bool:
        """Return whether a waiting request shall wait for another's prefix; it is held then."""
        ...

    def advance(self, request: Request) -> Iterable[Request]:
        """Note that a running request has computed more; return who need not wait for it any more."""
        ...

    def end(self, request: Request) -> Iterable[Request]:
        """Note that a request computes no prompt any more; return who need not wait for it any more."""
        ...

    def forget(self, request: Request) -> None:
        """Note that a request does not wait any more, held or not."""
        ...

    def problems(self) -> list[str]:
        """Compare what is held with the requests; return what does not hold."""
        ...


class NoLookAhead:
    """Holds nobody."""

    def begin(self, request: Request) -> None:
        """Nobody waits for it."""

    def hold(self, request: Request) -> bool:
        """Nobody is held."""
        del request
        return False

    def advance(self, request: Request) -> Iterable[Request]:
        """Nobody waits for it."""
        del request
        return ()

    def end(self, request: Request) -> Iterable[Request]:
        """Nobody waits for it."""
        del request
        return ()

    def forget(self, request: Request) -> None:
        """It was not held."""

    def problems(self) -> list[str]:
        """Nothing can be wrong."""
        return []


class SharedPrefixes:
    """Prompts that are being computed, and who waits for them.

    Invariants:
        A held request waits, and the one that holds it runs and has tokens of the shared prefix to compute.
    """

    def __init__(self, cached_len: CachedLen, *, by_priority: bool = False) -> None:
        """Begin with nobody.

        Args:
            cached_len: Looks up what is cached.
            by_priority: Whether nobody waits for a request of worse priority, which others may hold up.
        """
        self._cached_len = cached_len
        self._by_priority = by_priority
        self._computing = PromptTree()
        self._held: dict[Request, list[tuple[int, int, Request]]] = {}
        """By the request that computes: (shared length, sequence, who waits for it), ascending."""

    def begin(self, request: Request) -> None:
        """Note that a request starts to compute its known tokens."""
        self._computing.add(request)

    def hold(self, request: Request) -> bool:
        """Return whether a waiting request shall wait for another's prefix; it is held then.

        Cost: O(shared tokens), vectorised.
        """
        shared, other = self._computing.longest_shared(request)
        usable = min(shared, longest_hit(request))
        if other is None or other.computed_len >= usable or usable <= self._cached_len(request):
            return False
        if self._by_priority and other.priority > request.priority:
            return False
        request.held_by = other
        insort(self._held.setdefault(other, []), (usable, request.sequence, request))
        return True

    def advance(self, request: Request) -> Iterable[Request]:
        """Note that a running request has computed more; return who need not wait for it any more."""
        if request.computed_len >= request.started_len:
            return self.end(request)
        waiting = self._held.get(request, ())
        count = sum(1 for shared, _, _ in waiting if shared <= request.computed_len)
        return self._release(request, count)

    def end(self, request: Request) -> Iterable[Request]:
        """Note that a request computes no prompt any more; return who need not wait for it any more."""
        if request not in self._computing:
            return ()
        self._computing.remove(request)
        return self._release(request, len(self._held.get(request, ())))

    def forget(self, request: Request) -> None:
        """Note that a held request does not wait any more."""
        if request.held_by is not None:
            waiting = self._held[request.held_by]
            waiting[:] = [entry for entry in waiting if entry[2] is not request]
            if not waiting:
                del self._held[request.held_by]
            request.held_by = None

    def problems(self) -> list[str]:
        """Compare what is held with the requests; return what does not hold."""
        return [
            f"{request.request_id} is held by {other.request_id}, which computes nothing that it shares"
            for other, waiting in self._held.items()
            for shared, _, request in waiting
            if request.held_by is not other or other not in self._computing or other.computed_len >= shared
        ]

    def _release(self, request: Request, count: int) -> list[Request]:
        if count == 0:
            return []
        waiting = self._held[request]
        released = [entry[2] for entry in waiting[:count]]
        del waiting[:count]
        if not waiting:
            del self._held[request]
        for one in released:
            ensure(one.held_by is request, f"{one.request_id} is released by another than holds it")
            one.held_by = None
        return released
