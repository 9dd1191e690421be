"""From a model's graph to its plan, in one call: passes for both programs, memory, emission."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from trivium.compile.emit import PlanFacts, emit
from trivium.compile.options import PassOptions
from trivium.compile.pipeline import run_passes
from trivium.ir.graph import Graph
from trivium.plan.program import Plan, ProgramName

OnProgramPass = Callable[[ProgramName, str, Graph], None]
"""Called with the program, the pass's name, and the graph after it."""


def build_plan(
    graph: Graph, facts: PlanFacts, *, on_pass: OnProgramPass | None = None, without: Collection[str] = ()
) -> Plan:
    """Compile a model.

    Args:
        graph: A verified graph, as `models.build_graph` gives it.
        facts: What the plan is made for.
        on_pass: Told of every stage of both programs.
        without: See `run_passes`.

    Returns:
        A plan whose tactics are chosen by rule.

    Raises:
        InternalError: A pattern that no pass recognises left an op without an instruction, or a format is not known.
    """
    programs: tuple[tuple[ProgramName, bool], ...] = (("base", False), ("adapters", True))
    graphs: dict[ProgramName, Graph] = {}
    for name, has_adapters in programs:
        listener = None if on_pass is None else partial(on_pass, name)
        graphs[name] = run_passes(graph, PassOptions(facts.formats, has_adapters), on_pass=listener, without=without)
    return emit(graphs, facts)
