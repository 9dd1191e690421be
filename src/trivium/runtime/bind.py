"""Attach weights to a graph: from named parameters, read one at a time, to the forms that the graph uses them in.

Checkpoints hand out parameters that are read and widened to float32 only when asked. Binding asks for the largest
first, so that the widest temporary exists while the least else is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trivium.base.errors import CheckpointError, ensure
from trivium.ir.ops import OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.ir.graph import Graph
    from trivium.runtime.arrays import Library

Progress = Callable[[int, int], None]
"""Called with bytes bound so far and bytes in all, both as float32."""


class LazyParameter(Protocol):
    """A parameter that is read when asked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        ...

    def float32(self) -> NDArray[np.float32]:
        """Read it."""
        ...


@dataclass(frozen=True, slots=True)
class BoundParameters:
    """What the interpreter runs with, by parameter name, and the memory it takes."""

    arrays: Mapping[str, Any]
    num_bytes: int


def bind_graph(
    graph: Graph,
    parameters: Mapping[str, LazyParameter | NDArray[np.float32]],
    library: Library,
    *,
    report: Progress | None = None,
) -> BoundParameters:
    """Bind every parameter of `graph`.

    Args:
        graph: Says which parameters are needed, in which shapes and uses.
        parameters: By canonical name; more than the graph needs is fine.
        library: Where they go.
        report: Told after each parameter.

    Raises:
        CheckpointError: A parameter is missing, of another shape, or not finite.
        InternalError: The graph uses a parameter in ways that no one form serves, or not at all.
    """
    uses = _uses(graph)
    wanted = sorted(graph.param_shapes().items(), key=lambda item: -_float32_bytes(item[1]))
    for name, shape in wanted:
        if name not in parameters:
            raise CheckpointError(f"{graph.name}: parameter {name} {list(shape)} is missing")
        if tuple(parameters[name].shape) != shape:
            raise CheckpointError(
                f"{graph.name}: parameter {name} is {list(parameters[name].shape)}, not {list(shape)}"
            )
    total = sum(_float32_bytes(shape) for _, shape in wanted)
    arrays: dict[str, Any] = {}
    done = num_bytes = 0
    for name, shape in wanted:
        array = _read(name, parameters[name])
        if uses[name] == {"elements"}:
            arrays[name], taken = library.asarray(array), array.nbytes
        else:
            matrix = library.bind_matrix(array, is_multiplied="product" in uses[name])
            arrays[name], taken = matrix, matrix.num_bytes
        num_bytes += taken
        done += _float32_bytes(shape)
        if report is not None:
            report(done, total)
    return BoundParameters(arrays, num_bytes)


def _float32_bytes(shape: tuple[int, ...]) -> int:
    return 4 * int(np.prod(shape, dtype=np.int64))


def _uses(graph: Graph) -> dict[str, set[str]]:
    """Parameter name to how the graph uses it: looked up by rows, multiplied by, or elementwise."""
    uses: dict[str, set[str]] = {param.name: set() for param in graph.params}
    for node in graph.nodes:
        schema = OPS[node.op]
        for operand, name in zip(schema.input_names, node.inputs, strict=True):
            if name in uses:
                is_matrix, is_table = operand in schema.matrices, operand in schema.tables
                uses[name].add("product" if is_matrix else "rows" if is_table else "elements")
    for name, found in uses.items():
        is_one_form = found == {"elements"} or (found and found <= {"rows", "product"})
        ensure(is_one_form, f"{graph.name}: parameter {name} is used as {sorted(found)}, which no one form serves")
    return uses


def _read(name: str, parameter: LazyParameter | NDArray[np.float32]) -> NDArray[np.float32]:
    array = parameter if isinstance(parameter, np.ndarray) else parameter.float32()
    array = np.ascontiguousarray(array, np.float32)
    # A view may be of a mapped file, which is closed after binding; the bound array must outlive it.
    array = array if array.flags.owndata else array.copy()
    # A sum is finite only if every term is; overflow of large finite terms is settled by looking at each.
    with np.errstate(over="ignore", invalid="ignore"):
        is_finite = bool(np.isfinite(np.sum(array))) or bool(np.isfinite(array).all())
    if not is_finite:
        raise CheckpointError(f"parameter {name} holds values that are not finite")
    return array
