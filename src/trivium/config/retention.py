"""How long a request wants its KV to be kept: priorities of token ranges, for a while or for good.

Source: TensorRT-LLM's `KvCacheRetentionConfig`: the same range of priorities, the same default, the same expiry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.base.errors import InvalidParameterError

DEFAULT_PRIORITY = 35
"""Of KV that nobody asked to keep, or whose time has passed."""
MAX_PRIORITY = 100
MAX_RANGES = 64
"""Most ranges of one request."""
MAX_DURATION_S = 366 * 86400.0
_INT31 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Keep KV before, or after, what has another priority."""

    priority: int = DEFAULT_PRIORITY
    """0 to 100; what has a lower one is evicted first."""
    duration_s: float | None = None
    """Seconds after which the priority is 35 again; `None` means never."""

    def validate(self, name: str) -> None:
        """Check the limits.

        Raises:
            InvalidParameterError: A value is outside its limits; `name` says where.
        """
        _check_count(name, "priority", self.priority, MAX_PRIORITY)
        duration_s = self.duration_s
        is_number = isinstance(duration_s, int | float) and not isinstance(duration_s, bool)
        if duration_s is not None and not (is_number and 0 < duration_s <= MAX_DURATION_S):
            raise _bad(name, "duration_s", duration_s, f"a number above 0, at most {MAX_DURATION_S:g}, or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRetention:
    """The priority of the prompt tokens [start, end)."""

    start: int = 0
    end: int | None = None
    """`None` means the prompt's end."""
    priority: int = DEFAULT_PRIORITY
    """0 to 100; what has a lower one is evicted first."""
    duration_s: float | None = None
    """Seconds after which the priority is 35 again; `None` means never."""

    @property
    def retention(self) -> Retention:
        """The priority, without the range."""
        return Retention(priority=self.priority, duration_s=self.duration_s)

    def validate(self, name: str) -> None:
        """Check the limits.

        Raises:
            InvalidParameterError: A value is outside its limits; `name` says where.
        """
        _check_count(name, "start", self.start, _INT31)
        if self.end is not None:
            _check_count(name, "end", self.end, _INT31)
            if self.end <= self.start:
                raise _bad(name, "end", self.end, f"above its start {self.start}, or none for the prompt's end")
        self.retention.validate(name)


def _check_count(name: str, part: str, value: Any, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise _bad(name, part, value, f"a whole number from 0 to {high}")


def _bad(name: str, part: str, value: Any, limit: str) -> InvalidParameterError:
    field = name.split("[", maxsplit=1)[0]
    return InvalidParameterError(f"{name}.{part} is {value!r}; it must be {limit}", param=field)
