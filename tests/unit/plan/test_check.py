"""The laws of a plan, each broken once; and that bytes which are alive are never written over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from support.small_plan import small_plan, with_buffer, with_instruction
from trivium.base.errors import PlanFormatError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.plan.check import check_plan
from trivium.plan.program import Limits, Plan, SumKind, WeightPart


def test_a_right_plan_passes() -> None:
    check_plan(small_plan())


def changed_attrs(idx: int, **changes: Any) -> Plan:
    plan = small_plan()
    return with_instruction(plan, idx, attrs={**plan.programs["base"].instructions[idx].attrs, **changes})


def changed_weight(**changes: Any) -> Plan:
    plan = small_plan()
    return replace(plan, weights=(replace(plan.weights[3], **changes), *plan.weights[:3], *plan.weights[4:]))


def changed_outputs(**outputs: str) -> Plan:
    plan = small_plan()
    return replace(plan, programs={"base": replace(plan.programs["base"], outputs=outputs)})


WRONG: dict[str, tuple[Plan, str]] = {
    "no tokens": (
        small_plan(limits=Limits(max_num_batched_tokens=0, max_logit_rows=1)),
        "max_num_batched_tokens is 0",
    ),
    "no rows": (small_plan(limits=Limits(max_num_batched_tokens=1, max_logit_rows=0)), "max_logit_rows is 0"),
    "a layer without KV": (
        small_plan(kv=replace(small_plan().kv, spec=KVSpec(groups=(KVGroup("full", (1,), 8),), page_len=16))),
        r"the KV groups hold layers \[1\]",
    ),
    "a buffer twice": (small_plan(buffers=(*small_plan().buffers, small_plan().buffers[5])), "table is defined twice"),
    "a weight twice": (small_plan(weights=(*small_plan().weights, small_plan().weights[0])), "input_norm is defined"),
    "no base": (small_plan(programs={}), "there is no program base"),
    "width 0": (with_buffer(small_plan(), "x", width=0), "buffer x: depth 64, width 0"),
    "padded rows": (with_buffer(small_plan(), "x", depth=96), "buffer x: depth 96 is not width 64"),
    "ragged operand": (with_buffer(small_plan(), "normed", depth=65), "depth 65 is no multiple of 32"),
    "sums of floats": (with_buffer(small_plan(), "x", sums=(SumKind(32, 0),)), "only q8 has sums, not f32"),
    "a strange sum": (with_buffer(small_plan(), "normed", sums=(SumKind(8, 0),)), "buffer normed: sums"),
    "no place": (with_buffer(small_plan(), "x", offset=None), "buffer x: it has no offset, and no step brings it"),
    "a place too many": (with_buffer(small_plan(), "token_ids", offset=0), "a step brings it, and it has an offset"),
    "too small": (with_buffer(small_plan(), "logits", num_bytes=64), "buffer logits: 64 bytes; its rows take 10240"),
    "negative": (with_buffer(small_plan(), "x", offset=-64), "buffer x: offset -64"),
    "unaligned": (with_buffer(small_plan(), "x", offset=4), "offset 4 is no multiple of 64"),
    "outside": (small_plan(arena_bytes=1 << 10), "behind the arena of 1024 bytes"),
    "weight without shape": (changed_weight(shape=()), r"weight embed_tokens: shape \[\]"),
    "weight parts": (
        changed_weight(parts=(WeightPart("embed_tokens", 3),)),
        "weight embed_tokens: its parts have 3 rows of 320",
    ),
    "unknown op": (with_instruction(small_plan(), 0, op="convolve"), r"0 \(convolve\): there is no such instruction"),
    "unknown operand": (with_instruction(small_plan(), 0, reads={"ids": "token_ids"}), r"\(embed\): it takes no ids"),
    "missing operand": (with_instruction(small_plan(), 0, reads={}), "it lacks token_ids"),
    "missing weight": (with_instruction(small_plan(), 0, weights={}), "it lacks weight"),
    "missing attribute": (with_instruction(small_plan(), 0, attrs={}), "it lacks scale"),
    "no result": (with_instruction(small_plan(), 2, writes={}), "it writes nothing"),
    "unknown buffer": (with_instruction(small_plan(), 0, writes={"out": "y"}), "out is y, which is no buffer"),
    "unknown weight": (with_instruction(small_plan(), 0, weights={"weight": "w"}), "weight is w, which is no weight"),
    "wrong kind": (
        with_instruction(small_plan(), 3, reads={"x": "x"}),
        "x is x of kind f32, not f32t or bf16 or q8",
    ),
    "layer too high": (changed_attrs(5, layer=1), "layer is 1; there are 1, counted from 0"),
    "rope too high": (changed_attrs(1, rope=-1), "rope is -1; there are 1, counted from 0"),
    "sums too high": (changed_attrs(3, sums=(0, 1, 0)), r"sums are \(0, 1, 0\); its operand has 1"),
    "strange tactic": (with_instruction(small_plan(), 3, tactic={"kernel": "fast"}), "tactic kernel is 'fast'"),
    "strange rows": (with_instruction(small_plan(), 3, tactic={"-4": "auto"}), "tactic '-4' is neither"),
    "read before written": (
        with_instruction(small_plan(), 2, reads={"a": "after_mlp"}),
        r"base instruction 2 \(add_norm\): a reads after_mlp, which nothing has written",
    ),
    "output never written": (changed_outputs(logits="gone"), "output gone is no buffer"),
    "output overwritten": (
        changed_outputs(logits="x"),
        r"output logits is x, which base instruction 6 \(projection_add\) has overwritten with after_attention",
    ),
    "writes what a step brings": (
        with_instruction(small_plan(), 1, writes={"out": "token_ids"}),
        "kind i32, not f32",
    ),
    "over its own operand": (
        with_buffer(small_plan(), "normed", offset=0),
        r"2 \(add_norm\): operand normed lies over a x",
    ),
    "in place, but beside": (
        with_buffer(with_buffer(small_plan(), "after_attention", offset=64), "after_mlp", offset=64),
        r"6 \(projection_add\): out after_attention lies over residual x",
    ),
    "two results over each other": (
        with_instruction(small_plan(), 2, writes={"operand": "normed", "wide": "after_mlp"}),
        "lies over a x",
    ),
    "alive and overwritten": (
        with_buffer(small_plan(), "gated", offset=0),
        r"9 \(projection_add\): residual reads after_attention, which base instruction 8 .* overwritten with gated",
    ),
}


@pytest.mark.parametrize(("plan", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_broken_law_is_named(plan: Plan, message: str) -> None:
    with pytest.raises(PlanFormatError, match=message):
        check_plan(plan)


@settings(deadline=None)
@given(strategies.data())
def test_moved_buffers_pass_exactly_when_no_live_value_is_lost(data: strategies.DataObject) -> None:
    """The law by brute force: run the program on bytes that remember who wrote them."""
    plan = small_plan()
    places = strategies.integers(0, plan.arena_bytes // 64 - 1)
    for buffer in plan.buffers:
        if buffer.offset is not None and data.draw(strategies.booleans()):
            end = plan.arena_bytes - buffer.num_bytes
            plan = with_buffer(plan, buffer.name, offset=min(64 * data.draw(places), end // 64 * 64))
    try:
        check_plan(plan)
    except PlanFormatError:
        assert not survives(plan)
    else:
        assert survives(plan)


def survives(plan: Plan) -> bool:
    """Whether every operand's cache lines were last written by its own instruction."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    owner: dict[int, str] = {}

    def lines(name: str) -> range:
        start = buffers[name].offset
        return range(0) if start is None else range(start // 64, (start + buffers[name].num_bytes) // 64)

    def holds(name: str) -> bool:
        return all(owner.get(line) == name for line in lines(name))

    for instruction in plan.programs["base"].instructions:
        if not all(map(holds, instruction.reads.values())):
            return False
        for result, written in instruction.writes.items():
            for operand, used in instruction.reads.items():
                is_meant = (instruction.op, operand, result) == ("projection_add", "residual", "out")
                same_place = buffers[used].offset == buffers[written].offset
                if set(lines(used)) & set(lines(written)) and not (is_meant and same_place):
                    return False
            owner |= dict.fromkeys(lines(written), written)
    return all(map(holds, plan.programs["base"].outputs.values()))
