"""A plan that does nothing but one product, so that it is timed by the very code that serves.

::

    embed ─► hidden ─ add_norm ─► operand ─► product with copy 0, copy 1, … of the weights ─► out
    embed ─► out                                                     where the product adds to a residual

Copies keep the weights out of cache, as the layers of a model do.
"""

from __future__ import annotations

from trivium.base.intmath import align_up
from trivium.cache.spec import KVSpec
from trivium.compile.formats import WeightFormat, format_named
from trivium.compile.tuner.space import Case
from trivium.plan.program import (
    ARENA_ALIGNMENT,
    AttributeValue,
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

VOCAB_SIZE = 16
"""Rows of the tables from which operands and residuals come."""

_PAGE_LEN = 16
_OPS = {"store": "projection", "add": "projection_add", "gated": "gated_projection"}


def case_plan(case: Case, num_copies: int) -> Plan:
    """Write the plan of a case.

    Args:
        case: What is to be timed; the step has exactly its rows.
        num_copies: Different weights of its shape; the product runs once with each.

    Returns:
        A plan without layers. Its products are the last `num_copies` instructions, and write the buffer `out`.
    """
    site, width = case.site, sum(case.site.columns)
    forms = [format_named(name) for name in site.formats]
    sums = tuple(dict.fromkeys(form.sum for form in forms if form.sum is not None))
    out_width = site.columns[0] if site.epilogue == "gated" else width
    arena = _Arena(case.num_rows)
    arena.add("hidden", "f32", site.depth)
    arena.add("operand", forms[0].operand, site.depth, forms[0].padded(site.depth), sums)
    out_kind = forms[0].operand if site.epilogue == "gated" else "f32"
    arena.add("out", out_kind, out_width, *((forms[0].padded(out_width), sums) if out_kind != "f32" else ()))
    weights = [_weight("table", (VOCAB_SIZE, site.depth), "f32"), _weight("norm", (site.depth,), "f32")]
    instructions = [_embed("table", "hidden"), _norm()]
    if site.epilogue == "add":
        weights.append(_weight("residuals", (VOCAB_SIZE, width), "f32"))
        instructions.append(_embed("residuals", "out"))
    for copy in range(num_copies):
        parts = [f"copy_{copy}.{part}" for part in range(len(forms))]
        weights += [
            _weight(name, (columns, site.depth), form.name)
            for name, columns, form in zip(parts, site.columns, forms, strict=True)
        ]
        instructions.append(_product(site.epilogue, parts, forms, sums))
    sizes = ModelSizes(
        num_layers=0, model_width=site.depth, num_heads=1, num_kv_heads=1, head_width=2, vocab_size=VOCAB_SIZE
    )
    return Plan(
        architecture=str(site),
        limits=Limits(max_num_batched_tokens=case.num_rows, max_logit_rows=1),
        sizes=sizes,
        kv=KVStorage(spec=KVSpec((), _PAGE_LEN), dtype="f32"),
        ropes=(),
        weights=tuple(weights),
        buffers=tuple(arena.buffers),
        arena_bytes=arena.num_bytes,
        programs={"base": Program(instructions=tuple(instructions), outputs={"logits": "hidden"})},
    )


class _Arena:
    """Buffers one behind the other."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.num_bytes = 0
        self.buffers = [
            Buffer(name="token_ids", kind="i32", rows="T", width=1, depth=1, offset=None, num_bytes=4 * num_rows)
        ]

    def add(
        self, name: str, kind: BufferKind, width: int, depth: int | None = None, sums: tuple[SumKind, ...] = ()
    ) -> None:
        depth = depth or width
        num_bytes = align_up(self._num_rows * row_bytes(kind, depth, sums), ARENA_ALIGNMENT)
        self.buffers.append(
            Buffer(
                name=name,
                kind=kind,
                rows="T",
                width=width,
                depth=depth,
                sums=sums,
                offset=self.num_bytes,
                num_bytes=num_bytes,
            )
        )
        self.num_bytes += num_bytes


def _weight(name: str, shape: tuple[int, ...], form: str) -> Weight:
    return Weight(name=name, parts=(WeightPart(name, shape[0]),), shape=shape, format=form)


def _embed(table: str, out: str) -> Instruction:
    return Instruction(
        op="embed",
        reads={"token_ids": "token_ids"},
        weights={"weight": table},
        writes={"out": out},
        attrs={"scale": 1.0},
    )


def _norm() -> Instruction:
    return Instruction(
        op="add_norm",
        reads={"a": "hidden"},
        weights={"weight": "norm"},
        writes={"operand": "operand"},
        attrs={"eps": 1e-5},
    )


def _product(epilogue: str, parts: list[str], forms: list[WeightFormat], sums: tuple[SumKind, ...]) -> Instruction:
    reads = {"x": "operand"}
    attrs: dict[str, AttributeValue] = {
        "sums": tuple(-1 if form.sum is None else sums.index(form.sum) for form in forms)
    }
    names = [f"weight_{part}" for part in range(len(parts))]
    result = "out"
    if epilogue == "store":
        attrs |= {"scale": 1.0, "softcap": None}
    elif epilogue == "add":
        reads["residual"] = "out"
    else:
        attrs["activation"] = "silu"
        names, result = ["gate", "up"], "operand"
    return Instruction(
        op=_OPS[epilogue],
        reads=reads,
        weights=dict(zip(names, parts, strict=True)),
        writes={result: "out"},
        attrs=attrs,
    )
