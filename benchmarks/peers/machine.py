"""The machine that all share: a lock, the weight of a timed session, who used the processors.

Two compute threads that meet at a barrier lose a whole slice of the scheduler whenever one of them is displaced, so a
background load of one process can halve an engine of two threads. Three things guard against that: timed commands run
one at a time (the lock), each in a session whose scheduling group is raised, and what other processes took is written
beside every figure, so that spoilt ones can be thrown away.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_GROUP_WEIGHT = -20  # every other session counts as a group of weight 0, and there may be many
_PROCESS_NICE = -10
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

# Fields of /proc/PID/stat after the name, which may hold spaces and ends at the last ')':
#   state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime prio nice starttime
#   0     1    2    3       4   5     6     7      8       9      10      11    12    13     14     15   16   19
_STATE, _PARENT, _USER, _SYSTEM, _STARTED = 0, 1, 11, 12, 19


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, as flock(1) does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has not ended."""

    parent: int
    processor_s: float
    started_ticks: int
    """When it began, which tells it from a later one of the same id."""

    def is_same_as(self, other: Process) -> bool:
        """Whether two readings under one id tell of one process."""
        return self.started_ticks == other.started_ticks


def processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    """Return every process that has not ended by its id."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[_STATE] in "ZX":
                    continue
                seconds = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S
                found[int(entry.name)] = Process(int(fields[_PARENT]), seconds, int(fields[_STARTED]))
    return found


def process_tree(root: int, proc: Path = Path("/proc")) -> dict[int, Process]:
    """Return a process and its living descendants by their ids."""
    everything = processes(proc)
    return {pid: process for pid, process in everything.items() if _descends(pid, root, everything)}


def _descends(pid: int, root: int, everything: Mapping[int, Process]) -> bool:
    while pid != root and pid in everything:
        pid = everything[pid].parent
    return pid == root


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Return the processor seconds since the machine started that were not idle, a hypervisor's share included.

    The first line counts ticks: user nice system idle iowait irq softirq steal guest guest_nice; the guest's are in
    user's already.
    """
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS_PER_S


def raise_weight(root: int) -> bool:
    """Give a process tree precedence over the other sessions; returns whether that was allowed.

    With the kernel's autogroups on, `nice` counts inside a session only, and a program may start further sessions, so
    each process's group is raised.
    """
    is_raised = True
    for pid in process_tree(root):
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _PROCESS_NICE)
            group = Path(f"/proc/{pid}/autogroup")
            if group.exists():  # without autogroups, nice alone counts
                group.write_text(str(_GROUP_WEIGHT))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended
        except OSError:
            is_raised = False
    return is_raised


@dataclass(slots=True)
class Shares:
    """What was used between two moments."""

    seconds: float = 0.0
    others: float = 0.0
    """Share of the machine's processors that neither engine nor load client used, 0 to 1."""


class Meter:
    """Counts who uses the processors from `start` to `stop`; give it the processor seconds of the timed work."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._busy_s = 0.0

    def start(self) -> Self:
        """Begin counting."""
        self._began_s, self._busy_s = time.perf_counter(), busy_s()
        return self

    def stop(self, own_s: float) -> Shares:
        """End counting; `own_s` are the processor seconds that were the measurement's own."""
        seconds = time.perf_counter() - self._began_s
        others_s = busy_s() - self._busy_s - own_s
        return Shares(seconds, max(0.0, others_s) / seconds / (os.cpu_count() or 1))
