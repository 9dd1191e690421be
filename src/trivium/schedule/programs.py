"""Open programs: whose requests come, what they claim of the prefix cache, and when they have ended.

::

    requests     r1 ─────┤        r2 ────┤  r3 ──┤                r4 (ends) ──┤
    program      open             (a tool runs)                               ended: its claim is let go
                        └ idle ─┘ └ ...                 └ idle for `idle_s`: ended, though nobody said so

A program is open from its first request on. It ends when it says so, or when none of its requests has been open for
`idle_s` seconds; a request that comes later opens it anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trivium.cache.claims import Claim

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.prefix import PrefixIndex
    from trivium.schedule.request import Request

MAX_IDLE = 4096
"""Most programs that are open without an open request; the one that has been so longest ends first."""

ProgramKey = tuple[str, str]
"""Tenant, and the program's id."""


@dataclass(slots=True, eq=False)
class OpenProgram:
    """A program that has not ended."""

    key: ProgramKey
    claim: Claim | None = field(default_factory=Claim)
    """Its paths; `None` where none are kept, or it has ended."""
    num_open: int = 0
    """Requests that wait or run."""
    used_tokens: int = 0
    """Tokens that were computed for it."""
    idle_since_s: float = 0.0
    """When its last open request ended."""


class Programs:
    """The open programs of one scheduler.

    Invariants (see `problems`):
        A program is idle exactly when none of its requests is open; nobody else's nodes are claimed.
    """

    def __init__(self, index: PrefixIndex, clock: Clock, idle_s: float) -> None:
        """Begin without programs.

        Args:
            index: Where paths are claimed.
            clock: Measures idle times.
            idle_s: Seconds without an open request after which a program has ended; 0 keeps no paths.
        """
        self._index = index
        self._clock = clock
        self._idle_s = idle_s
        self._open: dict[ProgramKey, OpenProgram] = {}
        self._idle: dict[ProgramKey, None] = {}
        """Those without open requests, the longest idle first."""

    def __len__(self) -> int:
        """Return the number of open programs."""
        return len(self._open)

    def join(self, request: Request) -> None:
        """Note that a request of a program is open, and what its program is expected to need after it."""
        share = request.share
        if share is None:
            return
        key = (request.tenant, share.program_id)
        program = self._open.get(key)
        if program is None:
            program = self._open[key] = OpenProgram(key, Claim() if self._idle_s else None)
        self._idle.pop(key, None)
        program.num_open += 1
        request.program = program
        # Who says nothing of what is left is expected to need once more what it has used: the longer, the longer.
        request.program_left = program.used_tokens if share.remaining_tokens is None else share.remaining_tokens

    def leave(self, request: Request) -> None:
        """Note that a request has ended."""
        program = request.program
        if program is None or request.share is None:
            return
        request.program = None
        program.num_open -= 1
        if self._open.get(program.key) is not program:
            return  # it has ended before
        if request.share.ends:
            self._end(program)
        elif not program.num_open:
            program.idle_since_s = self._clock.now_s()
            self._idle[program.key] = None
            if len(self._idle) > MAX_IDLE:
                self._end(self._open[next(iter(self._idle))])

    def end(self, program_id: str, tenant: str = "") -> bool:
        """Let a program's paths go; returns whether it was open. Requests that it still has run on."""
        program = self._open.get((tenant, program_id))
        if program is not None:
            self._end(program)
        return program is not None

    def expire(self) -> None:
        """End the programs that have been idle for too long.

        Cost: O(those).
        """
        if not self._idle:
            return
        before_s = self._clock.now_s() - self._idle_s
        while self._idle and (oldest := self._open[next(iter(self._idle))]).idle_since_s <= before_s:
            self._end(oldest)

    def _end(self, program: OpenProgram) -> None:
        del self._open[program.key]
        self._idle.pop(program.key, None)
        if program.claim is not None:
            self._index.disclaim(program.claim)
            program.claim = None

    def problems(self) -> list[str]:
        """Return what does not hold."""
        found = [
            f"program {key} has {program.num_open} open requests and is {'' if key in self._idle else 'not '}idle"
            for key, program in self._open.items()
            if (key in self._idle) != (program.num_open == 0)
        ]
        claimed = {node for program in self._open.values() if program.claim for node in program.claim.nodes}
        for node in claimed:
            if node.parent is None:
                found.append(f"[{node.start}, {node.end}) is claimed, and not in the tree")
            if not all(any(claim is each.claim for each in self._open.values()) for claim in node.claims or ()):
                found.append(f"[{node.start}, {node.end}) is claimed by a program that is not open")
        return found
