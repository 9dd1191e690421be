"""What the loop counts: one record that heartbeats carry and `/metrics` shows."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from trivium.engine.compiling import Compiling
    from trivium.schedule.scheduler import Scheduler
    from trivium.tiers.lower import LowerTiers

_MOST_NOTED = 256

STEP_TOKENS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
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
    output_len_mean: float = 0.0
    """Output tokens of the answers that ended lately: what admission expects of the next one."""
    output_len_error: float = 0.0
    """Mean distance in tokens between what was expected of an answer and what it drew."""
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    """Tokens of answers, as they were told."""
    forced_tokens_total: int = 0
    """Of these, tokens that a grammar forced and nobody drew: each saved its answer a step."""
    preemptions_total: int = 0
    preemptions_by_kind_total: dict[str, int] = msgspec.field(default_factory=dict)
    waiting_by_reason: dict[str, int] = msgspec.field(default_factory=dict)
    wait_seconds_total: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds that answers have waited, by reason, of the waits that have ended."""
    cached_tokens_total: dict[str, int] = msgspec.field(default_factory=dict)
    """Prompt tokens found in the cache, by where."""
    evicted_pages_total: int = 0
    tier_pages: dict[str, float] = msgspec.field(default_factory=dict)
    """Of the tiers below KV memory, by name, as are the following; empty without any."""
    tier_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    tier_off: dict[str, float] = msgspec.field(default_factory=dict)
    """1 where an error ended its use."""
    tier_written_bytes_total: dict[str, float] = msgspec.field(default_factory=dict)
    tier_read_bytes_total: dict[str, float] = msgspec.field(default_factory=dict)
    tier_evicted_pages_total: dict[str, float] = msgspec.field(default_factory=dict)
    tier_damaged_pages_total: dict[str, float] = msgspec.field(default_factory=dict)
    """Pages whose bytes were not what had been written, and which were dropped."""
    tier_rates: dict[str, float] = msgspec.field(default_factory=dict)
    """Measured: bytes `read` and `written`, and prompt tokens `computed`, per second."""
    tier_unwritten_pages_total: int = 0
    """Pages that were dropped because they left KV memory faster than they could be written."""
    step_tokens_total: int = 0
    """Tokens that steps ran, those of prompts included."""
    step_tokens_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STEP_TOKENS_BUCKETS) + 1))
    """Steps per number of tokens, by `STEP_TOKENS_BUCKETS`, as `step_seconds_buckets`."""
    steps_total: int = 0
    step_seconds_total: float = 0.0
    step_seconds_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STEP_SECONDS_BUCKETS) + 1))
    """Steps per duration bucket of `STEP_SECONDS_BUCKETS`; the last entry counts longer ones. Not cumulative."""
    scheduler_seconds_total: float = 0.0
    """Seconds spent deciding and building steps."""
    grammars_waiting: int = 0
    """Requests whose constraint is being compiled."""
    grammars_compiled_total: int = 0
    grammars_cached_total: int = 0
    """Constraints that were compiled already, or on their way."""
    grammars_failed_total: int = 0
    grammars_timed_out_total: int = 0
    """Requests that were refused because their constraint was not compiled in time."""
    grammars_evicted_total: int = 0
    """Compiled constraints that were given up to make room."""
    grammars_kept: int = 0
    grammar_cache_bytes: int = 0
    """About what the kept ones take."""
    grammar_seconds_total: float = 0.0
    """Seconds spent compiling constraints, beside the loop."""
    finished_total: dict[str, int] = msgspec.field(default_factory=dict)
    """Finished answers by finish reason."""
    step_errors_total: int = 0
    accounting_differences_total: int = 0

    def read(self, scheduler: Scheduler, tiers: LowerTiers | None, compiling: Compiling | None) -> None:
        """Take over what others count."""
        now = scheduler.stats()
        self.num_waiting, self.num_running = now.num_waiting, now.num_running
        self.kv_pages_total, self.kv_pages_free = now.pages_total, now.pages_free
        self.kv_pages_used, self.kv_pages_cached = now.pages_used, now.pages_evictable
        self.kv_waste = now.waste
        self.output_len_mean, self.output_len_error = now.output_len_mean, now.output_len_error
        self.prefix_query_tokens_total, self.prefix_hit_tokens_total = now.queried_tokens, now.hit_tokens
        self.preemptions_total = now.num_preemptions
        self.preemptions_by_kind_total = {str(kind): count for kind, count in now.preemptions.items()}
        self.waiting_by_reason = {str(reason): count for reason, count in now.waiting_by_reason.items()}
        self.wait_seconds_total = {str(reason): seconds for reason, seconds in now.waited_seconds.items()}
        self.cached_tokens_total = {str(tier): count for tier, count in now.cached_tokens.items()}
        self.evicted_pages_total = now.pages_evicted
        if compiling is not None:
            compiled = compiling.compiler.stats
            self.grammars_waiting = len(compiling)
            self.grammars_compiled_total, self.grammars_cached_total = compiled.compiled_total, compiled.cached_total
            self.grammars_failed_total, self.grammars_timed_out_total = compiled.failed_total, compiling.num_timeouts
            self.grammars_evicted_total = compiled.num_evicted_total
            self.grammars_kept, self.grammar_cache_bytes = compiled.num_kept, compiled.kept_bytes
            self.grammar_seconds_total = compiled.compile_seconds_total
        if tiers is not None:
            self.tier_unwritten_pages_total = tiers.worker.stats.num_dropped
            for key, by_tier in tiers.counters().items():
                setattr(self, key, by_tier)

    def observe_step(self, seconds: float, scheduler_seconds: float, num_tokens: int) -> None:
        """Count one step of this duration, part of which was spent to decide and build it."""
        self.step_tokens_total += num_tokens
        self.step_tokens_buckets[bisect_left(STEP_TOKENS_BUCKETS, num_tokens)] += 1
        self.steps_total += 1
        self.step_seconds_total += seconds
        self.step_seconds_buckets[bisect_left(STEP_SECONDS_BUCKETS, seconds)] += 1
        self.scheduler_seconds_total += scheduler_seconds


class StepTimes:
    """When the last steps began and ended: noted by each step, counted when somebody asks, or some have come together.

    Counting touches more memory than all else that a step does for the statistics.
    """

    def __init__(self, stats: EngineStats) -> None:
        """Count in `stats`."""
        self._stats = stats
        self._moments: list[tuple[float, float, float, int]] = []

    def note(self, began_s: float, chosen_s: float, ended_s: float, num_tokens: int) -> None:
        """Note when a step began, was built, and ended, and how many tokens it ran."""
        self._moments.append((began_s, chosen_s, ended_s, num_tokens))
        if len(self._moments) == _MOST_NOTED:
            self.count()

    def count(self) -> None:
        """Count what was noted."""
        for began_s, chosen_s, ended_s, num_tokens in self._moments:
            self._stats.observe_step(ended_s - began_s, chosen_s - began_s, num_tokens)
        self._moments.clear()
