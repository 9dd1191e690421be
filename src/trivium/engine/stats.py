"""What the loop counts: one record that heartbeats carry and `/metrics` shows."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

STEP_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class EngineStats(msgspec.Struct, kw_only=True):
    """Counters since start (`*_total`) and gauges of this moment."""

    num_waiting: int = 0
    num_running: int = 0
    kv_pages_total: int = 0
    kv_pages_used: int = 0
    """Pages owned by running requests."""
    kv_pages_cached: int = 0
    """Pages only the prefix tree holds; evictable."""
    kv_pages_free: int = 0
    kv_waste: float = 0.0
    """Share of the used pages' bytes that holds no token yet."""
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    step_seconds_total: float = 0.0
    step_seconds_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STEP_SECONDS_BUCKETS) + 1))
    """Steps per duration bucket of `STEP_SECONDS_BUCKETS`; the last entry counts longer ones. Not cumulative."""
    scheduler_seconds_total: float = 0.0
    """Seconds spent deciding and building steps."""
    finished_total: dict[str, int] = msgspec.field(default_factory=dict)
    """Finished answers by finish reason."""
    step_errors_total: int = 0
    accounting_differences_total: int = 0

    def observe_step(self, seconds: float) -> None:
        """Count one step of this duration."""
        self.steps_total += 1
        self.step_seconds_total += seconds
        self.step_seconds_buckets[bisect_left(STEP_SECONDS_BUCKETS, seconds)] += 1
