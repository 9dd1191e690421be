"""Qwen3: Llama's layer with queries and keys normed head by head, and no biases unless configured.

Source: Yang et al. 2025, Qwen3 Technical Report, section 2.
"""

from __future__ import annotations

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope
from trivium.models.layer_kinds import upper_sliding_if_enabled
from trivium.models.qwen2 import WINDOW_DEFAULTS


def qwen3_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: as Llama's, with QK norm."""
    x = layer.add(x, layer.attention(layer.norm("input_layernorm", x), qk_norm="head"))
    return layer.add(x, layer.mlp(layer.norm("post_attention_layernorm", x)))


QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    layer=qwen3_layer,
    defaults={"max_position_embeddings": 32768, "head_dim": 128, **WINDOW_DEFAULTS},
    kinds=upper_sliding_if_enabled,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
)
