"""Gemma 3: Gemma 2's layer with QK norm in place of soft caps; five local layers, with their own theta, per global.

Source: Gemma Team 2025, Gemma 3 Technical Report, section 2.
"""

from __future__ import annotations

from dataclasses import replace

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope
from trivium.models.gemma2 import GEMMA_DEFAULTS, gemma_layer
from trivium.models.layer_kinds import every_nth_full
from trivium.models.parse_rope import RopeRules


def gemma3_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: Gemma's layer with QK norm over each head."""
    return gemma_layer(layer, x, qk_norm="head")


GEMMA3 = Architecture(
    name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    layer=gemma3_layer,
    defaults={
        **GEMMA_DEFAULTS,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    kinds=every_nth_full,
    rope=RopeRules(local_theta_key="rope_local_base_freq", positions_include_scaling=True),
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    activation_key="hidden_activation",
    scales_embeddings=True,
    query_scale_key="query_pre_attn_scalar",
    has_softcaps=True,
)

GEMMA3_MULTIMODAL = replace(GEMMA3, name="Gemma3ForConditionalGeneration", model_type="gemma3", text_key="text_config")
"""The text model inside; images are refused where requests enter."""
