"""How fast requests leave, measured, so that those who are turned away can be told when to come back."""

from __future__ import annotations

from collections import deque

from trivium.base.clock import Clock

_SHORTEST_S = 1.0
_LONGEST_S = 60.0
_MEASURED = 64
_QUEUE_SHARE = 0.1


class DepartureRate:
    """Times of the last departures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_MEASURED)

    def note(self) -> None:
        """Record that a request has just left."""
        self._times.append(self._clock.now_s())

    def retry_after_s(self, num_waiting: int) -> float:
        """Return the seconds after which a tenth of the queue will have left, 1 to 60."""
        if len(self._times) < 2:  # noqa: PLR2004 - a rate needs two moments
            return _SHORTEST_S
        elapsed = max(self._clock.now_s() - self._times[0], 1e-9)
        per_second = len(self._times) / elapsed
        return min(max(_QUEUE_SHARE * num_waiting / per_second, _SHORTEST_S), _LONGEST_S)
