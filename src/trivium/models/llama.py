"""Llama 1 to 3.x, and the models that share its architecture: SmolLM, Yi, TinyLlama, Vicuna and others.

Source: Touvron et al. 2023, LLaMA, section 2.2.
"""

from __future__ import annotations

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope


def llama_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: norm before each half, residual around it."""
    x = layer.add(x, layer.attention(layer.norm("input_layernorm", x)))
    return layer.add(x, layer.mlp(layer.norm("post_attention_layernorm", x)))


LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    layer=llama_layer,
    defaults={"max_position_embeddings": 2048},
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    mlp_bias="mlp_bias",
)
