"""The passes in their order, and the check that every op left over is an instruction.

Each line is a function from graph to graph; `run_passes` verifies the graph after each, and tells a listener, so that
any stage can be printed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from trivium.base.errors import InternalError
from trivium.compile.options import PassOptions
from trivium.compile.passes.add_adapters import add_adapters
from trivium.compile.passes.choose_operands import choose_operands
from trivium.compile.passes.drop_unused import drop_unused
from trivium.compile.passes.fold_constants import fold_constants
from trivium.compile.passes.fuse_add_norm import fuse_add_norm
from trivium.compile.passes.fuse_attention import fuse_attention
from trivium.compile.passes.fuse_gated_projection import fuse_gated_projection
from trivium.compile.passes.fuse_logit_scaling import fuse_logit_scaling
from trivium.compile.passes.fuse_residual_add import fuse_residual_add
from trivium.compile.passes.fuse_rope_kv import fuse_rope_kv
from trivium.compile.passes.gather_rows_early import gather_rows_early
from trivium.compile.passes.merge_projections import merge_projections
from trivium.ir.graph import OPERAND_KINDS, Graph
from trivium.ir.ops import OPS
from trivium.ir.verify import verify
from trivium.plan.vocabulary import INSTRUCTIONS

OnPass = Callable[[str, Graph], None]
"""Called with a pass's name and the graph after it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite with a name for people."""

    name: str
    run: Callable[[Graph, PassOptions], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("fold constants", fold_constants),
    Pass("gather rows early", gather_rows_early),
    Pass("add adapters", add_adapters),  # after the gather, which declines products with a delta
    Pass("fuse gated projection", fuse_gated_projection),
    Pass("merge projections", merge_projections),  # ends the op gemm
    Pass("fuse rope and KV write", fuse_rope_kv),  # needs merged q, k and v
    Pass("fuse attention", fuse_attention),
    Pass("fuse logit scaling", fuse_logit_scaling),
    Pass("fuse residual add", fuse_residual_add),  # needs to know which products are scaled
    Pass("fuse add and norm", fuse_add_norm),  # takes the adds that products left
    Pass("choose operands", choose_operands),  # needs every op that can round; the one pass that changes numbers
    Pass("drop unused", drop_unused),
)

BEFORE = "input"
"""What `on_pass` is told for the graph as it came."""

VIEWS = ("reshape",)
"""Ops that need no instruction: their result is the same bytes."""


def run_passes(
    graph: Graph, options: PassOptions, *, on_pass: OnPass | None = None, without: Collection[str] = ()
) -> Graph:
    """Turn a model's graph into one whose ops are instructions.

    Args:
        graph: A verified graph.
        options: Facts about the weights, and which program is wanted.
        on_pass: Told of the graph as it came (as `BEFORE`), and after each pass.
        without: Names of passes to leave out, to measure what they bring; ops that only they turn into instructions
            are then refused.

    Raises:
        InternalError: A pass made an illegal graph; or an op is left that no instruction runs.
    """
    listener = on_pass or _nobody
    listener(BEFORE, graph)
    for each in PASSES:
        if each.name in without:
            continue
        graph = each.run(graph, options)
        try:
            verify(graph)
        except InternalError as error:
            raise InternalError(f"after the pass '{each.name}': {error}") from error
        listener(each.name, graph)
    check_instructions(graph)
    return graph


def check_instructions(graph: Graph) -> None:
    """Check that every op is an instruction, and that products read operands.

    Raises:
        InternalError: Some are not; the message lists them.
    """
    unknown = sorted({node.op for node in graph.nodes if node.op not in INSTRUCTIONS and node.op not in VIEWS})
    if unknown:
        raise InternalError(f"{graph.name}: no instruction exists for: {', '.join(unknown)}")
    types = {value.name: value.type for value in graph.values()}
    for node in graph.nodes:
        is_operand = types[node.inputs[0] or ""].dtype in OPERAND_KINDS if node.inputs else False
        if OPS[node.op].matrices and not is_operand:
            raise InternalError(f"{graph.name}: a {node.op} multiplies {node.inputs[0]}, which is not rounded")


def _nobody(_name: str, _graph: Graph) -> None:
    """Listen to nothing."""
