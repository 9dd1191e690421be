"""Small random LoRA adapters in peft's layout, written by the safetensors library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = dict[str, NDArray[Any]]

PREFIX = "base_model.model.model."


def module_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the [outputs, inputs] of the projections of each layer of a Llama-like config.json, by their names."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, query),
        "mlp.gate_proj": (ffn, width),
        "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
    }


def adapter_tensors(
    config: Mapping[str, Any],
    *,
    rank: int = 4,
    seed: int = 0,
    modules: Sequence[str] = ("q_proj", "v_proj"),
    gain: float = 0.5,
) -> Tensors:
    """Draw the matrices of some projections in every layer, under the names that peft gives them."""
    random = np.random.default_rng(seed)
    found: Tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (num_cols, depth) in module_shapes(config).items():
            if name.split(".")[1] in modules:
                at = f"{PREFIX}layers.{layer}.{name}"
                noise = random.standard_normal((rank, depth), np.float32)
                found[f"{at}.lora_A.weight"] = noise / np.float32(depth**0.5)
                found[f"{at}.lora_B.weight"] = np.float32(gain) * random.standard_normal((num_cols, rank), np.float32)
    return found


def write_adapter(
    folder: Path,
    config: Mapping[str, Any],
    *,
    tensors: Tensors | None = None,
    rank: int = 4,
    seed: int = 0,
    **says: Any,
) -> Path:
    """Write an adapter's folder.

    Args:
        folder: Made if it is not there.
        config: The base's config.json.
        tensors: Drawn for q_proj and v_proj when `None`.
        rank: Of what is drawn, and in the configuration.
        seed: Of what is drawn.
        says: What else stands in the configuration, or stands there otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "base_model_name_or_path": "tiny",
        **says,
    }
    (folder / "adapter_config.json").write_text(json.dumps(written), "utf-8")
    given = adapter_tensors(config, rank=rank, seed=seed) if tensors is None else tensors
    save_file(given, folder / "adapter_model.safetensors")
    return folder
