"""Configurations as they are found on the hub, in every spelling, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.base.errors import ModelError, UnknownArchitectureError
from trivium.config.model import ModelConfig, RopeConfig
from trivium.models import known_architectures, parse_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 1000,
}


def parse(architecture: str = "LlamaForCausalLM", **settings: Any) -> ModelConfig:
    return parse_config({**LLAMA, "architectures": [architecture], **settings})


def rope_of(config: ModelConfig, layer: int = 0) -> RopeConfig:
    rope = config.layers[layer].rope
    assert rope is not None
    return rope


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


def test_absent_keys_take_what_the_architecture_means_by_them() -> None:
    config = parse()
    assert (config.num_kv_heads, config.head_width) == (4, 16)
    assert (config.norm_eps, config.activation, config.tie_embeddings) == (1e-6, "silu", False)
    assert rope_of(config) == RopeConfig(rotary_dim=16, original_max_positions=1000)
    assert config.attention_scale == 0.25
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_gemma_ties_scales_and_caps_unless_told_otherwise() -> None:
    config = parse("Gemma2ForCausalLM")
    assert config.tie_embeddings
    assert config.embed_scale == 8.0
    assert (config.activation, config.head_width, config.attention_scale) == ("gelu_tanh", 256, 1 / 16)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    uncapped = parse("Gemma2ForCausalLM", attn_logit_softcapping=None, tie_word_embeddings=False)
    assert (uncapped.attention_softcap, uncapped.tie_embeddings) == (None, False)


def test_llama_31_keeps_its_configured_context() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    config = parse(max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=scaling, eos_token_id=[1, 8, 9])
    assert config.max_positions == 131072
    assert rope_of(config).original_max_positions == 8192
    assert rope_of(config).theta == 500000.0
    assert config.eos_token_ids == (1, 8, 9)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        {"rope_parameters": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}},
    ],
)
def test_every_spelling_of_linear_scaling_means_the_same(settings: dict[str, Any]) -> None:
    config = parse(**settings)
    expected = RopeConfig(kind="linear", theta=5e5, rotary_dim=16, factor=2.0, original_max_positions=1000)
    assert rope_of(config) == expected
    assert config.max_positions == 2000


def test_yarn_raises_the_usable_context_from_the_original_one() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}
    assert parse("Qwen2ForCausalLM", rope_scaling=scaling).max_positions == 1000
    scaling["original_max_position_embeddings"] = 1000
    assert parse("Qwen2ForCausalLM", rope_scaling=scaling).max_positions == 4000
    del scaling["original_max_position_embeddings"]
    assert parse("Qwen2ForCausalLM", rope_scaling=scaling).max_positions == 4000


def test_dynamic_multiplies_the_context_and_starts_at_the_configured_one() -> None:
    config = parse(rope_scaling={"type": "dynamic", "factor": 3.0})
    assert (config.max_positions, rope_of(config).original_max_positions) == (3000, 1000)


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_phi3_longrope_has_three_names_and_derives_its_factor(kind: str) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    config = parse(
        "Phi3ForCausalLM",
        original_max_position_embeddings=250,
        partial_rotary_factor=0.75,
        rope_scaling={"type": kind, **factors},
    )
    rope = rope_of(config)
    assert (rope.kind, rope.factor, rope.original_max_positions, rope.rotary_dim) == ("longrope", 4.0, 250, 12)
    assert config.max_positions == 1000


def test_gemma3_scales_global_layers_only_and_its_context_counts_the_scaling() -> None:
    config = parse(
        "Gemma3ForCausalLM",
        num_hidden_layers=12,
        head_dim=16,
        sliding_window=512,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert windows(config) == [512, 512, 512, 512, 512, None] * 2
    assert (rope_of(config, 5).kind, rope_of(config, 5).theta) == ("linear", 1e6)
    assert (rope_of(config, 0).kind, rope_of(config, 0).theta) == ("default", 1e4)
    assert config.max_positions == 1000


SLIDING_7 = {"sliding_window": 7, "use_sliding_window": True}


def test_gemma3_nested_parameters_reach_each_kind_of_layer() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    config = parse("Gemma3ForCausalLM", num_hidden_layers=6, rope_parameters=nested)
    assert (rope_of(config, 5).kind, rope_of(config, 5).theta) == ("linear", 2e6)
    assert (rope_of(config, 0).kind, rope_of(config, 0).theta) == ("default", 3e4)


def test_the_text_part_of_a_multimodal_model_is_read_with_the_outer_end_tokens() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = parse_config({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": {**text, "eos_token_id": 1},
        "vision_config": {},
    })
    assert config.architecture == "Gemma3ForConditionalGeneration"
    assert config.eos_token_ids == (1, 106)
    assert config.model_width == 64


@pytest.mark.parametrize(
    ("architecture", "settings", "expected"),
    [
        ("LlamaForCausalLM", {"sliding_window": 7}, [None] * 4),
        ("MistralForCausalLM", {"sliding_window": 7}, [7] * 4),
        ("MistralForCausalLM", {"sliding_window": None}, [None] * 4),
        ("MistralForCausalLM", {}, [4096] * 4),
        ("Qwen2ForCausalLM", {"sliding_window": 7, "max_window_layers": 0}, [None] * 4),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 7, "max_window_layers": 1, "use_sliding_window": True},
            [None, 7, 7, 7],
        ),
        ("Qwen3ForCausalLM", {"sliding_window": 7, "max_window_layers": 9, "use_sliding_window": True}, [None] * 4),
        ("Gemma2ForCausalLM", {"sliding_window": 7}, [7, None, 7, None]),
        ("Gemma3ForCausalLM", {"sliding_window": 7, "sliding_window_pattern": 3}, [7, 7, None, 7]),
        ("Gemma3ForCausalLM", {"sliding_window": 7, "_sliding_window_pattern": 2}, [7, None, 7, None]),
        ("Phi3ForCausalLM", {"sliding_window": 7}, [7] * 4),
    ],
)
def test_windows_follow_the_architectures_rule(
    architecture: str, settings: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(parse(architecture, num_hidden_layers=4, **settings)) == expected


def test_listed_layer_kinds_win_over_the_rule() -> None:
    listed = ["full_attention", "sliding_attention"]
    config = parse("Gemma2ForCausalLM", layer_types=listed, sliding_window=9)
    assert windows(config) == [None, 9]


@pytest.mark.parametrize(
    ("architecture", "settings", "biases"),
    [
        ("LlamaForCausalLM", {}, (False, False, False)),
        ("LlamaForCausalLM", {"attention_bias": True}, (True, True, False)),
        ("LlamaForCausalLM", {"mlp_bias": True}, (False, False, True)),
        ("Qwen2ForCausalLM", {}, (True, False, False)),
        ("Qwen3ForCausalLM", {"attention_bias": True}, (True, True, False)),
        ("Olmo2ForCausalLM", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_follow_the_architecture(architecture: str, settings: dict[str, Any], biases: tuple[bool, ...]) -> None:
    config = parse(architecture, **settings)
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == biases


LONGROPE = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
DYNAMIC = {"type": "dynamic", "factor": 2.0}
YARN = {"type": "yarn", "factor": 2.0}
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("hidden_size", "LlamaForCausalLM", {"hidden_size": None}),
    ("hidden_size", "LlamaForCausalLM", {"hidden_size": 66}),
    ("intermediate_size", "LlamaForCausalLM", {"intermediate_size": -1}),
    ("vocab_size", "LlamaForCausalLM", {"vocab_size": True}),
    ("num_hidden_layers", "LlamaForCausalLM", {"num_hidden_layers": 100_000}),
    ("num_key_value_heads", "LlamaForCausalLM", {"num_key_value_heads": 3}),
    ("rms_norm_eps", "LlamaForCausalLM", {"rms_norm_eps": "1e-5"}),
    ("hidden_act", "LlamaForCausalLM", {"hidden_act": "relu"}),
    ("hidden_activation", "Gemma2ForCausalLM", {"hidden_activation": "gelu"}),
    ("tie_word_embeddings", "LlamaForCausalLM", {"tie_word_embeddings": "yes"}),
    ("eos_token_id", "LlamaForCausalLM", {"eos_token_id": [1, "2"]}),
    ("rope_theta", "LlamaForCausalLM", {"rope_theta": 0}),
    ("rope_theta", "LlamaForCausalLM", {"rope_theta": float("nan")}),
    ("rope_theta", "LlamaForCausalLM", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}),
    ("rope_scaling", "LlamaForCausalLM", {"rope_scaling": "linear"}),
    ("rope_scaling", "LlamaForCausalLM", {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}}),
    ("type", "LlamaForCausalLM", {"rope_scaling": {"type": "mystery", "factor": 2.0}}),
    ("mystery", "LlamaForCausalLM", {"rope_parameters": {"rope_type": "mystery"}}),
    ("type", "LlamaForCausalLM", {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}),
    ("factor", "LlamaForCausalLM", {"rope_scaling": {"type": "linear"}}),
    ("factor", "LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 0.5}}),
    ("mrope_section", "Qwen2ForCausalLM", {"rope_scaling": {"type": "default", "mrope_section": [1, 2, 3]}}),
    ("low_freq_factor", "LlamaForCausalLM", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
    (
        "long_factor",
        "Phi3ForCausalLM",
        {"rope_scaling": {**LONGROPE, "long_factor": [1.0]}},
    ),
    (
        "original_max",
        "LlamaForCausalLM",
        {"original_max_position_embeddings": 5, "rope_scaling": DYNAMIC},
    ),
    ("partial_rotary_factor", "LlamaForCausalLM", {"partial_rotary_factor": 0.5}),
    ("rotate", "Phi3ForCausalLM", {"partial_rotary_factor": 0.01}),
    ("layer_types", "Qwen3ForCausalLM", {"layer_types": ["full_attention"]}),
    ("chunked_attention", "Qwen3ForCausalLM", {"layer_types": ["full_attention", "chunked_attention"]}),
    ("use_sliding_window", "Qwen3ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("layer_types", "MistralForCausalLM", {"layer_types": ["full_attention"] * 2, "sliding_window": 8}),
    ("sliding_window", "Gemma2ForCausalLM", {"sliding_window": 0}),
    ("max_window_layers", "Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": -1}),
    ("attention_bias", "Phi3ForCausalLM", {"attention_bias": True}),
    ("mlp_bias", "Qwen2ForCausalLM", {"mlp_bias": True}),
    ("attn_logit_softcapping", "LlamaForCausalLM", {"attn_logit_softcapping": 30.0}),
    ("use_bidirectional_attention", "Gemma3ForCausalLM", {"use_bidirectional_attention": True}),
    ("quantization_config", "LlamaForCausalLM", {"quantization_config": {"quant_method": "fp8"}}),
    ("bits", "LlamaForCausalLM", {"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}}),
    ("text_config", "Gemma3ForConditionalGeneration", {}),
]


@pytest.mark.parametrize(("named", "architecture", "settings"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(named: str, architecture: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=named):
        parse(architecture, **settings)


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="MambaForCausalLM") as caught:
        parse("MambaForCausalLM")
    for name in known_architectures():
        assert name in str(caught.value)


def test_the_architecture_may_be_named_by_model_type_alone() -> None:
    unnamed = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert parse_config({**unnamed, "model_type": "qwen3"}).architecture == "Qwen3ForCausalLM"
    with pytest.raises(UnknownArchitectureError, match="mamba"):
        parse_config({**unnamed, "model_type": "mamba"})
    with pytest.raises(ModelError, match="model_type"):
        parse_config(unnamed)
    with pytest.raises(ModelError, match="architectures"):
        parse_config({**unnamed, "architectures": "LlamaForCausalLM"})
