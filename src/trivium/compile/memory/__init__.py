"""Where values lie in the arena: lifetimes, offsets, and a proof that knows nothing of either."""

from __future__ import annotations

from trivium.compile.memory.planner import Arena, plan_memory
from trivium.compile.memory.proof import prove

__all__ = ["Arena", "plan_memory", "prove"]
