"""An engine that programs are tried on, in this process or behind a server, and what is to be true of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMIT_S = 20
ADMIN_KEY = "boss-admin-key"


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come soon."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Ground:
    """An engine that programs run on."""

    kind: str
    stats: Callable[[], dict[str, Any]]
    differences: Callable[[], Any]
    """What the books of its pages lack."""

    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        now = self.stats()
        return not now["num_running"] and not now["num_waiting"]
