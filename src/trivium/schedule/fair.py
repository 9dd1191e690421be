"""Shares between tenants: weighted deficit round robin over the tokens that are computed for each.

Tenants with waiting requests stand in a ring. Whose turn it is may start requests while its credit lasts; then it gets
`QUANTUM` x weight more and goes to the end::

    ring     [ a: 900 ]  [ b: -120 ]  [ c: 40 ]         a starts a prompt of 1,000 tokens
             [ b: -120 ] [ c: 40 ]    [ a: -100 + q ]   next is b, which first gets its quantum: q - 120

What a request costs is known only as it runs (its answer may be long, its prompt cached), so tokens are charged when
they are computed and credit may fall below zero; the debt is paid off before the next turn. Between tenants that always
have requests waiting, served tokens over weight differ by no more than a quantum and the largest burst of charges.

Source: Shreedhar and Varghese 1996, deficit round robin; charging in arrears is ours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from trivium.base.errors import ensure

QUANTUM = 512
"""Tokens that a tenant of weight 1 may start with each turn."""


class FairShare:
    """Credits of tenants, and whose turn it is."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Begin with everybody even.

        Args:
            weights: By tenant, greater than 0; 1 for those that are not named.
        """
        self._weights = dict(weights)
        self._credits: dict[str, float] = {}
        self._ring: deque[str] = deque()

    def enter(self, tenant: str) -> None:
        """Note that a tenant has a waiting request and had none; what it saved up before is gone, its debt is not."""
        ensure(tenant not in self._ring, f"tenant '{tenant}' stands in the ring already")
        self._credits[tenant] = min(self._credits.get(tenant, 0.0), 0.0)
        self._ring.append(tenant)

    def leave(self, tenant: str) -> None:
        """Note that a tenant has no waiting request any more."""
        self._ring.remove(tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count tokens that were computed for a tenant."""
        self._credits[tenant] = self._credits.get(tenant, 0.0) - num_tokens

    def turns(self) -> Iterable[str]:
        """Return the tenants that wait, in the order in which it is their turn.

        Cost: O(tenants that wait).
        """
        if not self._ring:
            return ()
        if all(self._credits[tenant] <= 0.0 for tenant in self._ring):
            self._pay_off()
        while self._credits[self._ring[0]] <= 0.0:
            tenant = self._ring.popleft()
            self._credits[tenant] += self._quantum(tenant)
            self._ring.append(tenant)
        return tuple(self._ring)

    def credits(self) -> Mapping[str, float]:
        """Return every tenant's credit in tokens; not to be changed."""
        return self._credits

    def _quantum(self, tenant: str) -> float:
        return QUANTUM * self._weights.get(tenant, 1.0)

    def _pay_off(self) -> None:
        """Go round as often as nobody has credit at the end of it, all at once."""
        rounds = min(math.floor(-self._credits[tenant] / self._quantum(tenant)) for tenant in self._ring)
        for tenant in self._ring:
            self._credits[tenant] += rounds * self._quantum(tenant)
