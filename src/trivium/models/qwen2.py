"""Qwen2 and Qwen2.5: Llama's layer with biases on queries, keys and values; upper layers may slide.

Source: Yang et al. 2024, Qwen2 Technical Report, section 2.2.1.
"""

from __future__ import annotations

from trivium.models.architecture import Architecture
from trivium.models.layer_kinds import upper_sliding_if_enabled
from trivium.models.llama import llama_layer

WINDOW_DEFAULTS = {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096}

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    layer=llama_layer,
    defaults={"max_position_embeddings": 32768, **WINDOW_DEFAULTS},
    kinds=upper_sliding_if_enabled,
    qkv_bias=True,
)
