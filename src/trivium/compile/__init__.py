"""Floor 4: from a graph to a plan: passes, memory plan, emission."""

from __future__ import annotations

from trivium.compile.build import build_plan
from trivium.compile.emit import PlanFacts
from trivium.compile.formats import format_named

__all__ = ["PlanFacts", "build_plan", "format_named"]
