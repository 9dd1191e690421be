"""The reference executor: the graph op by op in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trivium import __version__
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.passes.add_adapters import add_adapters
from trivium.models import build_graph, kv_spec
from trivium.runtime.reference import ReferenceExecutor
from trivium.weights.bind import bind_parameters

if TYPE_CHECKING:
    from trivium.assembly.model import OpenModel, Report
    from trivium.config.options import EngineOptions
    from trivium.ir.graph import Graph


class ReferenceParts:
    """See `assembly.choice.ExecutorParts`."""

    name = "reference"
    arithmetic = "float32"
    kv_dtype = "f32"

    def __init__(self, options: EngineOptions, model: OpenModel) -> None:
        self._options = options
        self._model = model
        self._graph = build_graph(model.config)
        self.kv_spec = kv_spec(model.config, page_len=options.cache.page_len, element_bytes=4)
        self.weight_bytes = float32_bytes(self._graph)
        self.kernel_facts = {
            "library": options.executor.array_library,
            "device": options.executor.device,
            "trivium": __version__,
        }

    def make(self, num_pages: tuple[int, ...], report: Report) -> ReferenceExecutor:
        """Widen and pack the weights, take the KV store.

        Raises:
            ModelError: The checkpoint is not what its configuration says.
        """
        model, options = self._model, self._options
        shapes = self._graph.param_shapes()
        parameters = bind_parameters(model.checkpoint, shapes, model.config)
        formats = {name: FORMATS["f32"] for name, shape in shapes.items() if len(shape) > 1}
        return ReferenceExecutor(
            self._graph,
            parameters,
            model.config,
            self.kv_spec,
            num_pages,
            max_logit_rows=options.schedule.max_num_seqs,
            array_library=options.executor.array_library,
            device=options.executor.device,
            adapted=add_adapters(self._graph, PassOptions(formats, has_adapters=True)),
            report=lambda done, total: report("loading weights", done, total),
        )


def float32_bytes(graph: Graph) -> int:
    """Bytes of a graph's parameters in float32; a table that is looked up and multiplied by counts twice."""
    twice = {node.inputs[1] for node in graph.nodes if node.op == "embed"}
    twice &= {node.inputs[1] for node in graph.nodes if node.op == "gemm"}
    return sum(4 * math.prod(shape) * (2 if name in twice else 1) for name, shape in graph.param_shapes().items())
