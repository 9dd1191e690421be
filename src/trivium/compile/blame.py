"""When a plan is right but not the model: find the pass after which the graph means something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.compile.pipeline import run_passes
from trivium.plan.verify import relative_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.compile.options import PassOptions
    from trivium.ir.graph import Graph

_REGROUPED = 1e-3
"""What a pass may change that only regroups operations."""
_ROUNDED = 0.25
"""What the pass may change that rounds operands."""
_ROUNDS = "choose operands"


@dataclass(frozen=True, slots=True)
class GuiltyPass:
    """A pass that changed what the graph gives."""

    name: str
    error: float
    """Relative error of the outputs against those before the pass."""


def find_guilty_pass(
    graph: Graph, options: PassOptions, outputs_of: Callable[[Graph], NDArray[np.float32]]
) -> GuiltyPass | None:
    """Run the graph after every pass, and return the first that changed more than it may.

    Args:
        graph: The model's graph.
        options: What the plan was compiled with.
        outputs_of: Interprets a graph on some text.

    Returns:
        The pass; `None` where every one is innocent.
    """
    stages: list[tuple[str, Graph]] = []
    run_passes(graph, options, on_pass=lambda name, after: stages.append((name, after)))
    before = outputs_of(stages[0][1])
    for name, after in stages[1:]:
        found = outputs_of(after)
        error = relative_error(found, before)
        if not error <= (_ROUNDED if name == _ROUNDS else _REGROUPED):
            return GuiltyPass(name, error)
        before = found
    return None
