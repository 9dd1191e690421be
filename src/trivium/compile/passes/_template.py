"""A pass in one file: copy this, follow the comments, then delete them.

This file is tested like the others but is not in the pipeline. Adding a pass takes

1. this file, under the pass's own name: a drawing of before and after, and every case that it declines;
2. a line in `compile/pipeline.py`, with a comment where its place in the order matters;
3. a test that gives a graph before and the graph expected, and checks that both compute the same
   (`support.pass_cases.assert_becomes`), and one per case that is declined (`assert_stays`);
4. where it makes a new op: its schema in `ir/fused.py`, its meaning in `ir/fused_meaning.py`, and an instruction.

The example adds a value to itself by doubling it, which rounds nothing:

::

    add(x, x)  ->  scale(x; factor=2.0)

Declined for sums of two different values.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph


def double_instead_of_add(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    # Nodes come in the order in which they run, as they are when their turn comes: what an earlier step of this loop
    # has replaced is not seen again. Cost should be linear in the graph.
    for add in editor.nodes("add"):
        x = operand(add, "a")
        if operand(add, "b") != x:
            continue
        # A replacement that defines the same values keeps every user as it is. Where several nodes become one, `at`
        # says in whose place: all that the new node reads must be defined before it, and, since later passes overwrite
        # residuals in place, nothing should be read later than before without need.
        editor.replace([add], editor.node("scale", {"x": x}, {"factor": 2.0}, [result(add)]), at=add)
    return editor.build()
