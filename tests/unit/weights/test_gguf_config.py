"""GGUF metadata become the configuration that the same model has in Hugging Face layout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tiny_checkpoints import GGUF_NAMES, hub_config, hub_weights, write_gguf
from trivium.base.errors import CheckpointError, UnknownArchitectureError
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.formats import FORMATS
from trivium.weights.gguf_config import generation_config, hf_config
from trivium.weights.gguf_rope import _llama3_divisors
from trivium.weights.mapped import MappedFile
from trivium.weights.stored import StoredTensor

SHAPE = {
    "block_count": 1,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
}


def config_of(
    architecture: str, fields: dict[str, Any] | None = None, tensors: dict[str, StoredTensor] | None = None, **top: Any
) -> dict[str, Any]:
    """Return the configuration of metadata with one layer of `architecture`."""
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in (SHAPE | (fields or {})).items() if value is not None}
    named = {"blk.0.attn_q.weight": stored((64, 64)), "token_embd.weight": stored((96, 64)), **(tensors or {})}
    return hf_config("x.gguf", metadata | top, named)


def stored(shape: tuple[int, ...], values: Any = None, tmp_path: Path | None = None) -> StoredTensor:
    """Return a float32 tensor; one without values must not be read."""
    file = MappedFile(Path(__file__))
    if values is not None and tmp_path is not None:
        path = tmp_path / f"{abs(hash(tuple(values)))}.f32"
        path.write_bytes(np.asarray(values, np.float32).tobytes())
        file = MappedFile(path)
    assert "F32" in FORMATS
    return StoredTensor("t", shape, "F32", file, 0)


@pytest.mark.parametrize("architecture", GGUF_NAMES)
def test_both_formats_say_the_same_of_a_model(tmp_path: Path, architecture: str) -> None:
    expected = hub_config(architecture)
    with open_checkpoint(write_gguf(tmp_path / "x.gguf", expected, hub_weights(expected))) as checkpoint:
        config = checkpoint.hf_config
    for key, value in expected.items():
        assert config[key] == value, key
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_an_unknown_architecture_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"architecture is 'mamba'; known are llama, qwen2, qwen3"):
        config_of("mamba")
    with pytest.raises(UnknownArchitectureError, match=r"general\.architecture is ''"):
        hf_config("x.gguf", {}, {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_count": 100_000}, "llama.block_count is 100000, but the file has tensors of 1 layers, 0 to 0"),
        ({"block_count": (1 << 31) - 1}, "llama.block_count is 2147483647, but the file has tensors of 1 layers"),
        ({"block_count": 0}, "llama.block_count is 0; it must be a whole number from 1"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"context_length": -4}, "llama.context_length is -4"),
        ({"embedding_length": 1.5}, "llama.embedding_length is 1.5"),
        ({"attention.head_count": "four"}, "llama.attention.head_count is four"),
        ({"attention.head_count": [4, 8]}, "llama.attention.head_count differs from layer to layer"),
        ({"attention.head_count": 1 << 40}, "llama.attention.head_count is 1099511627776"),
        ({"attention.value_length": 8}, "llama.attention.value_length differs from key_length 16"),
        ({"rope.dimension_count": 32}, "llama.rope.dimension_count is 32; it must be even and at most 16"),
        ({"rope.freq_base": math.nan}, "llama.rope.freq_base is nan; it must be a finite number"),
        ({"rope.scaling.type": "magic"}, "llama.rope.scaling.type is 'magic'; known are none, linear, yarn, longrope"),
        ({"rope.scaling.type": "linear"}, "llama.rope.scaling.factor is None; it must be over 0"),
        ({"rope.scaling.type": "longrope"}, "longrope needs rope_factors_long.weight"),
        ({"expert_count": 8}, "llama.expert_count is not 0; mixtures of experts are not supported"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config_of("llama", fields)


def test_vocabulary_arrays_must_have_one_length() -> None:
    tokens = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1]}
    with pytest.raises(CheckpointError, match=r"token_type has 1 entries, tokenizer.ggml.tokens has 2"):
        config_of("llama", **tokens)


def test_more_tokens_than_embedding_rows_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokens has 97 entries, token_embd.weight only 96 rows"):
        config_of("llama", **{"tokenizer.ggml.tokens": ["a"] * 97})


@pytest.mark.parametrize(
    ("stored", "said"),
    [(float(np.float32(1e-5)), 1e-5), (0.1, 0.1), (1e300, 1e300), (1e-300, 1e-300), (500_000.0, 5e5)],
)
def test_numbers_are_said_as_a_configuration_would_write_them(stored: float, said: float) -> None:
    assert config_of("llama", {"rope.freq_base": stored})["rope_theta"] == said


def test_a_value_per_layer_is_one_value_when_all_agree() -> None:
    assert config_of("llama", {"attention.head_count": [4, 4, 4]})["num_attention_heads"] == 4


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({}, None),
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.attn_factor": 0.5,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 16.0,
                "attention_factor": 0.5 * (0.1 * math.log(4.0) + 1.0),
            },
        ),
    ],
)
def test_rope_scaling_is_said_as_a_configuration_says_it(
    fields: dict[str, Any], scaling: dict[str, Any] | None
) -> None:
    assert config_of("llama", fields)["rope_scaling"] == scaling


def test_the_divisors_of_llama_3_are_recognised(tmp_path: Path) -> None:
    # Llama 3.2 1B: theta 500000, heads of 64, factor 32; computed here term by term
    theta, pairs = 500_000.0, 32
    divisors = []
    for pair in range(pairs):
        wavelength = 2 * math.pi * theta ** (pair / pairs)
        if wavelength < 8192 / 4.0:
            divisors.append(1.0)
        elif wavelength > 8192 / 1.0:
            divisors.append(32.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / 32.0 + smooth))
    rule = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    np.testing.assert_allclose(_llama3_divisors(theta, pairs, 8192, **rule), divisors, rtol=1e-12)
    freqs = {"rope_freqs.weight": stored((pairs,), divisors, tmp_path)}
    config = config_of("llama", {"rope.freq_base": theta, "attention.key_length": 64}, freqs)
    assert config["rope_scaling"] == {"rope_type": "llama3", **rule, "original_max_position_embeddings": 8192}


def test_other_divisors_hold_at_every_length(tmp_path: Path) -> None:
    divisors = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    scaling = config_of("llama", tensors={"rope_freqs.weight": stored((8,), divisors, tmp_path)})["rope_scaling"]
    assert scaling["rope_type"] == "longrope"
    assert scaling["short_factor"] == scaling["long_factor"] == divisors
    assert (scaling["attention_factor"], scaling["original_max_position_embeddings"]) == (1.0, 4096)


@pytest.mark.parametrize("divisors", [[1.0] * 4, [0.0] * 8, [math.inf] * 8])
def test_divisors_of_wrong_number_or_value_are_refused(tmp_path: Path, divisors: list[float]) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has "):
        config_of("llama", tensors={"rope_freqs.weight": stored((len(divisors),), divisors, tmp_path)})


def test_long_rope_takes_its_factors_from_tensors(tmp_path: Path) -> None:
    factors = {
        "rope_factors_long.weight": stored((8,), [2.0] * 8, tmp_path),
        "rope_factors_short.weight": stored((8,), [1.5] * 8, tmp_path),
    }
    fields = {"rope.scaling.original_context_length": 1024, "rope.scaling.attn_factor": 1.25}
    config = config_of("phi3", fields, factors)
    assert config["original_max_position_embeddings"] == 1024
    assert config["rope_scaling"] == {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": [1.5] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    }


def layer_kinds(architecture: str, num_layers: int, fields: dict[str, Any] | None = None) -> str:
    tensors = {f"blk.{layer}.attn_q.weight": stored((64, 64)) for layer in range(num_layers)}
    config = config_of(architecture, {"block_count": num_layers, **(fields or {})}, tensors)
    return "".join("L" if kind == "sliding_attention" else "G" for kind in config["layer_types"])


def test_local_and_global_layers_alternate_as_the_architecture_has_them() -> None:
    assert layer_kinds("gemma2", 4) == "LGLG"
    assert layer_kinds("gemma3", 8) == "LLLLLGLL"
    assert layer_kinds("gemma3", 4, {"attention.sliding_window_pattern": 2}) == "LGLG"
    assert layer_kinds("gemma3", 3, {"attention.sliding_window_pattern": [True, False, True]}) == "LGL"


def test_a_pattern_of_wrong_length_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"sliding_window_pattern has 1 entries for 2 layers"):
        layer_kinds("gemma3", 2, {"attention.sliding_window_pattern": [True]})


def test_gemma_2_has_its_caps_and_27b_scales_by_hidden_over_heads() -> None:
    config = config_of("gemma2")
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)
    assert config["query_pre_attn_scalar"] == 16
    layers = {f"blk.{layer}.attn_q.weight": stored((64, 64)) for layer in range(46)}
    wide = config_of("gemma2", {"block_count": 46, "attention.key_length": 8}, layers)
    assert wide["query_pre_attn_scalar"] == 16


def test_biases_are_read_off_the_tensors() -> None:
    query = {"blk.0.attn_q.bias": stored((64,))}
    assert config_of("llama", tensors=query)["architectures"] == ["Qwen2ForCausalLM"]
    everywhere = config_of("llama", tensors=query | {"blk.0.attn_output.bias": stored((64,))})
    assert everywhere["attention_bias"] is True
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.bias is missing, qwen2 has biases"):
        config_of("qwen2")


def test_olmo_3_in_an_olmo_2_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"olmo2.attention.sliding_window is set \(OLMo 3\)"):
        config_of("olmo2", {"attention.sliding_window": 128})


def test_generation_settings_come_from_sampling_keys_and_all_end_tokens() -> None:
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
    }
    expected = {"temperature": 0.5, "top_k": 20, "bos_token_id": 1, "pad_token_id": 0, "eos_token_id": [2, 7]}
    assert generation_config(metadata) == expected
