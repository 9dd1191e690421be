"""Keys: what a plan fits, and how two of them say in what they differ."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from support.small_plan import CONFIG, FORMATS, KV, LIMITS, small_key
from trivium.config.model import LayerConfig, ModelConfig, RopeConfig
from trivium.models import build_graph
from trivium.plan.key import NOT_IN_PLANS, differences, listed
from trivium.plan.program import Limits

OTHER: dict[str, Any] = {
    "architecture": "Qwen2ForCausalLM",
    "activation": "gelu_tanh",
    "layers": (LayerConfig(rope=None),),
    "tie_embeddings": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "attention_softcap": 50.0,
    "logit_softcap": 30.0,
}
"""Another value for every field of a configuration that is not a number."""


def other_value(name: str) -> Any:
    return OTHER[name] if name in OTHER else (getattr(CONFIG, name) or 0) + 1


@pytest.mark.parametrize("name", [field.name for field in fields(ModelConfig) if field.name not in NOT_IN_PLANS])
def test_every_field_of_the_shape_counts(name: str) -> None:
    changed = small_key(config=replace(CONFIG, **{name: other_value(name)}))
    assert changed.digest != small_key().digest
    said = differences(small_key(), changed)
    assert all(text.startswith((f"{name} ", f"{name}.")) for text in said)
    assert said


def test_what_no_plan_depends_on_changes_neither_key_nor_graph() -> None:
    other = replace(CONFIG, max_positions=9999, bos_token_id=None, eos_token_ids=(7, 8))
    assert {"max_positions", "bos_token_id", "eos_token_ids"} == set(NOT_IN_PLANS)
    assert small_key(config=other) == small_key()
    assert build_graph(other) == build_graph(CONFIG)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limits": replace(LIMITS, max_num_batched_tokens=512)}, "max_num_batched_tokens 128, asked 512"),
        ({"limits": replace(LIMITS, max_logit_rows=1)}, "max_logit_rows 8, asked 1"),
        ({"isa": "avx512vnni"}, "isa avx2, asked avx512vnni"),
        ({"kernels": "k2"}, "kernels k1, asked k2"),
        ({"compiler": "c2"}, "compiler c1, asked c2"),
        ({"kv": replace(KV, dtype="i8")}, "kv.dtype bf16, asked i8"),
        ({"kv": replace(KV, spec=replace(KV.spec, page_len=1))}, "kv.page_len 16, asked 1"),
        ({"formats": {**FORMATS, "embed_tokens": "q6_k"}}, "formats.embed_tokens i4m_g32, asked q6_k"),
        (
            {"formats": {**FORMATS, "layers.0.up_proj": "bf16"}},
            "formats.layers.*.up_proj 0 i4m_g32, asked 0 bf16",
        ),
        (
            {"config": replace(CONFIG, layers=(LayerConfig(window=64, rope=CONFIG.layers[0].rope),))},
            "layers.window 0 none, asked 0 64",
        ),
    ],
)
def test_a_difference_is_told_by_its_field(changes: dict[str, Any], said: str) -> None:
    assert differences(small_key(), small_key(**changes)) == (said,)


def test_the_order_in_which_formats_are_given_does_not_matter() -> None:
    assert small_key(formats=dict(reversed(FORMATS.items()))) == small_key()


def test_layers_that_agree_are_one_fact() -> None:
    formats = {f"layers.{layer}.up_proj.weight": "q6_k" if layer in {0, 29} else "q4_k" for layer in range(30)}
    assert small_key(formats=formats)["formats.layers.*.up_proj.weight"] == "0 q6_k, 1-28 q4_k, 29 q6_k"


def test_a_rope_is_told_by_what_it_sets() -> None:
    rope = RopeConfig(kind="linear", rotary_dim=16, factor=4.0, original_max_positions=512)
    changed = small_key(config=replace(CONFIG, layers=(LayerConfig(rope=rope),)))
    [said] = differences(small_key(), changed)
    assert said == (
        "layers.rope 0 (rotary_dim=16 original_max_positions=512), "
        "asked 0 (kind=linear rotary_dim=16 factor=4.0 original_max_positions=512)"
    )


def test_a_long_list_of_differences_is_cut() -> None:
    assert listed(["a", "b"]) == "a; b"
    assert listed(map(str, range(10))) == "0; 1; 2; 3; 4; 5; 6; 7; and 2 more"


def test_limits_are_all_in_the_key() -> None:
    for field in fields(Limits):
        assert small_key()[field.name] == getattr(LIMITS, field.name)
