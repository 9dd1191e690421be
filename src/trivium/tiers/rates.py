"""How fast pages move and tokens are computed, measured, so that the cheaper of the two can be chosen.

Until something was measured, a guess stands for it: one that lets the first requests try the tier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_WEIGHT = 0.2
"""Share of the newest measurement in the average."""


@dataclass(slots=True)
class Rate:
    """An exponentially weighted average of amounts per second."""

    per_s: float
    """At first a guess."""
    is_measured: bool = False

    def note(self, amount: float, seconds: float) -> None:
        """Take a measurement in; one of nothing, or of no time, says nothing."""
        if amount <= 0 or seconds <= 0:
            return
        measured = amount / seconds
        self.per_s = self.per_s + _WEIGHT * (measured - self.per_s) if self.is_measured else measured
        self.is_measured = True

    def seconds(self, amount: float) -> float:
        """Return how long an amount takes."""
        return amount / self.per_s


@dataclass(slots=True)
class Rates:
    """The rates that decide between computing, reading and writing."""

    compute: Rate = field(default_factory=lambda: Rate(1000.0))
    """Prompt tokens computed per second."""
    read: Rate = field(default_factory=lambda: Rate(5e8))
    """Bytes read from the tiers per second, verification included."""
    write: Rate = field(default_factory=lambda: Rate(5e8))
    """Bytes written to the tiers per second."""

    def is_reading_cheaper(self, num_bytes: int, num_tokens: int) -> bool:
        """Return whether to read this much is faster than to compute so many tokens."""
        return self.read.seconds(num_bytes) < self.compute.seconds(num_tokens)

    def is_swapping_cheaper(self, num_bytes: int, num_tokens: int, queued_bytes: int) -> bool:
        """Return whether a victim's pages come back faster from the tier than its tokens are computed anew.

        Args:
            num_bytes: Its pages that the tier has not, to be written and read.
            num_tokens: Its computed tokens.
            queued_bytes: What waits to be written before.
        """
        seconds = self.write.seconds(num_bytes + queued_bytes) + self.read.seconds(num_bytes)
        return seconds < self.compute.seconds(num_tokens)
