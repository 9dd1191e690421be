"""Phi-3, Phi-3.5 and Phi-4-mini: Llama's layer; rope may turn a part of each head, and is stretched by longrope.

The checkpoints' fused projections are split when weights are bound. Source: Abdin et al. 2024, Phi-3 Technical Report,
section 2.
"""

from __future__ import annotations

from trivium.models.architecture import Architecture
from trivium.models.layer_kinds import all_sliding_if_window
from trivium.models.llama import llama_layer
from trivium.models.parse_rope import RopeRules

PHI3 = Architecture(
    name="Phi3ForCausalLM",
    model_type="phi3",
    layer=llama_layer,
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    kinds=all_sliding_if_window,
    # Early Phi-3 configurations call longrope "su" or "yarn".
    rope=RopeRules(can_rotate_part=True, spellings={"yarn": "longrope"}),
)
