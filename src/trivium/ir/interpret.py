"""Run a graph node by node with the meanings of its ops.

The interpreter knows order and lifetime: it runs nodes as listed and drops each value after its last use. Arithmetic
is `ir.meaning`'s, arrays and products are the library's, keys and values are the memory's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ensure
from trivium.ir.fused_meaning import FUSED_MEANINGS
from trivium.ir.meaning import PRIMITIVE_MEANINGS, Pass

if TYPE_CHECKING:
    from trivium.ir.graph import Graph, Node
    from trivium.ir.meaning import AdapterSource, ArrayLibrary, KVMemory

MEANINGS: Mapping[str, Callable[..., Any]] = {**PRIMITIVE_MEANINGS, **FUSED_MEANINGS}
"""Op name to what it computes."""

Trace = Callable[[str, Any], None]
"""Called with the name and the array of each value as it is made."""


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A node with its meaning looked up and its operands as cell numbers."""

    meaning: Callable[..., Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...]
    """Cells that nothing reads afterwards."""


_ABSENT = 0
"""Cell of operands that are not there; always holds `None`."""


class Interpreter:
    """Runs one graph, any number of times.

    Invariants:
        Between runs it holds no values, only parameters.
    """

    def __init__(self, graph: Graph, library: ArrayLibrary, params: Mapping[str, Any]) -> None:
        """Resolve names to cells.

        Args:
            graph: A verified graph.
            library: Arrays and products.
            params: Every parameter of the graph, as the library binds it.

        Raises:
            InternalError: A parameter is missing.
        """
        self._graph = graph
        self._library = library
        self._names = [""] + [value.name for value in graph.values()]
        self._cells = {name: cell for cell, name in enumerate(self._names) if name}
        self._params: dict[int, Any] = {}
        for param in graph.params:
            ensure(param.name in params, f"{graph.name}: parameter {param.name} is not bound")
            self._params[self._cells[param.name]] = params[param.name]
        last_use = self._last_uses()
        self._program = [self._instruction(idx, node, last_use) for idx, node in enumerate(graph.nodes)]

    def run(
        self,
        inputs: Mapping[str, Any],
        memory: KVMemory,
        *,
        adapters: AdapterSource | None = None,
        trace: Trace | None = None,
    ) -> dict[str, Any]:
        """Run every node.

        Args:
            inputs: Every input of the graph; `embeds` may be `None`.
            memory: The KV store as this step sees it.
            adapters: The adapters of the step's requests; needed where the graph asks for them.
            trace: Called with every node output, in order; for finding where two runs part.

        Returns:
            The graph's outputs by name.

        Raises:
            InternalError: An input is missing, or the adapters are.

        Effects:
            Writes the step's keys and values into `memory`.
        """
        cells: list[Any] = [None] * len(self._names)
        for cell, bound in self._params.items():
            cells[cell] = bound
        for value in self._graph.inputs:
            ensure(value.name in inputs, f"{self._graph.name}: input {value.name} is missing")
            cells[self._cells[value.name]] = inputs[value.name]
        run = Pass(self._library, memory, adapters)
        for step in self._program:
            made = step.meaning(run, *[cells[cell] for cell in step.operands])
            if len(step.results) == 1:
                cells[step.results[0]] = made
            else:
                for cell, piece in zip(step.results, made, strict=True):
                    cells[cell] = piece
            if trace is not None:
                for cell in step.results:
                    trace(self._names[cell], cells[cell])
            for cell in step.dead:
                cells[cell] = None
        return {name: cells[self._cells[value_name]] for name, value_name in self._graph.outputs.items()}

    def _instruction(self, idx: int, node: Node, last_use: Mapping[int, int]) -> _Instruction:
        operands = tuple(_ABSENT if name is None else self._cells[name] for name in node.inputs)
        results = tuple(self._cells[value.name] for value in node.outputs)
        dead = {cell for cell in (*operands, *results) if last_use.get(cell, idx) == idx and cell != _ABSENT}
        return _Instruction(partial(MEANINGS[node.op], **node.attributes), operands, results, tuple(sorted(dead)))

    def _last_uses(self) -> dict[int, int]:
        """Cell to the index of the last node that reads it; outputs and parameters outlive all nodes."""
        last_use: dict[int, int] = {}
        for idx, node in enumerate(self._graph.nodes):
            last_use.update((self._cells[name], idx) for name in node.inputs if name is not None)
        never = len(self._graph.nodes)
        last_use.update((self._cells[value_name], never) for value_name in self._graph.outputs.values())
        return last_use
