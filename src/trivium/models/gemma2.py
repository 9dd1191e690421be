"""Gemma 2: norms before and after each half, soft caps on attention scores and logits, alternating windows.

Source: Gemma Team 2024, Gemma 2, section 2.
"""

from __future__ import annotations

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope, QKNorm
from trivium.models.layer_kinds import every_nth_full


def gemma_layer(layer: LayerScope, x: Value, *, qk_norm: QKNorm) -> Value:
    """[T, M] -> [T, M]: norm before and after each half, residual around both norms."""
    attended = layer.attention(layer.norm("input_layernorm", x), qk_norm=qk_norm)
    x = layer.add(x, layer.norm("post_attention_layernorm", attended))
    fed = layer.mlp(layer.norm("pre_feedforward_layernorm", x))
    return layer.add(x, layer.norm("post_feedforward_layernorm", fed))


def gemma2_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: Gemma's layer without QK norm."""
    return gemma_layer(layer, x, qk_norm="none")


GEMMA_DEFAULTS = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

GEMMA2 = Architecture(
    name="Gemma2ForCausalLM",
    model_type="gemma2",
    layer=gemma2_layer,
    defaults={
        **GEMMA_DEFAULTS,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    kinds=every_nth_full,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    activation_key="hidden_activation",
    scales_embeddings=True,
    query_scale_key="query_pre_attn_scalar",
    has_softcaps=True,
)
