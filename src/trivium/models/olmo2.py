"""OLMo 2: norms after each half instead of before, and queries and keys normed over all heads together.

Source: OLMo Team 2024, 2 OLMo 2 Furious, section 2.
"""

from __future__ import annotations

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope


def olmo2_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: norm after each half, inside the residual."""
    attended = layer.attention(x, qk_norm="full")
    x = layer.add(x, layer.norm("post_attention_layernorm", attended))
    return layer.add(x, layer.norm("post_feedforward_layernorm", layer.mlp(x)))


OLMO2 = Architecture(
    name="Olmo2ForCausalLM",
    model_type="olmo2",
    layer=olmo2_layer,
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    qkv_bias="attention_bias",
    out_bias="attention_bias",
)
