"""What is known about an engine from outside: one record for both kinds of client."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What is known about the engine at this moment."""

    is_ready: bool
    """Weights are loaded and the process lives."""
    heartbeat_age_s: float
    """Seconds since the loop last moved, or since the last pulse, whichever is longer ago."""
    epoch: int
    is_restarting: bool = False
    """The process has died and another one starts; requests are taken, and wait for it."""
    info: dict[str, object] = field(default_factory=dict)
    stats: dict[str, object] = field(default_factory=dict)
    error: str | None = None
    """Why there is no engine, or no engine yet."""
