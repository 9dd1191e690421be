"""One run of a program: what its states share, and how it ends."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ProgramError
from trivium.lang.sampling import Sampling

if TYPE_CHECKING:
    from trivium.lang.backends import Backend
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
    strands: dict[Strand, None] = field(default_factory=dict)
    """Those that are not over, in the order of their making."""
    _began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Seconds until the time limit, or `None` where there is none."""
        return None if self.timeout_s is None else max(0.0, self._began_s + self.timeout_s - time.monotonic())

    def end(self) -> None:
        """Take nothing more; what was appended is still done."""
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
