"""From a plan's instructions to a native program: names become offsets and pointers, an instruction one method call.

`LOWERINGS` has one line per op of `plan.program`; an op without a line cannot run natively, and says so when the plan
is bound, not in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InternalError, ensure
from trivium.ir.rope import rope_frequencies
from trivium.kernels import native
from trivium.plan.tactic import OTHERWISE, kernel_ranges

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.plan.program import AttributeValue, Buffer, Instruction, Plan, ProgramName
    from trivium.runtime.native_adapters import NativeAdapters

OPERAND_FORMATS = {"f32t": "f32", "bf16": "bf16", "q8": "q8", "q8_wide": "q8_wide"}
"""Kind of a buffer to the operand format of the kernels."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed weight as it lies in memory."""

    format: str
    panels: NDArray[np.uint8]
    """Whole panels, beginning on a cache line."""
    num_cols: int
    depth: int
    """K, unpadded."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a program runs on beside the arena."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, NDArray[np.float32]]
    stores: tuple[Any, ...]
    """Native KV store of each group."""
    place_of_layer: Mapping[int, tuple[int, int]]
    """Layer to its KV group and its index in it."""


@dataclass(slots=True)
class Lowering:
    """Builds one native program; keeps alive what the program points to."""

    plan: Plan
    memory: Memory
    adapters: NativeAdapters | None = None
    program: Any = field(init=False)
    buffers: Mapping[str, Buffer] = field(init=False)
    deltas: dict[str, list[int]] = field(init=False, default_factory=dict)
    """Buffer of a delta to the products it is for, as adapters number them."""
    _weights: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.program = module().Program()
        self.buffers = {buffer.name: buffer for buffer in self.plan.buffers}

    def at(self, name: str | None) -> int | None:
        """Offset of a buffer in the arena; `None` for no buffer.

        Raises:
            InternalError: The buffer is not in the arena.
        """
        if name is None:
            return None
        offset = self.buffers[name].offset
        if offset is None:
            raise InternalError(
                f"{self.plan.architecture}: {name} is brought by the step and has no place in the arena"
            )
        return offset

    def layout(self, name: str | None) -> Any:
        """How an operand's rows are stored; `None` for no buffer."""
        if name is None:
            return None
        buffer = self.buffers[name]
        sums = [(each.group, each.zero) for each in buffer.sums]
        return module().OperandLayout(OPERAND_FORMATS[buffer.kind], buffer.depth, sums)

    def width(self, name: str) -> int:
        """Elements of a row."""
        return self.buffers[name].width

    def query_factor(self, layer: AttributeValue) -> float:
        """What the queries of a layer are multiplied with: its attention says."""
        attends = [each for each in self.plan.programs["base"].instructions if each.op == "attend"]
        attrs = next(each.attrs for each in attends if each.attrs["layer"] == layer)
        return float(module().query_factor(attrs["scale"], attrs["softcap"] or 0.0))

    def matrix(self, name: str) -> Any:
        """Return the native handle of a packed weight."""
        if name not in self._weights:
            matrix = self.memory.matrices[name]
            handle = module().Weight(matrix.format, matrix.panels, matrix.num_cols, matrix.depth)
            self._weights[name] = handle
        return self._weights[name]

    def vector(self, name: str | None) -> NDArray[np.float32] | None:
        """Return a float32 vector; `None` for no weight."""
        return None if name is None else self.memory.vectors[name]


def module() -> Any:
    """Return the native module.

    Raises:
        InternalError: It was not built; a plan for it should not have been made.
    """
    found = native.load()
    if found is None:
        raise InternalError("a native program needs the native kernels, which are not here")
    return found


def lower(plan: Plan, name: ProgramName, memory: Memory, adapters: NativeAdapters | None = None) -> Lowering:
    """Build one of a plan's programs.

    Args:
        plan: Made for this processor.
        name: Which program.
        memory: Weights and KV stores; must live as long as the program, and does, by reference.
        adapters: What the program `adapters` asks.

    Raises:
        InternalError: An instruction is not known, or names a weight or buffer that is not there.
    """
    lowering = Lowering(plan, memory, adapters)
    for instruction in plan.programs[name].instructions:
        ensure(instruction.op in LOWERINGS, f"{plan.architecture}: no native instruction for op {instruction.op}")
        LOWERINGS[instruction.op](lowering, instruction)
    lowering.program.seal()
    return lowering


def _embed(low: Lowering, instruction: Instruction) -> None:
    out = instruction.writes["out"]
    table = low.matrix(instruction.weights["weight"])
    low.program.embed(table=table, width=low.width(out), scale=instruction.attrs["scale"], out_at=low.at(out))


def _rope_table(low: Lowering, instruction: Instruction) -> None:
    rope = instruction.attrs["rope"]
    out = instruction.writes["out"]
    if not isinstance(rope, int):
        raise InternalError(f"rope_table: rope is {rope!r}, not an index")
    _, factor = rope_frequencies(low.plan.ropes[rope], 0)
    low.program.rope_table(rope=rope, half=low.width(out) // 2, factor=factor, out_at=low.at(out))


def _add_norm(low: Lowering, instruction: Instruction) -> None:
    reads, writes, weights, attrs = instruction.reads, instruction.writes, instruction.weights, instruction.attrs
    operand = writes.get("operand")
    low.program.norm(
        width=low.width(reads["a"]),
        eps=attrs.get("eps") or 0.0,
        b_eps=attrs.get("b_eps", attrs.get("eps")) or 0.0,
        a_at=low.at(reads["a"]),
        b_at=low.at(reads.get("b")),
        b_weight=low.vector(weights.get("b_weight")),
        weight=low.vector(weights.get("weight")),
        rows=low.buffers[reads["a"]].rows,
        gathers="rows" in reads,
        sum_at=low.at(writes.get("sum")),
        floats_at=low.at(writes.get("wide")),
        layout=low.layout(operand),
        operand_at=low.at(operand),
    )


def _adapter_delta(low: Lowering, instruction: Instruction) -> None:
    x, out, attrs = instruction.reads["x"], instruction.writes["out"], instruction.attrs
    if low.adapters is None:
        raise InternalError("adapter_delta: the program is lowered without adapters")
    low.deltas[out] = low.adapters.products(attrs["parameters"])
    low.program.adapter_delta(
        adapters=low.adapters.handle,
        products=low.deltas[out],
        rows=attrs["rows"],
        x_at=low.at(x),
        out_at=low.at(out),
    )


def _project(low: Lowering, instruction: Instruction, parts: tuple[str, ...], epilogue: str) -> None:
    reads, writes, attrs = instruction.reads, instruction.writes, instruction.attrs
    x, out, operand = reads["x"], writes.get("out", writes.get("wide")), writes.get("operand")
    sums = attrs["sums"]
    if not isinstance(sums, tuple):
        raise InternalError(f"{instruction.op}: sums are {sums!r}")
    delta = reads.get("delta")
    low.program.project(
        parts=[low.matrix(instruction.weights[part]) for part in parts],
        sums=[max(int(index), 0) for index in sums],
        layout=low.layout(x),
        operand_at=low.at(x),
        rows=low.buffers[x].rows,
        epilogue=epilogue,
        bias=low.vector(instruction.weights.get("bias")),
        delta_at=low.at(delta),
        delta_stride=0 if delta is None else low.width(delta),
        delta_of=[] if delta is None else low.deltas[delta],
        scale=attrs.get("scale", 1.0),
        soft_cap=attrs.get("softcap") or 0.0,
        activation=attrs.get("activation", "silu"),
        out_at=low.at(out),
        out_stride=0 if out is None else low.width(out),
        out_layout=low.layout(operand),
        out_operand_at=low.at(operand),
        tactics=list(kernel_ranges(instruction)),
        tactic=(instruction.tactic or {}).get(OTHERWISE, "auto"),
    )


def _projection(low: Lowering, instruction: Instruction) -> None:
    parts = tuple(sorted(name for name in instruction.weights if name.startswith("weight_")))
    _project(low, instruction, parts, "store")


def _projection_add(low: Lowering, instruction: Instruction) -> None:
    ensure(
        low.at(instruction.reads["residual"]) == low.at(instruction.writes["out"]),
        f"projection_add: {instruction.writes['out']} does not lie where its residual lies",
    )
    _project(low, instruction, ("weight_0",), "add")


def _gated_projection(low: Lowering, instruction: Instruction) -> None:
    _project(low, instruction, ("gate", "up"), "gated")


def _rms_norm(low: Lowering, instruction: Instruction) -> None:
    attrs = instruction.attrs
    x, out = instruction.reads["x"], instruction.writes["out"]
    low.program.plain_norm(
        rows=low.buffers[x].rows,
        count=attrs["count"],
        width=attrs["width"],
        eps=attrs["eps"],
        weight=low.vector(instruction.weights["weight"]),
        x_at=low.at(x),
        out_at=low.at(out),
    )


def _split(low: Lowering, instruction: Instruction) -> None:
    sizes, count = instruction.attrs["sizes"], instruction.attrs["count"]
    ensure(isinstance(sizes, tuple), f"split: sizes are {sizes!r}")
    x = instruction.reads["x"]
    low.program.split(
        rows=low.buffers[x].rows,
        count=count,
        sizes=list(sizes) if isinstance(sizes, tuple) else [],
        x_at=low.at(x),
        outs_at=[low.at(instruction.writes[f"out_{index}"]) for index in range(len(instruction.writes))],
    )


def _plain(op: str, left: str, right: str | None = None, number: str | None = None) -> Callable[..., None]:
    def add(low: Lowering, instruction: Instruction) -> None:
        a, out = instruction.reads[left], instruction.writes["out"]
        b = None if right is None else instruction.reads[right]
        low.program.plain(
            op=instruction.attrs[op] if op == "activation" else op,
            rows=low.buffers[a].rows,
            width=low.width(a),
            a_at=low.at(a),
            b_at=low.at(b),
            number=1.0 if number is None else instruction.attrs[number],
            out_at=low.at(out),
        )

    return add


def _rope_kv(low: Lowering, instruction: Instruction) -> None:
    reads, attrs, weights = instruction.reads, instruction.attrs, instruction.weights
    group_idx, index = low.memory.place_of_layer[int(attrs["layer"])]  # type: ignore[arg-type]  # emitted as a number
    table = reads.get("table")
    low.program.rope_kv(
        store=low.memory.stores[group_idx],
        group=group_idx,
        layer=index,
        num_heads=attrs["num_heads"],
        norm=attrs["norm"],
        eps=attrs.get("eps") or 0.0,
        q_norm=low.vector(weights.get("q_norm")),
        k_norm=low.vector(weights.get("k_norm")),
        qkv_at=low.at(reads["qkv"]),
        qkv_stride=low.width(reads["qkv"]),
        table_at=low.at(table),
        half=0 if table is None else low.width(table) // 2,
        query_factor=low.query_factor(attrs["layer"]),
        q_at=low.at(instruction.writes["q"]),
    )


def _attend(low: Lowering, instruction: Instruction) -> None:
    attrs, writes = instruction.attrs, instruction.writes
    group_idx, index = low.memory.place_of_layer[int(attrs["layer"])]  # type: ignore[arg-type]  # emitted as a number
    operand = writes.get("operand")
    low.program.attend(
        store=low.memory.stores[group_idx],
        group=group_idx,
        layer=index,
        num_heads=attrs["num_heads"],
        window=attrs["window"] or 0,
        soft_cap=attrs["softcap"] or 0.0,
        q_at=low.at(instruction.reads["q"]),
        out_at=low.at(writes.get("wide")),
        layout=low.layout(operand),
        operand_at=low.at(operand),
    )


LOWERINGS: Mapping[str, Callable[[Lowering, Instruction], None]] = {
    "embed": _embed,
    "rope_table": _rope_table,
    "add_norm": _add_norm,
    "adapter_delta": _adapter_delta,
    "projection": _projection,
    "projection_add": _projection_add,
    "gated_projection": _gated_projection,
    "rope_kv": _rope_kv,
    "attend": _attend,
    "rms_norm": _rms_norm,
    "split": _split,
    "add": _plain("add", "a", "b"),
    "mul": _plain("mul", "a", "b"),
    "scale": _plain("scale", "x", number="factor"),
    "softcap": _plain("softcap", "x", number="cap"),
    "gated": _plain("activation", "gate", "up"),
}
"""Op to what adds it to a program."""
