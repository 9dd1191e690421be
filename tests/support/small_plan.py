"""A plan of one Llama layer, written by hand, so that what reads plans is tested without what makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trivium.base.intmath import align_up
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.model import LayerConfig, ModelConfig, RopeConfig
from trivium.plan.format import Origin, StoredPlan
from trivium.plan.key import PlanKey, plan_key
from trivium.plan.program import (
    Buffer,
    BufferKind,
    Instruction,
    KVStorage,
    Limits,
    ModelSizes,
    Plan,
    Program,
    SumKind,
    Weight,
    WeightPart,
    row_bytes,
)

WIDTH, FFN, HEADS, KV_HEADS, HEAD_WIDTH, VOCAB = 64, 96, 4, 2, 16, 320
ROPE = RopeConfig(rotary_dim=HEAD_WIDTH, original_max_positions=512)
LIMITS = Limits(max_num_batched_tokens=128, max_logit_rows=8)
KV = KVStorage(
    spec=KVSpec(groups=(KVGroup("full", (0,), 4 * KV_HEADS * HEAD_WIDTH),), page_len=16),
    dtype="bf16",
)
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=1,
    model_width=WIDTH,
    ffn_width=FFN,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_width=HEAD_WIDTH,
    vocab_size=VOCAB,
    max_positions=512,
    norm_eps=1e-5,
    layers=(LayerConfig(rope=ROPE),),
    attention_scale=0.25,
    bos_token_id=1,
    eos_token_ids=(2,),
)
MATRICES = {
    "embed_tokens": (VOCAB, WIDTH),
    "q_proj": (HEADS * HEAD_WIDTH, WIDTH),
    "k_proj": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "v_proj": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "o_proj": (WIDTH, HEADS * HEAD_WIDTH),
    "gate_proj": (FFN, WIDTH),
    "up_proj": (FFN, WIDTH),
    "down_proj": (WIDTH, FFN),
}
VECTORS = ("input_norm", "post_norm", "final_norm")
FORMATS = {f"layers.0.{name}" if name.endswith("proj") else name: "i4m_g32" for name in MATRICES}

_SUMS = (SumKind(32, 0),)


def small_plan(**changes: Any) -> Plan:
    """Build the plan; fields may be changed, also into what no plan may say."""
    buffers = _buffers()
    plan = Plan(
        architecture="LlamaForCausalLM",
        limits=LIMITS,
        sizes=ModelSizes(
            num_layers=1,
            model_width=WIDTH,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_width=HEAD_WIDTH,
            vocab_size=VOCAB,
        ),
        kv=KV,
        ropes=(ROPE,),
        weights=_weights(),
        buffers=buffers,
        arena_bytes=max((buffer.offset or 0) + buffer.num_bytes for buffer in buffers),
        programs={"base": Program(instructions=_instructions(), outputs={"logits": "logits"})},
    )
    return replace(plan, **changes)


def small_key(**changes: Any) -> PlanKey:
    """Make the plan's key; any of `plan_key`'s arguments may be changed."""
    given = {
        "config": CONFIG,
        "formats": FORMATS,
        "kv": KV,
        "limits": LIMITS,
        "activation_group": 32,
        "isa": "avx2",
        "kernels": "k1",
        "compiler": "c1",
    }
    return plan_key(**{**given, **changes})


def small_stored(**changes: Any) -> StoredPlan:
    """Put plan, key and origin together."""
    origin = Origin(model="tiny", processor="Test 9000", trivium="1.2.3")
    return replace(StoredPlan(plan=small_plan(), key=small_key(), origin=origin), **changes)


def with_buffer(plan: Plan, name: str, **changes: Any) -> Plan:
    """Change one buffer."""
    return replace(
        plan, buffers=tuple(replace(each, **changes) if each.name == name else each for each in plan.buffers)
    )


def with_instruction(plan: Plan, idx: int, **changes: Any) -> Plan:
    """Change one instruction of the base program."""
    program = plan.programs["base"]
    changed = [replace(each, **changes) if place == idx else each for place, each in enumerate(program.instructions)]
    return replace(plan, programs={"base": replace(program, instructions=tuple(changed))})


def _weights() -> tuple[Weight, ...]:
    vectors = [Weight(name=name, parts=(WeightPart(name, WIDTH),), shape=(WIDTH,), format="f32") for name in VECTORS]
    matrices = [
        Weight(name=name, parts=(WeightPart(name, shape[0]),), shape=shape, format="i4m_g32")
        for name, shape in MATRICES.items()
    ]
    return (*vectors, *matrices)


def _buffers() -> tuple[Buffer, ...]:
    """Place every buffer behind the other, save the residual stream, which stays where it began."""
    brought = [
        Buffer(name=name, kind="i32", rows=rows, width=1, depth=1, offset=None, num_bytes=4 * LIMITS.rows(rows))
        for name, rows in (("token_ids", "T"), ("positions", "T"), ("reach", "T"), ("logit_rows", "R"))
    ]
    kinds: dict[str, tuple[BufferKind, int]] = {
        "x": ("f32", WIDTH),
        "table": ("f32", HEAD_WIDTH),
        "normed": ("q8", WIDTH),
        "qkv": ("f32", (HEADS + 2 * KV_HEADS) * HEAD_WIDTH),
        "q": ("f32", HEADS * HEAD_WIDTH),
        "attended": ("q8", HEADS * HEAD_WIDTH),
        "normed_2": ("q8", WIDTH),
        "gated": ("q8", FFN),
        "last": ("q8", WIDTH),
        "logits": ("f32", VOCAB),
    }
    rows = {"last": "R", "logits": "R"}
    start, placed = 0, []
    for name, (kind, width) in kinds.items():
        sums = _SUMS if kind == "q8" else ()
        symbol: Any = rows.get(name, "T")
        num_bytes = align_up(LIMITS.rows(symbol) * row_bytes(kind, width, sums), 64)
        placed.append(
            Buffer(
                name=name, kind=kind, rows=symbol, width=width, depth=width, sums=sums, offset=start,
                num_bytes=num_bytes,
            )
        )  # fmt: skip
        start += num_bytes
    where = {buffer.name: buffer for buffer in placed}
    in_place = [replace(where["x"], name=name) for name in ("after_attention", "after_mlp")]
    return (*brought, *placed, *in_place)


def _instructions() -> tuple[Instruction, ...]:
    heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_width": HEAD_WIDTH}
    return (
        _do("embed", {"token_ids": "token_ids"}, {"out": "x"}, {"weight": "embed_tokens"}, scale=1.0),
        _do("rope_table", {"positions": "positions", "reach": "reach"}, {"out": "table"}, rope=0),
        _do("add_norm", {"a": "x"}, {"operand": "normed"}, {"weight": "input_norm"}, eps=1e-5),
        _do(
            "projection", {"x": "normed"}, {"out": "qkv"}, _numbered("q_proj", "k_proj", "v_proj"),
            scale=1.0, softcap=None, sums=(0, 0, 0),
        ),
        _do("rope_kv", {"qkv": "qkv", "table": "table"}, {"q": "q"}, layer=0, **heads, norm="none", eps=None),
        _do("attend", {"q": "q"}, {"operand": "attended"}, layer=0, **heads, scale=0.25, window=None, softcap=None),
        _do(
            "projection_add", {"x": "attended", "residual": "x"}, {"out": "after_attention"},
            {"weight_0": "o_proj"}, sums=(0,),
        ),
        _do("add_norm", {"a": "after_attention"}, {"operand": "normed_2"}, {"weight": "post_norm"}, eps=1e-5),
        _do(
            "gated_projection", {"x": "normed_2"}, {"operand": "gated"}, {"gate": "gate_proj", "up": "up_proj"},
            activation="silu", sums=(0, 0),
        ),
        _do(
            "projection_add", {"x": "gated", "residual": "after_attention"}, {"out": "after_mlp"},
            {"weight_0": "down_proj"}, sums=(0,),
        ),
        _do(
            "add_norm", {"a": "after_mlp", "rows": "logit_rows"}, {"operand": "last"}, {"weight": "final_norm"},
            eps=1e-5,
        ),
        _do(
            "projection", {"x": "last"}, {"out": "logits"}, _numbered("embed_tokens"),
            scale=1.0, softcap=None, sums=(0,),
        ),
    )  # fmt: skip


def _numbered(*names: str) -> dict[str, str]:
    return {f"weight_{number}": name for number, name in enumerate(names)}


def _do(
    op: str, reads: Mapping[str, str], writes: Mapping[str, str], weights: Mapping[str, str] | None = None, **attrs: Any
) -> Instruction:
    return Instruction(op=op, reads=reads, writes=writes, weights=weights or {}, attrs=attrs)
