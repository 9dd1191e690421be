"""What a GGUF file's metadata mean, said in the layout of a Hugging Face config.json.

One table of architectures; the rest of Trivium then reads both formats alike. Keys are typed and limited here, and
compared with the tensors that are really there, so that a wrong number is an error that names its key.

Source: key names and per-architecture rules as published by the GGUF specification and the gguf package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import CheckpointError, UnknownArchitectureError
from trivium.weights.gguf_fields import Config, GGUFFields
from trivium.weights.gguf_rope import longrope, rope_scaling
from trivium.weights.stored import StoredTensor


@dataclass(frozen=True, slots=True)
class _Architecture:
    hf_name: str
    model_type: str
    extras: Callable[[GGUFFields, Config], None]


def hf_config(where: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Config:
    """Build the config.json layout.

    Args:
        where: The file, for error messages.
        metadata: The file's key-values.
        tensors: The file's tensors.

    Raises:
        UnknownArchitectureError: general.architecture is not in the table.
        CheckpointError: A key is missing, out of range, or contradicts the tensors.
    """
    fields = GGUFFields(where, metadata, tensors)
    known = _ARCHITECTURES.get(fields.architecture)
    if known is None:
        raise UnknownArchitectureError(
            f"{where}: general.architecture is {fields.architecture[:80]!r}; known are {', '.join(_ARCHITECTURES)}"
        )
    if fields.count("expert_count", 0, least=0):
        raise fields.error("expert_count", "is not 0; mixtures of experts are not supported")
    config: Config = {"architectures": [known.hf_name], "model_type": known.model_type, **_shape(fields)}
    config.update(_biases(fields) | _tokens(fields))
    config["rope_theta"] = fields.number("rope.freq_base", 10000.0)
    config["rope_scaling"] = rope_scaling(fields, config)
    known.extras(fields, config)
    return config


def generation_config(metadata: Mapping[str, Any]) -> Config:
    """Return what the metadata say about generation, in the layout of a generation_config.json."""
    config = {
        hf: metadata[f"general.sampling.{key}"]
        for key, hf in _SAMPLING_KEYS.items()
        if f"general.sampling.{key}" in metadata
    }
    for name in ("bos", "pad"):
        key = {"bos": "tokenizer.ggml.bos_token_id", "pad": "tokenizer.ggml.padding_token_id"}[name]
        if isinstance(metadata.get(key), int):
            config[f"{name}_token_id"] = metadata[key]
    if ends := _end_tokens(metadata):
        config["eos_token_id"] = ends
    return config


_SAMPLING_KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
                  "penalty_repeat": "repetition_penalty"}  # fmt: skip


def _shape(fields: GGUFFields) -> Config:
    num_heads = fields.count("attention.head_count")
    width = fields.count("embedding_length")
    head_width = fields.count("attention.key_length", width // num_heads)
    if fields.count("attention.value_length", head_width) != head_width:
        raise fields.error("attention.value_length", f"differs from key_length {head_width}, which is not supported")
    rotary = fields.count("rope.dimension_count", head_width)
    if rotary > head_width or rotary % 2:
        raise fields.error("rope.dimension_count", f"is {rotary}; it must be even and at most {head_width}")
    return {
        "vocab_size": _vocab_size(fields),
        "hidden_size": width,
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": _num_layers(fields),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", num_heads),
        "head_dim": head_width,
        "partial_rotary_factor": rotary / head_width,
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in fields.tensors,
        "torch_dtype": "float32",
    }


def _biases(fields: GGUFFields) -> Config:
    names = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {hf: True for hf, name in names.items() if name in fields.tensors}


def _num_layers(fields: GGUFFields) -> int:
    stated = fields.count("block_count")
    found = {int(match[1]) for name in fields.tensors if (match := re.match(r"blk\.(\d{1,9})\.", name))}
    if len(found) != stated or max(found) != stated - 1:
        have = f"{len(found)} layers" + (f", {min(found)} to {max(found)}" if found else "")
        raise fields.error("block_count", f"is {stated}, but the file has tensors of {have}")
    return stated


def _vocab_size(fields: GGUFFields) -> int:
    tokens = fields.metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    for name in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        values = fields.metadata.get(name)
        if num_tokens is not None and values is not None and len(values) != num_tokens:
            raise CheckpointError(
                f"{fields.where}: {name} has {len(values)} entries, tokenizer.ggml.tokens has {num_tokens}"
            )
    embedding = fields.tensors.get("token_embd.weight")
    rows = fields.count("vocab_size", num_tokens) if embedding is None else embedding.shape[0]
    if num_tokens is not None and num_tokens > rows:
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.tokens has {num_tokens} entries, token_embd.weight only {rows} rows"
        )
    return rows


def _tokens(fields: GGUFFields) -> Config:
    config: Config = {}
    bos = fields.metadata.get("tokenizer.ggml.bos_token_id")
    if isinstance(bos, int):
        config["bos_token_id"] = bos
    if ends := _end_tokens(fields.metadata):
        config["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    return config


def _end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    values = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(value for value in values if isinstance(value, int)))


def _llama(fields: GGUFFields, config: Config) -> None:
    if window := fields.count("attention.sliding_window", 0, least=0):
        config.update(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=window)
    if config.get("attention_bias") and "blk.0.attn_output.bias" not in fields.tensors:
        # biases on q, k and v only: Qwen2's layout; the rows stay in the order of the llama converter
        config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
        del config["attention_bias"]


def _qwen2(fields: GGUFFields, config: Config) -> None:
    config.update(use_sliding_window=False, sliding_window=None)
    if not config.pop("attention_bias", False):
        raise CheckpointError(f"{fields.where}: blk.0.attn_q.bias is missing, qwen2 has biases on q, k and v")


def _qwen3(_fields: GGUFFields, config: Config) -> None:
    config.update(use_sliding_window=False, sliding_window=None)


def _gemma(
    fields: GGUFFields, config: Config, *, period: int, layers_of_27b: int, caps: tuple[float, float] | None = None
) -> None:
    # A layer is local unless it is the last of its period. The 27B models scale queries by hidden / heads, the
    # others by the head width; the files do not say which, except by attention.scale in newer ones.
    num_layers = config["num_hidden_layers"]
    pattern = fields.metadata.get(fields.key("attention.sliding_window_pattern"), period)
    if isinstance(pattern, list):
        if len(pattern) != num_layers:
            raise fields.error(
                "attention.sliding_window_pattern", f"has {len(pattern)} entries for {num_layers} layers"
            )
        is_local = [bool(entry) for entry in pattern]
    else:
        period = fields.count("attention.sliding_window_pattern", period)
        is_local = [(layer + 1) % period != 0 for layer in range(num_layers)]
    scale = fields.number("attention.scale")
    is_27b = num_layers == layers_of_27b
    by_heads = config["hidden_size"] / config["num_attention_heads"]
    config.update(
        hidden_activation="gelu_pytorch_tanh",
        hidden_act="gelu_pytorch_tanh",
        sliding_window=fields.count("attention.sliding_window", 4096),
        layer_types=["sliding_attention" if local else "full_attention" for local in is_local],
        query_pre_attn_scalar=scale**-2 if scale else (by_heads if is_27b else config["head_dim"]),
        attn_logit_softcapping=fields.number("attn_logit_softcapping", caps and caps[0]),
        final_logit_softcapping=fields.number("final_logit_softcapping", caps and caps[1]),
    )


def _gemma2(fields: GGUFFields, config: Config) -> None:
    _gemma(fields, config, period=2, layers_of_27b=46, caps=(50.0, 30.0))


def _gemma3(fields: GGUFFields, config: Config) -> None:
    _gemma(fields, config, period=6, layers_of_27b=62)
    config["rope_local_base_freq"] = fields.number("rope.freq_base_swa", 10000.0)


def _phi3(fields: GGUFFields, config: Config) -> None:
    config["sliding_window"] = fields.count("attention.sliding_window", 0, least=0) or None
    scaling = config["rope_scaling"]
    if scaling is None and "rope_factors_long.weight" in fields.tensors:
        scaling = config["rope_scaling"] = longrope(fields, config)  # files without rope.scaling.type
    if scaling and "original_max_position_embeddings" in scaling:
        config["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]


def _olmo2(fields: GGUFFields, _config: Config) -> None:
    if fields.count("attention.sliding_window", 0, least=0):
        raise fields.error("attention.sliding_window", "is set (OLMo 3), which is not supported")


_ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture("LlamaForCausalLM", "llama", _llama),
    "qwen2": _Architecture("Qwen2ForCausalLM", "qwen2", _qwen2),
    "qwen3": _Architecture("Qwen3ForCausalLM", "qwen3", _qwen3),
    "gemma2": _Architecture("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": _Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": _Architecture("Phi3ForCausalLM", "phi3", _phi3),
    "olmo2": _Architecture("Olmo2ForCausalLM", "olmo2", _olmo2),
}
"""GGUF architectures that are understood; Mistral's files say llama."""
