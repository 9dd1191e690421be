"""One run of a program: what its states share, and how it ends."""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ProgramError
from trivium.config.program_share import ProgramShare
from trivium.lang.effects import Effects, effects
from trivium.lang.expressions import Gen
from trivium.lang.sampling import Sampling

if TYPE_CHECKING:
    from trivium.config.structured import StructuredOutputs
    from trivium.lang.backends import Backend
    from trivium.lang.expressions import Expr
    from trivium.lang.promises import Variable
    from trivium.lang.strand import Strand


@dataclass(slots=True, eq=False, kw_only=True)
class Program:
    """A run: backend, defaults, time limit, and the strands that are not over."""

    backend: Backend
    defaults: Sampling
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    timeout_s: float | None = None
    num_api_spec_tokens: int | None = None
    """Tokens that a remote model writes ahead, so that later primitives need no call of their own."""
    is_lazy: bool = True
    """Whether appending returns before the work is done."""
    effects: Effects = field(default_factory=effects.copy)
    """What is done besides what it says."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever asks the model, where a run asks for one answer at a time."""
    strands: dict[Strand, None] = field(default_factory=dict)
    """Those that are not over, in the order of their making."""
    on_variable: Callable[[Strand, Variable], None] | None = None
    """Told of each variable when it is promised, before anything waits for it."""
    is_logged: bool = True
    """Whether failures enter the log: what they say is the author's, and may be a secret of who runs it elsewhere."""
    program_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex}")
    _is_whole: bool = False
    """Whether nothing can be appended any more but by strands that are under way."""
    _expected_tokens: int = 0
    """Most tokens of the answers that are queued in its strands."""
    _lock: Lock = field(default_factory=Lock)
    _began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Seconds until the time limit, or `None` where there is none."""
        return None if self.timeout_s is None else max(0.0, self._began_s + self.timeout_s - time.monotonic())

    def share(self) -> ProgramShare:
        """Say which run a request of this moment belongs to, and what is left of it, once that is known."""
        return ProgramShare(
            program_id=self.program_id, remaining_tokens=self._expected_tokens if self._is_whole else None
        )

    def expect(self, expr: Expr, sign: int = 1) -> None:
        """Count a primitive that has been queued, or with `sign` -1 one that is done now."""
        most: Any = (expr.sampling.max_tokens or self.defaults.max_tokens) if isinstance(expr, Gen) else 0
        if isinstance(most, int):  # what is no number is refused when it is done
            with self._lock:
                self._expected_tokens += sign * most

    def drop(self, strand: Strand) -> None:
        """Forget a strand that is over; with the last one the run is."""
        with self._lock:
            was_there = strand in self.strands
            self.strands.pop(strand, None)
            is_over = was_there and not self.strands
        if is_over:
            self.backend.end_program(self.program_id)

    def expect_constraint(self, constraint: StructuredOutputs) -> None:
        """Have a constraint compiled that a `gen` of this run will need, if the backend compiles."""
        expect = getattr(self.backend, "compile_ahead", None)
        if expect is not None:
            expect(constraint)

    def end(self) -> None:
        """Take nothing more; what was appended is still done."""
        self._is_whole = True
        for strand in tuple(self.strands):
            strand.end()

    def fail(self, cause: BaseException) -> None:
        """End all strands, because the author's function raised."""
        if isinstance(cause, ProgramError):
            error = cause
        else:
            line = _line_of(cause)
            error = ProgramError(f"{line}: the program's function failed: {cause!r}", line=line)
            error.__cause__ = cause
        for strand in tuple(self.strands):
            strand.fail(error)

    def cancel(self) -> None:
        """Stop all strands and free what they hold; readers get a `ProgramError`."""
        for strand in tuple(self.strands):
            strand.fail(ProgramError("the program was cancelled", line="the program"))


def _line_of(cause: BaseException) -> str:
    frames = traceback.extract_tb(cause.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the program"
