"""Random tiny configurations of each architecture, for live comparison with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.golden_cases import ORIGINAL_POSITIONS, GoldenCase

CONFIG_CLASSES: Mapping[str, str] = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma2": "Gemma2Config",
    "gemma3": "Gemma3TextConfig",
    "phi3": "Phi3Config",
    "olmo2": "Olmo2Config",
}
_HAS_HEAD_DIM = {"llama", "mistral", "qwen3", "gemma2", "gemma3"}
_HAS_BIAS_KEY = {"llama", "qwen3", "gemma2", "gemma3", "olmo2"}


def drawn_case(family: str, seed: int) -> GoldenCase:
    """Draw one configuration: sizes, heads, biases, windows, rope; the same for the same seed."""
    random = np.random.default_rng([seed, len(family), ord(family[-1])])
    num_heads = int(random.choice([2, 4, 6]))
    head_width = int(random.choice([6, 8, 12]))
    divisors = [count for count in (1, 2, num_heads) if num_heads % count == 0]
    settings: dict[str, Any] = {
        "hidden_size": num_heads * (head_width if family not in _HAS_HEAD_DIM else int(random.choice([4, 6, 8]))),
        "intermediate_size": int(random.choice([20, 33, 64])),
        "num_hidden_layers": int(random.choice([2, 3])),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(random.choice(divisors)),
        "rms_norm_eps": float(random.choice([1e-6, 1e-5, 1e-3])),
        "tie_word_embeddings": bool(random.choice([True, False])),
    }
    if family in _HAS_HEAD_DIM:
        settings["head_dim"] = head_width
    if family in _HAS_BIAS_KEY:
        settings["attention_bias"] = bool(random.choice([True, False]))
    settings |= _windows(family, random, settings["num_hidden_layers"])
    settings |= _rope(family, random, head_width)
    return GoldenCase(name=f"{family}-{seed}", config_class=CONFIG_CLASSES[family], settings=settings, seed=seed)


def _windows(family: str, random: np.random.Generator, num_layers: int) -> dict[str, Any]:
    window = int(random.integers(3, 40))
    if family in {"mistral", "phi3"}:
        return {"sliding_window": window if random.random() < 0.5 else None}
    if family in {"qwen2", "qwen3"}:
        enabled = bool(random.random() < 0.5)
        return {
            "use_sliding_window": enabled,
            "sliding_window": window,
            "max_window_layers": int(random.integers(0, num_layers)),
        }
    if family in {"gemma2", "gemma3"}:
        kinds = [str(random.choice(["sliding_attention", "full_attention"])) for _ in range(num_layers)]
        settings: dict[str, Any] = {"sliding_window": window, "layer_types": kinds, "query_pre_attn_scalar": 13}
        if family == "gemma2":
            settings |= {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
        return settings
    return {}


def _rope(family: str, random: np.random.Generator, head_width: int) -> dict[str, Any]:
    theta = float(random.choice([1e4, 5e5]))
    if family == "gemma3":
        return {}
    if family == "phi3":
        return _longrope(random, head_width, theta) if random.random() < 0.5 else {}
    kind = str(random.choice(["default", "linear", "dynamic", "llama3", "yarn"]))
    scaling: Mapping[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": 3.0},
        "dynamic": {"factor": 3.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL_POSITIONS,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL_POSITIONS},
    }
    settings: dict[str, Any] = {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **scaling[kind]}}
    if kind == "dynamic":
        settings["max_position_embeddings"] = ORIGINAL_POSITIONS
    return settings


def _longrope(random: np.random.Generator, head_width: int, theta: float) -> dict[str, Any]:
    factors = {key: random.uniform(1.0, 4.0, head_width // 2).tolist() for key in ("short_factor", "long_factor")}
    return {
        "rope_parameters": {"rope_type": "longrope", "rope_theta": theta, **factors},
        "original_max_position_embeddings": ORIGINAL_POSITIONS,
    }
