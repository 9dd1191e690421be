"""The native executor: a plan's programs over one arena, two native calls a step.

::

    plan ── lower ──► native program ─┐
    packed weights (mapped) ──────────┼─ forward(step): one call ─► logits [R, V] in the arena ─ sample(rows): one call
    KV stores, arena ─────────────────┘

All memory is taken when the executor is made; a step allocates nothing but its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.kernels.native import PAGE_LEN
from trivium.runtime.lower import OPERAND_FORMATS, Lowering, Memory, lower, module
from trivium.runtime.native_adapters import NativeAdapters
from trivium.runtime.rope_choice import RopeChoice
from trivium.sampling.native import Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.plan.program import Buffer, Plan, ProgramName
    from trivium.runtime.adapters import Adapter, PreparedAdapter
    from trivium.runtime.lower import Matrix
    from trivium.sampling.batch import Sampled, SampleRow
    from trivium.schedule.step import Step
    from trivium.weights.peft import Shapes

_LINE = 64


def aligned_zeros(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed bytes that begin on a cache line; pages nobody writes take no memory."""
    buffer = np.zeros(num_bytes + _LINE, np.uint8)
    start = -buffer.ctypes.data % _LINE
    return buffer[start : start + num_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWeights:
    """Weights as the plan names them."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A program that runs."""

    name: ProgramName
    low: Lowering
    logits: NDArray[np.float32]
    """[R, V] for the most rows, in the arena."""


class NativeExecutor:
    """Runs steps on the CPU's kernels; see `runtime.executor.Executor` for the contract.

    Invariants:
        A step is checked in full before any KV is touched.
    """

    def __init__(self, plan: Plan, weights: NativeWeights, num_pages: tuple[int, ...]) -> None:
        """Bind weights, allocate the KV store and the arena.

        Args:
            plan: Compiled for this processor.
            weights: Every weight that the plan names.
            num_pages: Pages of each KV group.

        Raises:
            InternalError: The plan and the weights, or the plan and this build of the kernels, do not fit.
        """
        spec = plan.kv.spec
        ensure(spec.page_len == PAGE_LEN, f"native pages hold {PAGE_LEN} tokens, not {spec.page_len}")
        ensure(len(num_pages) == len(spec.groups), f"{len(num_pages)} page counts for {len(spec.groups)} KV groups")
        self._plan = plan
        self._num_pages = num_pages
        self._arena = aligned_zeros(plan.arena_bytes)
        self._store_bytes, stores = _make_stores(plan, num_pages)
        self._memory = Memory(
            matrices=weights.matrices,
            vectors=weights.vectors,
            stores=stores,
            place_of_layer=_places(spec),
        )
        self._adapters: NativeAdapters | None = None
        self._making = threading.Lock()
        self._programs: dict[ProgramName, _Loaded] = {"base": self._load("base")}
        self._ropes = [RopeChoice(rope) for rope in plan.ropes]
        self._zeros = np.zeros(plan.limits.max_num_batched_tokens, np.int32)
        self._nones = np.full(plan.limits.max_num_batched_tokens, -1, np.int32)
        self._logits = self._programs["base"].logits[:0]
        self._mask_row: NDArray[np.int32] = self._zeros[:0]
        self._sampler = Sampler()
        self.weight_bytes = sum(matrix.panels.nbytes for matrix in weights.matrices.values())

    @property
    def kv_spec(self) -> KVSpec:
        """Groups and page length of the KV store."""
        return self._plan.kv.spec

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each KV group."""
        return self._num_pages

    @property
    def plan(self) -> Plan:
        """What it runs."""
        return self._plan

    @property
    def logits(self) -> NDArray[np.float32]:
        """[R, V] logits of the last step's wanted rows, in the arena; valid until the next `forward`."""
        return self._logits

    def forward(self, step: Step) -> None:
        """Execute copies, then the model; write KV of all tokens of the step.

        Raises:
            InternalError: The step contradicts the KV store, which is then as it was; or the executor is closed.
        """
        self._run(step, None)

    def timed(self, step: Step) -> NDArray[np.float64]:
        """Run a step and return the seconds that each instruction took, barrier included."""
        seconds = np.zeros(len(self._program_for(step).low.program))
        self._run(step, seconds)
        return seconds

    def trace(self, step: Step) -> list[dict[str, NDArray[np.float32]]]:
        """Run a step instruction by instruction.

        Returns:
            Of each instruction, the buffers that it wrote, by name, as float32 rows; of operands, what their units
            stand for. Layers share buffers, so that a name may come again with other numbers.
        """
        chosen = self._program_for(step)
        low = chosen.low
        found: list[dict[str, NDArray[np.float32]]] = []
        counts = {"T": step.num_tokens, "R": len(step.logit_rows)}
        for index, instruction in enumerate(self._plan.programs[chosen.name].instructions):
            written = [low.buffers[name] for name in instruction.writes.values()]
            if instruction.op == "adapter_delta":  # writes nothing where no adapter adds anything
                _view(self._arena, written[0], counts[written[0].rows]).fill(-0.0)
            self._run(step, None, (index, index + 1))
            if instruction.op == "rope_kv":
                factor = low.query_factor(instruction.attrs["layer"])
                rows = {each.name: self._queries(each, step.num_tokens) / np.float32(factor) for each in written}
            else:
                rows = {each.name: _read(low, self._arena, each, counts[each.rows]) for each in written}
            found.append(rows)
        return found

    def _queries(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]:
        """Read queries [rows, H * D], which attention keeps as what it multiplies with."""
        if self._plan.kv.dtype == "f32":
            return _view(self._arena, buffer, num_rows)
        start = buffer.offset or 0
        halves = self._arena[start : start + 2 * num_rows * buffer.width].view(np.uint16)
        widened = halves.astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32).reshape(num_rows, buffer.width)

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
        return self._sampler.sample(self._logits, rows, masks, self._mask_row)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page of each KV group, all layers."""
        return tuple(module().kv_page_bytes(store) for store in self._memory.stores)

    def export_page(self, group_idx: int, page: int) -> memoryview:
        """Return a copy of the bytes of a page, in the kernels' layout.

        Raises:
            InternalError: There is no such page, or the executor is closed.
        """
        store = self._store(group_idx, page)
        content = np.empty(module().kv_page_bytes(store), np.uint8)
        module().kv_export_page(store, page, content)
        return content.data

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` gave.

        Raises:
            InternalError: The content is not that of a page, or the executor is closed; nothing was written.
        """
        try:
            module().kv_import_page(self._store(group_idx, page), page, np.frombuffer(content, np.uint8))
        except ValueError as error:
            raise InternalError(f"KV group {group_idx}: {error}") from None

    def _store(self, group_idx: int, page: int) -> Any:
        """Return the store of a group that has this page."""
        stores = self._memory.stores
        ensure(0 <= group_idx < len(stores), f"there is no KV group {group_idx}, or the executor is closed")
        ensure(0 <= page < self._num_pages[group_idx], f"KV group {group_idx} has no page {page}")
        return stores[group_idx]

    @property
    def adapter_shapes(self) -> Shapes:
        """Every parameter that adapters may add to.

        Raises:
            InternalError: The plan has no program for adapters, or the executor is closed.
        """
        return self._with_adapters().shapes

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:
        """Check an adapter and bring it into the kernels' layout. From any thread, also while a step runs.

        Raises:
            CheckpointError: It does not fit the model.
            InternalError: The plan has no program for adapters, or the executor is closed.
        """
        return self._with_adapters().prepare(adapter)

    def place_adapter(self, slot: int, prepared: PreparedAdapter) -> None:
        """Let steps use an adapter: requests whose `adapter_slot` is `slot`. Between steps, at no cost.

        Args:
            slot: A free one, 0 to 4095.
            prepared: From `prepare_adapter`; shared, not copied.

        Raises:
            InternalError: The slot is taken, or there is none of that number; or the executor is closed.
        """
        adapters = self._with_adapters()
        if "adapters" not in self._programs:
            self._programs["adapters"] = self._load("adapters")
        adapters.place(slot, prepared)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Prepare an adapter and place it.

        Raises:
            CheckpointError: It does not fit the model.
            InternalError: The slot is taken, or there is none of that number; or the executor is closed.
        """
        self.place_adapter(slot, self.prepare_adapter(adapter))

    def _with_adapters(self) -> NativeAdapters:
        self._open("base")
        with self._making:  # asked for by the loop and by whoever prepares beside it
            if self._adapters is None:
                self._adapters = NativeAdapters(self._plan)
            return self._adapters

    def unload_adapter(self, slot: int) -> None:
        """Forget an adapter.

        Raises:
            InternalError: The slot holds none.
        """
        if self._adapters is None:
            raise InternalError(f"adapters: slot {slot} holds none")
        self._adapters.unload(slot)

    def close(self) -> None:
        """Give back weights, KV and arena; the executor is not used afterwards."""
        self._programs = {}
        self._adapters = None
        self._memory = Memory(matrices={}, vectors={}, stores=(), place_of_layer={})
        self._logits = self._logits[:0].copy()
        self._arena = aligned_zeros(0)

    def _load(self, name: ProgramName) -> _Loaded:
        """Lower a program over the executor's weights, KV stores and arena."""
        plan, spec = self._plan, self._plan.kv.spec
        low = lower(plan, name, self._memory, self._adapters)
        groups = zip(self._num_pages, spec.groups, strict=True)
        low.program.limit(
            max_tokens=plan.limits.max_num_batched_tokens,
            max_rows=plan.limits.max_logit_rows,
            vocab_size=plan.sizes.vocab_size,
            page_len=PAGE_LEN,
            groups=[(pages, group.window or 0) for pages, group in groups],
            stores=list(self._memory.stores),
        )
        logits = low.buffers[plan.programs[name].outputs["logits"]]
        return _Loaded(name, low, _view(self._arena, logits, plan.limits.max_logit_rows))

    def _open(self, name: ProgramName) -> _Loaded:
        if not self._programs:
            raise InternalError("the executor is closed")
        return self._programs[name]

    def _program_for(self, step: Step) -> _Loaded:
        """Choose the program: the second one where a request has an adapter; its bits are the first one's without."""
        has_adapters = step.adapter_slot.data != self._nones[: step.num_requests].data
        if has_adapters and self._programs:
            ensure(self._adapters is not None, "step has adapters; this executor has none loaded")
        return self._open("adapters" if has_adapters else "base")

    def _run(self, step: Step, seconds: NDArray[np.float64] | None, part: tuple[int, int] | None = None) -> None:
        _refuse_unsupported(step, self._nones[: step.num_requests])
        chosen = self._program_for(step)
        zeros = self._zeros[: step.num_requests]
        try:
            chosen.low.program.run(
                arena=self._arena,
                token_ids=step.token_ids,
                positions=step.positions,
                starts=step.starts,
                kv_lens=step.kv_lens,
                logit_rows=step.logit_rows,
                embeds=step.embeds,
                copies=step.copies,
                page_tables=step.page_tables,
                ropes=[choice.rows(step.reaches, zeros) for choice in self._ropes],
                seconds=seconds,
                part=part,
                adapter_slot=step.adapter_slot,
            )
        except ValueError as error:
            raise InternalError(str(error)) from None
        self._logits = chosen.logits[: len(step.logit_rows)]
        self._mask_row = step.mask_row


def _refuse_unsupported(step: Step, none: NDArray[np.int32]) -> None:
    """Check what the program does not look at; it checks the rest. `none` [B] is -1 throughout."""
    of_requests = (step.num_requests,)
    for name, found, wanted in (
        ("reaches", step.reaches.shape, of_requests),
        ("adapter_slot", step.adapter_slot.shape, of_requests),
        ("state_slot", step.state_slot.shape, of_requests),
        ("mask_row", step.mask_row.shape, step.logit_rows.shape),
    ):
        if found != wanted:
            raise InternalError(f"step.{name} is {found}, not {wanted}")
    # Views of the arrays are compared, since NumPy would allocate a third array.
    ensure(step.state_slot.data == none.data, "step has recurrent state; this model has none")


def _places(spec: KVSpec) -> dict[int, tuple[int, int]]:
    groups = enumerate(spec.groups)
    return {layer: (group_idx, index) for group_idx, group in groups for index, layer in enumerate(group.layers)}


def _make_stores(plan: Plan, num_pages: tuple[int, ...]) -> tuple[int, tuple[Any, ...]]:
    total, stores = 0, []
    for group, pages in zip(plan.kv.spec.groups, num_pages, strict=True):
        shape = {
            "type": plan.kv.dtype,
            "num_layers": len(group.layers),
            "num_pages": pages,
            "num_heads": plan.sizes.num_kv_heads,
            "width": plan.sizes.head_width,
        }
        num_bytes = module().kv_store_bytes(**shape)
        stores.append(module().KVStore(data=aligned_zeros(num_bytes), **shape))
        total += num_bytes
    return total, tuple(stores)


def _view(arena: NDArray[np.uint8], buffer: Buffer, rows: int) -> NDArray[np.float32]:
    ensure(buffer.kind == "f32" and buffer.offset is not None, f"{buffer.name} is not float32 rows in the arena")
    start = buffer.offset or 0
    return arena[start : start + 4 * rows * buffer.width].view(np.float32).reshape(rows, buffer.width)


def _read(low: Lowering, arena: NDArray[np.uint8], buffer: Buffer, rows: int) -> NDArray[np.float32]:
    if buffer.kind in OPERAND_FORMATS:
        out = np.empty((rows, buffer.depth), np.float32)
        module().read_operand(low.layout(buffer.name), arena, low.at(buffer.name), out)
        return out[:, : buffer.width]
    return _view(arena, buffer, rows).copy()
