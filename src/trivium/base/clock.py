"""The only source of time, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """Seconds since an arbitrary fixed moment; never goes backwards."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since an arbitrary fixed moment; never goes backwards."""
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told to; for tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Return the moment that was set last."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`."""
        self._now_s += seconds
