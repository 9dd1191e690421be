"""The adapters of the golden tests: one row per thing that a LoRA checkpoint can do differently.

A row names a base among the golden models and what peft's `LoraConfig` is given; matrices are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCase:
    """One adapter."""

    name: str
    base: str
    """Name of a case of `golden_cases`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of peft's configuration."""
    stored: Literal["bfloat16", "float32"] = "float32"
    """Type of the committed matrices."""
    seed: int


_ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("all-linear", "llama-gqa", {"r": 4, "lora_alpha": 8, "target_modules": list(ALL_LINEAR)}),
    ("attention-only", "llama-mqa-biased", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}),
    ("one-layer", "qwen3-gqa", {"r": 2, "target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1]}),
    ("rank-stabilized", "qwen2-window", {"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": "all-linear"}),
    (
        "patterns",
        "gemma2-untied-uncapped",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": list(ALL_LINEAR),
            "rank_pattern": {"layers.1.mlp.down_proj": 3, "q_proj": 7},
            "alpha_pattern": {"model.layers.0.self_attn.o_proj": 2.5, r"layers.\d+.mlp.up_proj": 1},
        },
    ),
    ("fused", "phi3-mha", {"r": 5, "target_modules": ["qkv_proj", "gate_up_proj", "o_proj", "down_proj"]}),
    ("head", "olmo2-gqa", {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "q_proj"]}),
    ("tied-head", "llama-mha-tied", {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "v_proj"]}),
    ("multimodal-base", "gemma3-pattern", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}),
)

ADAPTER_CASES: tuple[AdapterCase, ...] = tuple(
    AdapterCase(
        name=name, base=base, settings=settings, stored="bfloat16" if name == "attention-only" else "float32", seed=seed
    )
    for seed, (name, base, settings) in enumerate(_ROWS, 500)
)
