"""Tiny random checkpoints of every architecture, in both formats, written by the formats' own libraries.

The GGUF side applies what published converters do (names, reordered query and key rows, Gemma's norm weights plus
one), written here independently of the readers, so that reading both formats back must give the same parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Weights = dict[str, NDArray[np.float32]]

HEADS, KV_HEADS, HEAD_WIDTH, WIDTH, FFN, VOCAB, LAYERS = 4, 2, 8, 32, 64, 96, 2
GGUF_NAMES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
}
_FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def hub_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """Return a config.json of a tiny model; Gemma's are tied, the others not."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": "Gemma" in architecture,
    }
    if "Gemma" in architecture:
        config.update(sliding_window=16, query_pre_attn_scalar=HEAD_WIDTH, hidden_activation="gelu_pytorch_tanh")
    if architecture == "MistralForCausalLM":
        config["sliding_window"] = 16
    return config | changes


def hub_weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Return random weights under the names and in the layout that Hugging Face checkpoints have."""
    architecture = config["architectures"][0]
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer_shapes(architecture).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
            if config.get("attention_bias") and name.endswith("_proj.weight") and "self_attn" in name:
                shapes[f"model.layers.{layer}.{name.replace('.weight', '.bias')}"] = shape[:1]
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _layer_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    query, key = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.o_proj.weight": (WIDTH, query),
        "mlp.down_proj.weight": (WIDTH, FFN),
    }
    if architecture == "Phi3ForCausalLM":
        shapes |= {"self_attn.qkv_proj.weight": (query + 2 * key, WIDTH), "mlp.gate_up_proj.weight": (2 * FFN, WIDTH)}
    else:
        shapes |= {f"self_attn.{name}_proj.weight": (query if name == "q" else key, WIDTH) for name in "qkv"}
        shapes |= {f"mlp.{name}_proj.weight": (FFN, WIDTH) for name in ("gate", "up")}
    if architecture == "Qwen2ForCausalLM":
        shapes |= {f"self_attn.{name}_proj.bias": (query if name == "q" else key,) for name in "qkv"}
    if architecture in {"Qwen3ForCausalLM", "Gemma3ForCausalLM"}:
        shapes |= {f"self_attn.{name}_norm.weight": (HEAD_WIDTH,) for name in "qk"}
    if architecture == "Olmo2ForCausalLM":
        shapes |= {"self_attn.q_norm.weight": (query,), "self_attn.k_norm.weight": (key,)}
    norms = {"Olmo2ForCausalLM": (_FOUR_NORMS[1], _FOUR_NORMS[3])}.get(
        architecture, _FOUR_NORMS if "Gemma" in architecture else _FOUR_NORMS[:2]
    )
    return shapes | {f"{name}.weight": (WIDTH,) for name in norms}


def write_hub(directory: Path, config: Mapping[str, Any], weights: Mapping[str, Any], *, num_shards: int = 1) -> Path:
    """Write a directory in Hugging Face layout, sharded by an index when `num_shards` is over 1."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    if num_shards == 1:
        save_file(dict(weights), directory / "model.safetensors")
        return directory
    names = sorted(weights)
    per_shard = math.ceil(len(names) / num_shards)
    shard_of = {name: f"model-{i // per_shard + 1:05}-of-{num_shards:05}.safetensors" for i, name in enumerate(names)}
    for shard in sorted(set(shard_of.values())):
        save_file({name: weights[name] for name in names if shard_of[name] == shard}, directory / shard)
    index = {"metadata": {}, "weight_map": shard_of}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    return directory


def write_gguf(
    path: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]], *, vocabulary: int = VOCAB
) -> Path:
    """Convert weights in Hugging Face layout to a GGUF file, as published converters do."""
    hub_name = config["architectures"][0]
    architecture = GGUF_NAMES[hub_name]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in weights.items():
        writer.add_tensor(
            gguf_name(architecture, name, config["num_hidden_layers"]), _converted(hub_name, name, values)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(architecture: str, hub_name: str, num_layers: int = LAYERS) -> str:
    """Return the GGUF name of a Hugging Face tensor, from the gguf package's own tables."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    name = gguf.get_tensor_name_map(kind, num_layers).get_name(hub_name, (".weight", ".bias"))
    if name is None:
        raise KeyError(f"gguf knows no name for {hub_name} of {architecture}")
    return str(name)


def _converted(architecture: str, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if GGUF_NAMES[architecture] == "llama" and ("q_proj" in name or "k_proj" in name):
        num_heads = HEADS if "q_proj" in name else KV_HEADS
        halves = values.reshape(num_heads, 2, HEAD_WIDTH // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if "Gemma" in architecture and "norm" in name:
        return values + np.float32(1)
    return values
