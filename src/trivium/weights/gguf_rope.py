"""Rope scaling of a GGUF file, said in the layout of a Hugging Face config.json.

Source: key names of the GGUF specification; scaling rules as published with Llama 3.1, YaRN (Peng et al. 2023) and
LongRoPE (Ding et al. 2024).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trivium.base.errors import CheckpointError
from trivium.weights.gguf_fields import Config, GGUFFields


def rope_scaling(fields: GGUFFields, config: Config) -> Config | None:
    """Return the rope scaling as a config.json says it, or `None` without any.

    Args:
        fields: The file's metadata and tensors.
        config: The configuration so far: head_dim, partial_rotary_factor, rope_theta, max_position_embeddings.

    Raises:
        CheckpointError: The scaling is unknown, incomplete or contradictory.
    """
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
        return longrope(fields, config)
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


def longrope(fields: GGUFFields, config: Config) -> Config:
    """Return long rope scaling; its factors are tensors of the file.

    Raises:
        CheckpointError: A tensor of factors is missing.
    """
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
