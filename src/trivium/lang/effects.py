"""What is done for programs besides what they say, each with a switch; answers are the same tokens either way.

A run takes the switches as they are when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True, kw_only=True)
class Effects:
    """The switches, as `global_config` has them; SGLang's name where it has one."""

    enable_precache_with_tracing: bool = True
    """`run_batch` traces its program, computes what all its runs begin with once, before them, and keeps it cached."""
    enable_compile_ahead: bool = True
    """Constraints of `gen`s that wait for their turn are compiled meanwhile; `run_batch` has all compiled."""
    enable_parallel_branches: bool = True
    """What does not wait for each other is done side by side: branches, and what follows a join of draws that are
    the same in any order. Off, a run asks for one answer at a time."""
    enable_joined_constants: bool = True
    """Texts are read by the model together with the `gen` behind them, in one step. Off, each is read as it comes."""

    def copy(self) -> Effects:
        """Return the switches as they are now."""
        return replace(self)


effects = Effects()
"""Those of the process."""
