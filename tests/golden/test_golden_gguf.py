"""The golden models as GGUF files: transformers' logits from float32 files, and dequantized weights' from quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from support.golden import MODELS, golden_answers, load_executor, prompt_logits
from support.tiny_checkpoints import GGUF_NAMES, gguf_name
from trivium.weights.checkpoint import open_checkpoint

FLOAT32 = gguf.GGMLQuantizationType.F32
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16")
EXPRESSIBLE = (
    "llama-gqa",
    "llama-mha-tied",
    "llama-mqa-biased",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "mistral-window",
    "qwen2-tied",
    "qwen2-yarn",
    "qwen3-gqa",
    "gemma2-softcap",
    "gemma3-pattern",
    "phi3-mha",
    "phi3-window",
    "phi3-longrope",
    "olmo2-gqa",
)
"""Golden models whose configuration the GGUF metadata can say."""

FloatArray = NDArray[np.float32]


def write_gguf(source: Path, path: Path, *, kind: gguf.GGMLQuantizationType) -> Path:
    """Write a golden model as published converters do; rows that do not fill the kind's blocks stay float32."""
    config = json.loads((source / "config.json").read_text())
    architecture = GGUF_NAMES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer, config)
    _write_rope(writer, config)
    _write_attention(writer, config)
    checkpoint = open_checkpoint(source)
    for name, tensor in checkpoint.tensors.items():
        values = _as_converters_store(config, name, tensor.float32())
        stored = gguf_name(architecture, name, config["num_hidden_layers"])
        block_len = gguf.GGML_QUANT_SIZES[kind][0]
        if values.ndim == 1 or values.shape[-1] % block_len:
            writer.add_tensor(stored, values)
        else:
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
    checkpoint.close()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind, original = rope["rope_type"], rope.get("original_max_position_embeddings")
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, config["head_dim"]))
    elif kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
    elif kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if original:
            writer.add_rope_scaling_orig_ctx_len(original)


def _llama3_divisors(rope: dict[str, Any], head_width: int) -> FloatArray:
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_width, 2) / head_width)
    turns = rope["original_max_position_embeddings"] / wavelengths
    kept = np.clip((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
    return (1 / ((1 - kept) / rope["factor"] + kept)).astype(np.float32)


def _write_attention(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if config.get("sliding_window") and not config["architectures"][0].startswith("Qwen"):
        writer.add_sliding_window(config["sliding_window"])
    if "Gemma" in config["architectures"][0]:
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _as_converters_store(config: dict[str, Any], name: str, values: FloatArray) -> FloatArray:
    architecture = config["architectures"][0]
    is_query, is_key = "q_proj" in name, "k_proj" in name
    if GGUF_NAMES[architecture] == "llama" and (is_query or is_key):
        heads = config["num_attention_heads"] if is_query else config["num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if "Gemma" in architecture and "norm" in name:
        return values + np.float32(1)
    return values


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_a_float32_gguf_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    executor = load_executor(write_gguf(MODELS / name, tmp_path / "model.gguf", kind=FLOAT32))
    for golden in golden_answers(MODELS / name):
        logits = prompt_logits(executor, golden.prompt, golden.reach)[golden.rows]
        np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=1e-4, err_msg=f"reach {golden.reach}")


@pytest.mark.parametrize("quantized", QUANTIZED)
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-tied"])
def test_a_quantized_gguf_gives_the_bits_of_its_dequantized_weights(name: str, quantized: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[quantized]
    small = write_gguf(MODELS / name, tmp_path / "small.gguf", kind=kind)
    wide = _widened(small, tmp_path / "wide.gguf")
    golden = golden_answers(MODELS / name)[1]
    found, expected = (prompt_logits(load_executor(path), golden.prompt, golden.reach) for path in (small, wide))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found[golden.rows] - golden.logits).max() > 1e-5 or quantized in {"BF16", "F16"}


def _widened(path: Path, target: Path) -> Path:
    """Rewrite a GGUF file with every tensor dequantized by the gguf package."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if "." in key and not key.startswith("general.") and not key.startswith("GGUF."):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
