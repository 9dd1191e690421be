"""Costs by counting: against sums done by hand, and against the sizes of files and kernels."""

from __future__ import annotations

import pytest

from support.small_plan import FFN, HEAD_WIDTH, HEADS, KV_HEADS, MATRICES, VOCAB, WIDTH, small_plan
from trivium.plan.cost import Cost, CostModel, MachineLimits, Workload, chunk, decode, packed_bytes
from trivium.plan.program import KVStorage, Weight, WeightPart

LIMITS = MachineLimits(memory_bytes=1e9, cache_bytes=1e10, operations={"int8": 1e12, "bf16": 5e11, "f32": 1e11})
EMBED, ADD_NORM, QKV, ROPE_KV, ATTEND, OUT, GATED, DOWN, PICK, HEAD = 0, 2, 3, 4, 5, 6, 8, 9, 10, 11


def cost_of(idx: int, load: Workload, **changes: object) -> Cost:
    plan = small_plan(**changes)
    return CostModel(plan).cost(plan.programs["base"].instructions[idx], load)


def weight(form: str, *shape: int) -> Weight:
    return Weight(name="w", parts=(WeightPart("w", shape[0]),), shape=shape, format=form)


@pytest.mark.parametrize(
    ("form", "shape", "expected"),
    [
        ("f32", (32, 64), 4 * 32 * 64),
        ("bf16", (33, 64), 2 * 64 * 64),  # 33 columns are two panels
        ("i8_c", (32, 64), 32 * 64 + 4 * 32),
        ("i8_g32", (576, 576), 576 * 576 * 34 // 32),
        ("i4m_g32", (1536, 576), 1536 * 576 * 20 // 32),  # as Q4_1 blocks
        ("i4_g32", (576, 1536), 1536 * 576 * 18 // 32),  # as Q4_0 blocks
        ("q4_k", (256, 1024), 256 * 1024 * 144 // 256),
        ("q6_k", (256, 1024), 256 * 1024 * 210 // 256),
        ("q4_k", (32, 300), 32 * 2 * 144),  # depth is padded to whole blocks
    ],
)
def test_a_packed_weight_has_the_bytes_of_its_blocks(form: str, shape: tuple[int, ...], expected: int) -> None:
    assert packed_bytes(weight(form, *shape)) == expected


def test_a_vector_is_float32() -> None:
    assert packed_bytes(weight("f32", 576)) == 4 * 576


def test_a_product_reads_its_weights_once_and_multiplies_every_row() -> None:
    cost = cost_of(QKV, decode(16, kv_len=100))
    rows, columns = 16, (HEADS + 2 * KV_HEADS) * HEAD_WIDTH
    assert cost.operations == 2 * rows * columns * WIDTH
    assert cost.weight_bytes == columns * WIDTH * 20 / 32
    operand = WIDTH + 4 * (WIDTH // 32) + 4 * (WIDTH // 32)  # units, scales, one block of sums
    assert cost.arena_bytes == rows * (operand + 4 * columns)


def test_a_gated_product_reads_both_weights() -> None:
    cost = cost_of(GATED, decode(1, kv_len=1))
    assert cost.operations == 2 * 2 * FFN * WIDTH
    assert cost.weight_bytes == 2 * FFN * WIDTH * 20 / 32


def test_the_head_runs_on_wanted_rows_only() -> None:
    cost = cost_of(HEAD, chunk(128))
    assert cost.operations == 2 * 1 * VOCAB * WIDTH


def test_picking_rows_reads_no_others() -> None:
    cost = cost_of(PICK, chunk(128))
    operand = WIDTH + 4 * (WIDTH // 32) + 4 * (WIDTH // 32)
    assert cost.arena_bytes == 4 * WIDTH + 4 + operand  # a row, its number, the row normed and rounded


def test_attention_reads_every_key_of_every_request_once() -> None:
    cost = cost_of(ATTEND, decode(3, kv_len=100))
    assert cost.kv_bytes == 3 * 100 * 2 * KV_HEADS * HEAD_WIDTH * 2
    assert cost.operations == 3 * 100 * 4 * HEADS * HEAD_WIDTH


def test_int8_keys_have_a_scale_per_token_and_head() -> None:
    cost = cost_of(ATTEND, decode(1, kv_len=10), kv=KVStorage(spec=small_plan().kv.spec, dtype="i8"))
    assert cost.kv_bytes == 10 * 2 * KV_HEADS * (HEAD_WIDTH + 4)


@pytest.mark.parametrize("window", [None, 1, 5, 64, 500])
@pytest.mark.parametrize(
    "load", [decode(2, kv_len=40), chunk(40), Workload(num_tokens=6, num_requests=2, kv_len=40, num_rows=2)]
)
def test_visible_keys_are_those_that_a_loop_counts(load: Workload, window: int | None) -> None:
    seen = [
        {key for key in range(position + 1) if window is None or key > position - window}
        for position in range(load.kv_len - load.num_tokens // load.num_requests, load.kv_len)
    ]
    read = set().union(*seen)
    assert load.visible(window) == (load.num_requests * len(read), load.num_requests * sum(map(len, seen)))


def test_keys_and_values_of_new_tokens_are_written() -> None:
    assert cost_of(ROPE_KV, decode(7, kv_len=50)).kv_bytes == 7 * 2 * KV_HEADS * HEAD_WIDTH * 2


def test_looking_up_reads_the_rows_of_the_tokens() -> None:
    rows, columns = MATRICES["embed_tokens"]
    assert cost_of(EMBED, decode(2, kv_len=9)).weight_bytes == pytest.approx(2 / rows * rows * columns * 20 / 32)


def test_the_least_time_is_that_of_the_scarcest() -> None:
    assert LIMITS.least_seconds(Cost(weight_bytes=1e9, kv_bytes=1e9, operations=1), "int8") == 2.0
    assert LIMITS.least_seconds(Cost(weight_bytes=1, arena_bytes=3e10), "int8") == 3.0
    assert LIMITS.least_seconds(Cost(operations=5e12), "int8") == 5.0
    assert LIMITS.least_seconds(Cost(operations=5e12), "bf16") == 10.0


def test_arithmetic_follows_the_operand_and_the_keys() -> None:
    plan = small_plan()
    model = CostModel(plan)
    kinds = [model.arithmetic(plan.programs["base"].instructions[idx]) for idx in (QKV, ATTEND, ADD_NORM, OUT, DOWN)]
    assert kinds == ["int8", "bf16", "f32", "int8", "int8"]
