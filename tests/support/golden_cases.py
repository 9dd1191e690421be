"""The tiny models of the golden tests: one row per thing that an architecture can do differently.

A row names a transformers configuration class and what it is given; `oracle.draw_model` makes random weights for it.
Everything is small enough to commit and large enough to notice: windows and original contexts are shorter than the long
prompt, soft caps are near the scores, and bf16 weights halve the files without blurring the arithmetic (both sides
compute in float32 from the same weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

VOCAB_SIZE = 256
SHORT_PROMPT, LONG_PROMPT = 9, 70
GREEDY_TOKENS = 8
ORIGINAL_POSITIONS = 32
WINDOW = 12

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One tiny model."""

    name: str
    config_class: str
    """Name of the configuration class in transformers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from `SIZES`."""
    stored: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the committed weights."""
    seed: int

    @property
    def config(self) -> dict[str, Any]:
        """Keyword arguments of the configuration class."""
        return {**SIZES, **self.settings}


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


_SLIDE, _FULL = "sliding_attention", "full_attention"
_SHORT_FACTORS, _LONG_FACTORS = [1.0, 1.05, 1.2, 1.6], [1.1, 1.9, 3.3, 4.0]
_TIED = {"tie_word_embeddings": True}
_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW}
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
_LONGROPE = {
    **_rope("longrope", short_factor=_SHORT_FACTORS, long_factor=_LONG_FACTORS),
    "original_max_position_embeddings": ORIGINAL_POSITIONS,
}

_ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-gqa", "LlamaConfig", {}),
    ("llama-mha-tied", "LlamaConfig", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("llama-mqa-biased", "LlamaConfig", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    ("llama-wide-heads", "LlamaConfig", {"head_dim": 16, "num_hidden_layers": 3, "rms_norm_eps": 1e-3}),
    ("llama-linear", "LlamaConfig", _rope("linear", factor=4.0)),
    ("llama-dynamic", "LlamaConfig", {**_rope("dynamic", factor=2.0), "max_position_embeddings": ORIGINAL_POSITIONS}),
    ("llama-llama3", "LlamaConfig", _rope("llama3", original_max_position_embeddings=ORIGINAL_POSITIONS, **_LLAMA3)),
    ("llama-yarn", "LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL_POSITIONS)),
    (
        "llama-yarn-mscale",
        "LlamaConfig",
        _rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=ORIGINAL_POSITIONS,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=1.2,
            mscale_all_dim=0.5,
            truncate=False,
        ),
    ),
    ("mistral-window", "MistralConfig", {"sliding_window": WINDOW, "head_dim": 12}),
    ("mistral-full", "MistralConfig", {"sliding_window": None, "hidden_act": "silu", "num_key_value_heads": 1}),
    ("qwen2-tied", "Qwen2Config", {"tie_word_embeddings": True}),
    ("qwen2-window", "Qwen2Config", {"num_hidden_layers": 3, "max_window_layers": 1, **_QWEN_WINDOW}),
    ("qwen2-yarn", "Qwen2Config", _rope("yarn", factor=2.0, original_max_position_embeddings=64)),
    ("qwen3-gqa", "Qwen3Config", {"head_dim": 16}),
    (
        "qwen3-window-biased",
        "Qwen3Config",
        {
            "head_dim": 8,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": [_SLIDE, _FULL],
            **_QWEN_WINDOW,
        },
    ),
    ("gemma2-softcap", "Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 4.0}),
    (
        "gemma2-untied-uncapped",
        "Gemma2Config",
        {
            **_GEMMA,
            "num_hidden_layers": 3,
            "layer_types": [_FULL, _SLIDE, _SLIDE],
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
    ),
    ("gemma3-pattern", "Gemma3TextConfig", {**_GEMMA, "num_hidden_layers": 4, "sliding_window_pattern": 3}),
    (
        "gemma3-linear",
        "Gemma3TextConfig",
        {
            **_GEMMA,
            "num_key_value_heads": 1,
            "layer_types": [_SLIDE, _FULL],
            "rope_parameters": {
                _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                _SLIDE: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    (
        "gemma3-multimodal",
        "Gemma3Config",
        {"text_config": {**SIZES, **_GEMMA, "layer_types": [_SLIDE, _FULL]}, "image_token_index": 255},
    ),
    ("phi3-mha", "Phi3Config", {"num_key_value_heads": 4}),
    ("phi3-window", "Phi3Config", {"sliding_window": WINDOW}),
    ("phi3-longrope", "Phi3Config", _LONGROPE),
    (
        "phi3-longrope-partial",
        "Phi3Config",
        {
            **_rope(
                "longrope", short_factor=_SHORT_FACTORS[:2], long_factor=_LONG_FACTORS[:2], partial_rotary_factor=0.5
            ),
            "original_max_position_embeddings": ORIGINAL_POSITIONS,
            "tie_word_embeddings": True,
        },
    ),
    ("olmo2-gqa", "Olmo2Config", {}),
    (
        "olmo2-mha-biased",
        "Olmo2Config",
        {"num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True},
    ),
)
_STORED_WHOLE = {"llama-gqa", "qwen3-gqa"}

CASES: tuple[GoldenCase, ...] = tuple(
    GoldenCase(
        name=name,
        config_class=config_class,
        settings=settings,
        stored="float32" if name in _STORED_WHOLE else "bfloat16",
        seed=1000 + index,
    )
    for index, (name, config_class, settings) in enumerate(_ROWS)
)
