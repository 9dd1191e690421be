"""From a `config.json` to a `ModelConfig`: one table-driven reader for all architectures.

What differs between architectures is in their `Architecture` rows. A value that is unknown, contradictory or outside
its limits is an error that names the key; nothing that would change the model's numbers is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trivium.base.errors import ModelError
from trivium.config.model import Activation, LayerConfig, ModelConfig
from trivium.models.architecture import Architecture, BiasRule
from trivium.models.keys import Keys
from trivium.models.layer_kinds import FULL, layer_kinds, layer_windows
from trivium.models.parse_rope import parse_rope, usable_positions
from trivium.models.registry import find_architecture
from trivium.weights.zero_points import layout_of

COMMON_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_OUTER_KEYS = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
MOST_LAYERS = 1024
WIDEST = 1 << 20


def parse_config(hf_config: Mapping[str, Any]) -> ModelConfig:
    """Read a model's configuration.

    Args:
        hf_config: Content of a `config.json`; of a GGUF file, its metadata in the same layout.

    Raises:
        UnknownArchitectureError: There is no definition for the architecture.
        ModelError: A key is absent, malformed, contradictory, or asks for what is not supported.
    """
    return parse_as(find_architecture(hf_config), hf_config)


def parse_as(architecture: Architecture, hf_config: Mapping[str, Any]) -> ModelConfig:
    """Read a model's configuration by the rules of `architecture`, whatever it calls itself.

    Raises:
        ModelError: A key is absent, malformed, contradictory, or asks for what is not supported.
    """
    keys = _text_keys(hf_config, architecture)
    _refuse_unsupported(keys, architecture)
    num_heads, num_kv_heads, head_width = _heads(keys)
    query_scale = keys.number(architecture.query_scale_key) if architecture.query_scale_key else float(head_width)
    layers, max_positions = _layers(keys, architecture, head_width)
    model_width = keys.count("hidden_size", largest=WIDEST)
    activation: Activation = keys.choice(architecture.activation_key, _ACTIVATIONS)
    has_caps = architecture.has_softcaps
    return ModelConfig(
        architecture=architecture.name,
        num_layers=len(layers),
        model_width=model_width,
        ffn_width=keys.count("intermediate_size", largest=WIDEST),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_width=head_width,
        vocab_size=keys.count("vocab_size", largest=1 << 24),
        max_positions=max_positions,
        norm_eps=keys.number("rms_norm_eps"),
        activation=activation,
        layers=layers,
        tie_embeddings=keys.flag("tie_word_embeddings"),
        qkv_bias=_has_bias(keys, architecture.qkv_bias),
        out_bias=_has_bias(keys, architecture.out_bias),
        mlp_bias=_has_bias(keys, architecture.mlp_bias),
        embed_scale=math.sqrt(model_width) if architecture.scales_embeddings else 1.0,
        attention_scale=query_scale**-0.5,
        attention_softcap=keys.optional_number("attn_logit_softcapping") if has_caps else None,
        logit_softcap=keys.optional_number("final_logit_softcapping") if has_caps else None,
        bos_token_id=_token_id(keys, "bos_token_id", keys.value("bos_token_id")),
        eos_token_ids=_eos_token_ids(keys),
    )


def _text_keys(hf_config: Mapping[str, Any], architecture: Architecture) -> Keys:
    """View the keys of the text model; what a multimodal configuration says outside of it counts where it belongs."""
    values = dict(hf_config)
    if architecture.text_key is not None:
        text = values.get(architecture.text_key)
        if not isinstance(text, Mapping):
            raise ModelError(f"{architecture.name}: '{architecture.text_key}' is {text!r}; it must be an object")
        outer = {key: values[key] for key in _OUTER_KEYS if values.get(key) is not None}
        values = {**text, **outer}
    return Keys(values, defaults={**COMMON_DEFAULTS, **architecture.defaults}, where=architecture.name)


def _refuse_unsupported(keys: Keys, architecture: Architecture) -> None:
    """Refuse what is known to change the model's numbers and has no place in this architecture."""
    if keys.has("quantization_config"):
        layout_of({"quantization_config": keys.value("quantization_config")}, architecture.name)
    if keys.value("use_bidirectional_attention"):
        raise keys.refusal("use_bidirectional_attention", "false; only causal attention is supported")
    rules = {architecture.qkv_bias, architecture.out_bias, architecture.mlp_bias}
    for key in ("attention_bias", "mlp_bias"):
        if keys.value(key) and key not in rules:
            raise keys.refusal(key, "false; this architecture has no such biases")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if keys.has(key) and not architecture.has_softcaps:
            raise keys.refusal(key, "absent; this architecture has no soft caps")


def _heads(keys: Keys) -> tuple[int, int, int]:
    """Read query heads, KV heads and head width."""
    num_heads = keys.count("num_attention_heads", largest=WIDEST)
    num_kv_heads = keys.optional_count("num_key_value_heads", largest=WIDEST) or num_heads
    if num_heads % num_kv_heads:
        raise keys.refusal("num_key_value_heads", f"a divisor of 'num_attention_heads' ({num_heads})")
    head_width = keys.optional_count("head_dim", largest=WIDEST)
    if head_width is None:
        if keys.count("hidden_size", largest=WIDEST) % num_heads:
            raise keys.refusal(
                "hidden_size", f"a multiple of 'num_attention_heads' ({num_heads}) where 'head_dim' is absent"
            )
        head_width = keys.count("hidden_size", largest=WIDEST) // num_heads
    return num_heads, num_kv_heads, head_width


def _layers(keys: Keys, architecture: Architecture, head_width: int) -> tuple[tuple[LayerConfig, ...], int]:
    """Read each layer's window and rope, and the context that the least windowed kind of layer allows."""
    kinds = layer_kinds(keys, architecture.kinds, keys.count("num_hidden_layers", largest=MOST_LAYERS))
    ropes = {kind: parse_rope(keys, architecture.rope, kind, head_width) for kind in sorted(set(kinds))}
    windows = layer_windows(keys, kinds)
    layers = tuple(LayerConfig(window=window, rope=ropes[kind]) for kind, window in zip(kinds, windows, strict=True))
    widest = ropes.get(FULL, ropes[kinds[0]])
    return layers, usable_positions(keys.count("max_position_embeddings"), widest, architecture.rope)


def _has_bias(keys: Keys, rule: BiasRule) -> bool:
    return keys.flag(rule) if isinstance(rule, str) else rule


def _eos_token_ids(keys: Keys) -> tuple[int, ...]:
    value = keys.value("eos_token_id")
    listed = value if isinstance(value, (list, tuple)) else [value]
    ids = (_token_id(keys, "eos_token_id", token_id) for token_id in listed)
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _token_id(keys: Keys, key: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise keys.refusal(key, "a token id, a list of them (end tokens), or null")
    return value
