"""Mistral: Llama's layer, with a sliding window over every layer where the configuration sets one.

Source: Jiang et al. 2023, Mistral 7B, section 2.
"""

from __future__ import annotations

from trivium.models.architecture import Architecture
from trivium.models.layer_kinds import all_sliding_if_window
from trivium.models.llama import llama_layer

MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    layer=llama_layer,
    defaults={"max_position_embeddings": 131072, "sliding_window": 4096},
    kinds=all_sliding_if_window,
)
