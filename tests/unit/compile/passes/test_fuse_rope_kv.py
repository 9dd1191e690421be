"""What lies between a merged projection and attention becomes one op."""

from __future__ import annotations

import itertools

import pytest

from support.pass_cases import EMBED, ROPE, assert_becomes, assert_stays
from trivium.compile.passes.fuse_rope_kv import fuse_rope_kv

START = (
    EMBED + ROPE + "%h: f32[T,12] = projection(%x, w, k, v; scale=1.0, softcap=None)\n"
    "%q, %k, %v: f32[T,6], f32[T,3], f32[T,3] = split(%h; sizes=(6, 3, 3))\n"
)
ATTENTION = "%o: f32[T,2,3] = attention({}, %t; layer=0, scale=0.5, window=None, softcap=None)\noutput a = %o\n"


def between(norm: str, *, q_norm: bool, k_norm: bool, has_rope: bool) -> str:
    """Write the paths of q, k and v, ending in attention."""
    lines, q, k = [], "%q", "%k"
    if norm == "full" and q_norm:
        lines.append("%q0: f32[T,6] = rms_norm(%q, norm; eps=0.01)\n")
        q = "%q0"
    if norm == "full" and k_norm:
        lines.append("%k0: f32[T,3] = rms_norm(%k, head_norm; eps=0.01)\n")
        k = "%k0"
    lines.append(
        f"%q1: f32[T,2,3] = reshape({q}; shape=('T', 2, 3))\n%k1: f32[T,1,3] = reshape({k}; shape=('T', 1, 3))\n"
    )
    lines.append("%v1: f32[T,1,3] = reshape(%v; shape=('T', 1, 3))\n")
    q, k = "%q1", "%k1"
    if norm == "head" and q_norm:
        lines.append("%q2: f32[T,2,3] = rms_norm(%q1, head_norm; eps=0.01)\n")
        q = "%q2"
    if norm == "head" and k_norm:
        lines.append("%k2: f32[T,1,3] = rms_norm(%k1, head_norm; eps=0.01)\n")
        k = "%k2"
    if has_rope:
        lines.append(f"%q3: f32[T,2,3] = rope({q}, %r)\n%k3: f32[T,1,3] = rope({k}, %r)\n")
        q, k = "%q3", "%k3"
    return "".join(lines) + f"%t: kv = kv_write({k}, %v1; layer=0)\n" + ATTENTION.format(q)


CASES = [
    (norm, q_norm, k_norm, has_rope)
    for norm, q_norm, k_norm, has_rope in itertools.product(
        ("head", "full"), (True, False), (True, False), (True, False)
    )
]


@pytest.mark.parametrize(("norm", "q_norm", "k_norm", "has_rope"), CASES)
def test_norm_rope_and_write_become_one(norm: str, q_norm: bool, k_norm: bool, has_rope: bool) -> None:
    q_weight = {"head": "head_norm", "full": "norm"}[norm] if q_norm else "-"
    inputs = ["%h", "%r" if has_rope else "-", q_weight, "head_norm" if k_norm else "-"]
    while inputs[-1] == "-":
        inputs.pop()
    is_normed = q_norm or k_norm
    attributes = f"norm='{norm if is_normed else 'none'}', eps={0.01 if is_normed else None}"
    assert_becomes(
        fuse_rope_kv,
        START + between(norm, q_norm=q_norm, k_norm=k_norm, has_rope=has_rope),
        START.rpartition("%q, %k")[0]
        + f"%q, %t: f32[T,2,3], kv = rope_kv({', '.join(inputs)}; layer=0, num_heads=2, num_kv_heads=1, head_width=3, "
        f"{attributes})\n" + ATTENTION.format("%q"),
    )


K_HEADS, V_HEADS = "%k1: f32[T,1,3] = reshape({};", "%v1: f32[T,1,3] = reshape({};"
OTHER_ROPE = ROPE.replace("%r:", "%r2:").replace("64", "32")
WHOLE = START + between("head", q_norm=True, k_norm=True, has_rope=True)


@pytest.mark.parametrize(
    "body",
    [
        WHOLE.replace("%k3: f32[T,1,3] = rope(%k2, %r)\n", "").replace("kv_write(%k3", "kv_write(%k2"),
        WHOLE.replace("rms_norm(%k1, head_norm; eps=0.01)", "rms_norm(%k1, head_norm; eps=0.02)"),
        WHOLE.replace("rms_norm(%k1, head_norm; eps=0.01)", "scale(%k1; factor=2.0)"),
        WHOLE.replace("%t: kv", "%v2: f32[T,1,3] = rope(%v1, %r)\n%t: kv").replace("%k3, %v1;", "%k3, %v2;"),
        WHOLE.replace(K_HEADS.format("%k"), K_HEADS.format("%v")).replace(V_HEADS.format("%v"), V_HEADS.format("%k")),
        WHOLE + "output b = %k2\n",
        WHOLE + "output b = %v\n",
        WHOLE.replace("%k3: f32", OTHER_ROPE + "%k3: f32").replace("rope(%k2, %r)", "rope(%k2, %r2)"),
        WHOLE.replace("%t: kv = kv_write(%k3", "%t: kv = kv_write(%k2") + "output b = %k3\n",
    ],
)  # fmt: skip
def test_paths_that_differ_stay(body: str) -> None:
    assert_stays(fuse_rope_kv, body)


def test_q_k_and_v_of_different_values_stay() -> None:
    other = "%i: f32[T,12] = projection(%x, w2, k, v; scale=1.0, softcap=None)\n"
    other += "%a, %b, %c: f32[T,6], f32[T,3], f32[T,3] = split(%i; sizes=(6, 3, 3))\n"
    body = WHOLE.replace("%q1: f32", other + "%q1: f32").replace("reshape(%v;", "reshape(%c;")
    assert_stays(fuse_rope_kv, body)
