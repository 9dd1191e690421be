"""The reference executor: the graph op by op in float32, the meaning that every faster executor is measured by.

On NumPy its products come from the project's row-independent kernels, so a request's logits are the same bits
whatever else is in the step. On torch it computes the same values on any device, to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.ir.interpret import Interpreter, Trace
from trivium.kernels import gemm
from trivium.runtime.adapters import LoadedAdapters
from trivium.runtime.arrays import Library, NumpyLibrary, ProductKernels, TorchLibrary
from trivium.runtime.bind import LazyParameter, Progress, bind_graph
from trivium.runtime.check import StepLimits, check_step
from trivium.runtime.inputs import StepMemory, graph_inputs
from trivium.runtime.kv_store import KVStore
from trivium.sampling.pipeline import sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.config.model import ModelConfig
    from trivium.ir.graph import Graph
    from trivium.runtime.adapters import Adapter, PreparedAdapter
    from trivium.sampling.batch import Sampled, SampleRow
    from trivium.schedule.step import Step
    from trivium.weights.peft import Shapes


class ReferenceExecutor:
    """Runs steps through the interpreter; see `runtime.executor.Executor` for the contract.

    Invariants:
        A step is checked in full before any KV is touched.
    """

    def __init__(  # noqa: PLR0913 - what to run, where, and how much of it; all but the first five by keyword
        self,
        graph: Graph,
        parameters: Mapping[str, LazyParameter | NDArray[np.float32]],
        config: ModelConfig,
        spec: KVSpec,
        num_pages: tuple[int, ...],
        *,
        max_logit_rows: int,
        array_library: Literal["numpy", "torch"] = "numpy",
        device: str = "cpu",
        kernels: ProductKernels | None = None,
        adapted: Graph | None = None,
        report: Progress | None = None,
    ) -> None:
        """Bind weights and allocate the KV store.

        Args:
            graph: A verified graph with an output `logits` [R, V].
            parameters: By canonical name.
            config: KV heads, head width, vocabulary.
            spec: KV groups and page length.
            num_pages: Pages of each group.
            max_logit_rows: Most rows of a step whose logits may be wanted.
            array_library: `numpy`, or `torch`, which needs the hf extra.
            device: Torch device.
            kernels: Products on NumPy; the project's own by default.
            adapted: The same graph with adapters' deltas, for steps that have some; without it there are none.
            report: Told of bytes bound so far, and in all.

        Raises:
            CheckpointError: A parameter is missing, of another shape, or not finite.
            ConfigError: Torch is not there, or does not know the device.
        """
        self._library: Library = TorchLibrary(device) if array_library == "torch" else NumpyLibrary(kernels or gemm)
        bound = bind_graph(graph, parameters, self._library, report=report)
        self.weight_bytes = bound.num_bytes
        self._interpreter: Interpreter | None = Interpreter(graph, self._library, bound.arrays)
        self._adapters = LoadedAdapters(self._library, {} if adapted is None else _adapted_shapes(adapted))
        self._adapted = None if adapted is None else Interpreter(adapted, self._library, bound.arrays)
        self._store: KVStore | None = KVStore(
            spec, num_pages, num_kv_heads=config.num_kv_heads, head_width=config.head_width, library=self._library
        )
        self._limits = StepLimits(
            spec=spec,
            num_pages=num_pages,
            vocab_size=config.vocab_size,
            model_width=config.model_width,
            max_logit_rows=max_logit_rows,
            takes_embeds=any(value.name == "embeds" for value in graph.inputs),
        )
        self._logits = np.zeros((0, config.vocab_size), np.float32)
        self._mask_row: NDArray[np.int32] = np.zeros(0, np.int32)

    @property
    def kv_spec(self) -> KVSpec:
        """Groups and page length of the KV store."""
        return self._limits.spec

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each KV group."""
        return self._limits.num_pages

    @property
    def logits(self) -> NDArray[np.float32]:
        """[R, V] logits of the last step's wanted rows, in host memory; valid until the next `forward`."""
        return self._logits

    @property
    def store(self) -> KVStore:
        """The KV store.

        Raises:
            InternalError: The executor is closed.
        """
        return self._open()[1]

    def forward(self, step: Step, *, trace: Trace | None = None) -> None:
        """Execute copies, then the model; write KV of all tokens of the step.

        Args:
            step: What to run.
            trace: Called with the name and the array of every value of the graph.

        Raises:
            InternalError: The step contradicts the KV store, which is then as it was; or the executor is closed.
        """
        interpreter, store = self._open()
        check_step(step, self._limits, self._adapters.slots)
        for group_idx, source, target in step.copies.tolist():
            store.copy_page(group_idx, source, target)
        memory = StepMemory(step, store, self._library)
        adapters = None
        if self._adapted is not None and (step.adapter_slot != -1).any():
            interpreter, adapters = self._adapted, self._adapters.of(step)
        outputs = interpreter.run(graph_inputs(step, self._library), memory, adapters=adapters, trace=trace)
        self._logits = self._library.to_host(outputs["logits"])
        self._mask_row = step.mask_row

    def sample(self, rows: Sequence[SampleRow], masks: NDArray[np.uint32] | None = None) -> Sampled:
        """Draw or score one token per wanted row of the last step.

        Args:
            rows: One record per entry of the step's `logit_rows`, in that order.
            masks: [masks, ceil(V / 32)] allowed tokens; the step's `mask_row` chooses the row.

        Raises:
            InternalError: There are more or fewer rows than the last step wanted.
        """
        wanted = len(self._logits)
        ensure(len(rows) == wanted, f"sample got {len(rows)} rows; the last step wanted {wanted}")
        return sample(self._logits, rows, masks, self._mask_row)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page of each KV group."""
        return self.store.page_bytes

    def export_page(self, group_idx: int, page: int) -> bytes:
        """Return the bytes of a page; see `KVStore.export_page`.

        Raises:
            InternalError: There is no such page, or the executor is closed.
        """
        return self.store.export_page(group_idx, page)

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` gave.

        Raises:
            InternalError: The content is not that of a page, or the executor is closed.
        """
        self.store.import_page(group_idx, page, content)

    @property
    def adapter_shapes(self) -> Shapes:
        """Every parameter that adapters may add to."""
        return self._adapters.shapes

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:
        """Check an adapter and bring it into the library's layout.

        Raises:
            CheckpointError: It does not fit the model.
        """
        return self._adapters.prepare(adapter)

    def place_adapter(self, slot: int, prepared: PreparedAdapter) -> None:
        """Let steps use an adapter; see `runtime.adapters.LoadedAdapters.place`.

        Raises:
            InternalError: The slot is taken, or negative; or another kind of executor prepared it.
        """
        self._adapters.place(slot, prepared)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Prepare an adapter and place it.

        Raises:
            CheckpointError: It does not fit the model.
            InternalError: The slot is taken, or negative.
        """
        self.place_adapter(slot, self.prepare_adapter(adapter))

    def unload_adapter(self, slot: int) -> None:
        """Forget an adapter.

        Raises:
            InternalError: The slot holds none.
        """
        self._adapters.unload(slot)

    def close(self) -> None:
        """Give back weights and KV; the executor is not used afterwards."""
        self._interpreter = None
        self._adapted = None
        self._store = None
        self._logits = self._logits[:0].copy()

    def _open(self) -> tuple[Interpreter, KVStore]:
        if self._interpreter is None or self._store is None:
            raise InternalError("the executor is closed")
        return self._interpreter, self._store


def _adapted_shapes(graph: Graph) -> dict[str, tuple[int, int]]:
    """Find what a graph asks adapters for: parameter to its shape [N, K]."""
    shapes = graph.param_shapes()
    nodes = (node for node in graph.nodes if node.op == "adapter_delta")
    names = {str(name) for node in nodes for name in node.attributes["parameters"]}  # type: ignore[union-attr]
    return {name: (shapes[name][0], shapes[name][1]) for name in sorted(names)}
