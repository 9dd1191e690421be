"""Attention writes rows; another shape is a reshape behind it."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes
from trivium.compile.passes.fuse_attention import fuse_attention

START = EMBED + "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%t: kv = kv_write(%1, %1; layer=0)\n"
ATTENTION = "%o: f32[T,2,3] = attention(%1, %t; layer=0, scale=0.5, window=2, softcap=9.0)\n"
ATTEND = "%y: f32[T,6] = attend(%1, %t; layer=0, scale=0.5, window=2, softcap=9.0, kind=None, gives=('wide',))\n"


def test_the_reshape_behind_attention_vanishes() -> None:
    assert_becomes(
        fuse_attention,
        START + ATTENTION + "%y: f32[T,6] = reshape(%o; shape=('T', 6))\noutput a = %y\n",
        START + ATTEND + "output a = %y\n",
    )


def test_heads_that_are_read_as_heads_are_reshaped_back() -> None:
    back = "%o: f32[T,2,3] = reshape(%y; shape=('T', 2, 3))\n"
    for behind in ("output a = %o\n", "%z: f32[T,3,2] = reshape(%o; shape=('T', 3, 2))\noutput a = %z\n"):
        assert_becomes(fuse_attention, START + ATTENTION + behind, START + ATTEND + back + behind)
