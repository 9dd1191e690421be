"""The native executor: a plan's programs over one arena, two native calls a step.

::

    plan ── lower ──► native program ─┐
    packed weights (mapped) ──────────┼─ forward(step): one call ─► logits [R, V] in the arena ─ sample(rows): one call
    KV stores, arena ─────────────────┘

All memory is taken when the executor is made; a step allocates nothing but its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.kernels.native import PAGE_LEN
from trivium.runtime.lower import OPERAND_FORMATS, Lowering, Memory, lower, module
from trivium.runtime.rope_choice import RopeChoice
from trivium.sampling.native import Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.plan.program import Buffer, Plan
    from trivium.runtime.lower import Matrix
    from trivium.sampling.batch import Sampled, SampleRow
    from trivium.schedule.step import Step

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
        memory = Memory(
            matrices=weights.matrices,
            vectors=weights.vectors,
            stores=stores,
            place_of_layer=_places(spec),
        )
        self._base: Lowering | None = lower(plan, "base", memory)
        self._base.program.limit(
            max_tokens=plan.limits.max_num_batched_tokens,
            max_rows=plan.limits.max_logit_rows,
            vocab_size=plan.sizes.vocab_size,
            page_len=PAGE_LEN,
            groups=[(pages, group.window or 0) for pages, group in zip(num_pages, spec.groups, strict=True)],
            stores=list(stores),
        )
        self._ropes = [RopeChoice(rope) for rope in plan.ropes]
        self._zeros = np.zeros(plan.limits.max_num_batched_tokens, np.int32)
        logits = self._base.buffers[plan.programs["base"].outputs["logits"]]
        self._logit_space = _view(self._arena, logits, plan.limits.max_logit_rows)
        self._logits = self._logit_space[:0]
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
        seconds = np.zeros(len(self._open().program))
        self._run(step, seconds)
        return seconds

    def trace(self, step: Step) -> list[dict[str, NDArray[np.float32]]]:
        """Run a step instruction by instruction.

        Returns:
            Of each instruction, the buffers that it wrote, by name, as float32 rows; of operands, what their units
            stand for. Layers share buffers, so that a name may come again with other numbers.
        """
        low = self._open()
        found: list[dict[str, NDArray[np.float32]]] = []
        for index, instruction in enumerate(self._plan.programs["base"].instructions):
            self._run(step, None, (index, index + 1))
            written = [low.buffers[name] for name in instruction.writes.values()]
            counts = {"T": step.num_tokens, "R": len(step.logit_rows)}
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

    def close(self) -> None:
        """Give back weights, KV and arena; the executor is not used afterwards."""
        self._base = None
        self._logits = self._logits[:0].copy()
        self._logit_space = self._logits
        self._arena = aligned_zeros(0)

    def _open(self) -> Lowering:
        if self._base is None:
            raise InternalError("the executor is closed")
        return self._base

    def _run(self, step: Step, seconds: NDArray[np.float64] | None, part: tuple[int, int] | None = None) -> None:
        program = self._open().program
        _refuse_unsupported(step)
        zeros = self._zeros[: step.num_requests]
        try:
            program.run(
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
            )
        except ValueError as error:
            raise InternalError(str(error)) from None
        self._logits = self._logit_space[: len(step.logit_rows)]
        self._mask_row = step.mask_row


def _refuse_unsupported(step: Step) -> None:
    """Check what the program does not look at; it checks the rest."""
    for name in ("reaches", "adapter_slot", "state_slot"):
        found = getattr(step, name).shape
        ensure(found == (step.num_requests,), f"step.{name} is {found}, not ({step.num_requests},)")
    found = step.mask_row.shape
    ensure(found == step.logit_rows.shape, f"step.mask_row is {found}, not {step.logit_rows.shape}")
    ensure(not len(step.moves), "step has tier moves; this executor has no tiers")
    ensure(not (step.adapter_slot >= 0).any(), "step has adapters; this executor has none loaded")
    ensure(not (step.state_slot >= 0).any(), "step has recurrent state; this model has none")


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
