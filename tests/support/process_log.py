"""What processes hold over time: memory, file handles, threads."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

MIB = 1 << 20
_SETTLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds now."""

    files: int
    """File descriptors, sockets included."""
    threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> Held:
        """Look."""
        return cls(process.num_fds(), process.num_threads())


@dataclass(slots=True)
class ProcessLog:
    """Resident bytes of processes over time, and what they held at the start."""

    processes: Mapping[str, psutil.Process]
    samples: dict[str, list[int]] = field(default_factory=dict)
    before: dict[str, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = {name: Held.of(process) for name, process in self.processes.items()}

    async def watch(self, every_s: float = 0.25) -> None:
        """Take samples until cancelled."""
        while True:
            for name, process in self.processes.items():
                self.samples.setdefault(name, []).append(process.memory_info().rss)
            await asyncio.sleep(every_s)

    def growth(self, name: str) -> tuple[float, float]:
        """Return the medians of the second and the last quarter in MiB."""
        taken = self.samples[name]
        quarter = len(taken) // 4
        second, last = taken[quarter : 2 * quarter], taken[-quarter:]
        return statistics.median(second) / MIB, statistics.median(last) / MIB

    def assert_flat(self) -> None:
        """Check that nobody's memory grew from the second to the last quarter by more than 5 % and 20 MiB."""
        for name in self.processes:
            second, last = self.growth(name)
            assert last - second < max(20.0, 0.05 * second), f"{name} grew from {second:.0f} to {last:.0f} MiB"

    def assert_nothing_is_kept(self) -> None:
        """Check that soon no process has more file handles or threads than at the start."""
        end_s = time.monotonic() + _SETTLE_S
        for name, process in self.processes.items():
            while (now := Held.of(process)).files > self.before[name].files or now.threads > self.before[name].threads:
                assert time.monotonic() < end_s, f"{name} held {self.before[name]} and now {now}"
                time.sleep(0.1)
