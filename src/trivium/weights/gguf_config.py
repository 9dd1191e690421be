"""What a GGUF file's metadata mean, said in the layout of a Hugging Face config.json.

One table of architectures; the rest of Trivium then reads both formats alike. Keys are typed and limited here, and
compared with the tensors that are really there, so that a wrong number is an error that names its key.

Source: key names and per-architecture rules as published by the GGUF specification and the gguf package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.base.errors import CheckpointError, UnknownArchitectureError
from trivium.weights.stored import StoredTensor

MAX_COUNT = 1 << 31
"""No count of layers, heads or elements reaches this."""

Config = dict[str, Any]


class GGUFFields:
    """Typed access to the metadata of one architecture, with errors that name the key."""

    def __init__(self, where: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
        self.where = where
        self.metadata = metadata
        self.tensors = tensors
        self.architecture = str(metadata.get("general.architecture", ""))

    def key(self, name: str) -> str:
        """Return the full key of an architecture's field."""
        return f"{self.architecture}.{name}"

    def error(self, name: str, message: str) -> CheckpointError:
        """Return an error about the field `name`."""
        return CheckpointError(f"{self.where}: {self.key(name)} {message}")

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number; a list with one entry per layer is taken when all entries agree.

        Raises:
            CheckpointError: The key is missing without a default, or is not one number in range.
        """
        value = self.metadata.get(self.key(name), default)
        if isinstance(value, list) and value:
            if any(entry != value[0] for entry in value):
                raise self.error(name, "differs from layer to layer, which is not supported")
            value = value[0]
        if value is None:
            raise self.error(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_COUNT:
            raise self.error(name, f"is {str(value)[:80]}; it must be a whole number from {least} to {MAX_COUNT - 1}")
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a finite number, or the default.

        Raises:
            CheckpointError: The value is not a finite number.
        """
        value = self.metadata.get(self.key(name), default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, f"is {str(value)[:80]}; it must be a finite number")
        return float(value)

    def tensor(self, name: str) -> tuple[float, ...] | None:
        """Return a small float tensor's values, or `None` when the file has none of that name."""
        stored = self.tensors.get(name)
        return None if stored is None else tuple(stored.float32().reshape(-1).tolist())


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
    config["rope_scaling"] = _rope_scaling(fields, config)
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
    if found != set(range(stated)):
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


def _rope_scaling(fields: GGUFFields, config: Config) -> Config | None:
    kind = fields.metadata.get(fields.key("rope.scaling.type"), "none")
    linear = fields.number("rope.scale_linear")  # written by old converters
    if kind == "none" and linear not in {None, 0.0, 1.0}:
        return {"rope_type": "linear", "factor": linear}
    divisors = fields.tensor("rope_freqs.weight")
    if kind == "none":
        return None if divisors is None else _fixed_divisors(fields, config, divisors)
    if divisors is not None:
        raise fields.error(
            "rope.scaling.type", f"is {str(kind)[:80]!r} beside a tensor rope_freqs.weight; not supported"
        )
    if kind == "linear":
        return {"rope_type": "linear", "factor": _factor(fields)}
    if kind == "yarn":
        return _yarn(fields, config)
    if kind == "longrope":
        return _longrope(fields, config)
    raise fields.error("rope.scaling.type", f"is {str(kind)[:80]!r}; known are none, linear, yarn, longrope")


def _factor(fields: GGUFFields) -> float:
    factor = fields.number("rope.scaling.factor")
    if factor is None or factor <= 0:
        raise fields.error("rope.scaling.factor", f"is {factor}; it must be over 0")
    return factor


def _fixed_divisors(fields: GGUFFields, config: Config, divisors: tuple[float, ...]) -> Config:
    # Llama 3 scaling is stored as its result, one divisor per rotated pair. The llama3 rule of the published models
    # is recognised, since its parameters say more; anything else is the same divisors at every length.
    num_pairs = int(config["head_dim"] * config["partial_rotary_factor"]) // 2
    if len(divisors) != num_pairs:
        raise CheckpointError(
            f"{fields.where}: rope_freqs.weight has {len(divisors)} values, the heads have {num_pairs} rotated pairs"
        )
    if not all(math.isfinite(divisor) and divisor > 0 for divisor in divisors):
        raise CheckpointError(f"{fields.where}: rope_freqs.weight has values that are not over 0")
    if all(divisor == 1.0 for divisor in divisors):
        return {"rope_type": "default"}
    rule = {"factor": max(divisors), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    original = 8192
    expected = _llama3_divisors(config["rope_theta"], num_pairs, original, **rule)
    if np.allclose(np.asarray(divisors), expected, rtol=1e-5, atol=0):
        return {"rope_type": "llama3", **rule, "original_max_position_embeddings": original}
    fixed = list(divisors)
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "short_factor": fixed,
        "long_factor": fixed,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _llama3_divisors(
    theta: float, num_pairs: int, original: int, *, factor: float, low_freq_factor: float, high_freq_factor: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    # wavelength over original / low: divided by factor; under original / high: kept; between: blended linearly
    wavelengths = 2 * math.pi * theta ** (np.arange(num_pairs) / num_pairs)
    smooth = np.clip((original / wavelengths - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float64)


def _yarn(fields: GGUFFields, config: Config) -> Config:
    scaling: Config = {
        "rope_type": "yarn",
        "factor": _factor(fields),
        "original_max_position_embeddings": fields.count(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
    }
    # the file's factor multiplies yarn's own 0.1 ln(factor) + 1, while a config.json's replaces it
    attention = fields.number("rope.scaling.yarn_attn_factor", fields.number("rope.scaling.attn_factor"))
    if attention is not None and attention != 1.0:
        scaling["attention_factor"] = attention * (0.1 * math.log(scaling["factor"]) + 1.0)
    optional = {
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
    }
    scaling.update({hf: value for hf, key in optional.items() if (value := fields.number(key)) is not None})
    return scaling


def _longrope(fields: GGUFFields, config: Config) -> Config:
    long = fields.tensor("rope_factors_long.weight")
    short = fields.tensor("rope_factors_short.weight")
    if long is None or short is None:
        raise CheckpointError(f"{fields.where}: longrope needs rope_factors_long.weight and rope_factors_short.weight")
    original = fields.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    scaling: Config = {
        "rope_type": "longrope",
        "factor": config["max_position_embeddings"] / original,
        "short_factor": list(short),
        "long_factor": list(long),
        "original_max_position_embeddings": original,
    }
    attention_factor = fields.number("rope.scaling.attn_factor")
    if attention_factor:
        scaling["attention_factor"] = attention_factor
    return scaling


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
        scaling = config["rope_scaling"] = _longrope(fields, config)  # files without rope.scaling.type
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
