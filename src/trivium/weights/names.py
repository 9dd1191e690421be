"""Which tensor of a file holds which parameter, as tables: one list of rules per (architecture, file format).

A rule names a canonical parameter (Hugging Face's Llama names without the leading "model."), the file's tensor, and
how rows are taken from it: all, the rows of one part of a fused projection, or rows put back in order. `{n}` stands
for the layer number. Nothing here reads a byte.

Source: names as published by the transformers models and the gguf package's tensor tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import UnknownArchitectureError, ensure
from trivium.config.model import ModelConfig

Rows = NDArray[np.intp] | slice | None


class Part(Enum):
    """Which rows of the stored tensor make up the parameter, and in which order."""

    WHOLE = "whole"
    QUERY_PAIRS = "query pairs"
    """Query rows whose rotated pairs lie side by side in the file, as llama GGUF files store them."""
    KEY_PAIRS = "key pairs"
    QUERY = "query"
    """The first H * D rows of a fused q/k/v projection."""
    KEY = "key"
    VALUE = "value"
    GATE = "gate"
    """The first F rows of a fused gate/up projection."""
    UP = "up"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where one parameter comes from."""

    canonical: str
    stored: str
    part: Part = Part.WHOLE
    offset: float = 0.0
    """Added after dequantizing: Gemma's safetensors store norm weights less one."""


def rules_for(file_format: str, architecture: str) -> tuple[Rule, ...]:
    """Return the rules of a file.

    Args:
        file_format: `safetensors` or `gguf`.
        architecture: For safetensors the Hugging Face architecture name, for GGUF general.architecture.

    Raises:
        UnknownArchitectureError: There are no rules for this pair.
    """
    rules = _RULES.get((file_format, architecture))
    if rules is None:
        known = ", ".join(name for its_format, name in _RULES if its_format == file_format)
        raise UnknownArchitectureError(
            f"no tensor names are known for {file_format} of architecture {architecture!r}; known are {known}"
        )
    return rules


def expand(rules: tuple[Rule, ...], num_layers: int) -> dict[str, Rule]:
    """Write the rules out for every layer: canonical name to rule, both without `{n}`."""
    expanded: dict[str, Rule] = {}
    for rule in rules:
        layers = range(num_layers) if "{n}" in rule.canonical else range(1)
        for layer in layers:
            one = replace(
                rule,
                canonical=rule.canonical.replace("{n}", str(layer)),
                stored=rule.stored.replace("{n}", str(layer)),
            )
            expanded[one.canonical] = one
    return expanded


def stored_rows(part: Part, config: ModelConfig) -> int | None:
    """Return how many rows the stored tensor must have, or `None` when as many as the parameter."""
    if part in {Part.QUERY, Part.KEY, Part.VALUE}:
        return (config.num_heads + 2 * config.num_kv_heads) * config.head_width
    if part in {Part.GATE, Part.UP}:
        return 2 * config.ffn_width
    return None


def taken_rows(part: Part, config: ModelConfig) -> Rows:
    """Return the rows of the stored tensor, in the parameter's order."""
    query, key = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    # fused q/k/v   [0 .. query) [query .. query + key) [query + key .. query + 2 key)
    # fused gate/up [0 .. F)     [F .. 2F)
    ranges: Mapping[Part, Rows] = {
        Part.WHOLE: None,
        Part.QUERY: slice(0, query),
        Part.KEY: slice(query, query + key),
        Part.VALUE: slice(query + key, query + 2 * key),
        Part.GATE: slice(0, config.ffn_width),
        Part.UP: slice(config.ffn_width, 2 * config.ffn_width),
    }
    if part is Part.QUERY_PAIRS:
        return _unpaired(config.num_heads, config.head_width)
    if part is Part.KEY_PAIRS:
        return _unpaired(config.num_kv_heads, config.head_width)
    return ranges[part]


def _unpaired(num_heads: int, head_width: int) -> NDArray[np.intp]:
    # one head in the file   0 h 1 h+1 2 h+2 ...   (h = head_width / 2; a rotated pair side by side)
    # as a parameter         0 1 2 ... h h+1 h+2   (pairs h apart)
    ensure(head_width % 2 == 0, f"head width {head_width} is odd, so its rows have no pairs")
    stored = np.arange(num_heads * head_width, dtype=np.intp).reshape(num_heads, head_width // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)


def hub_prefix(names: Collection[str]) -> str:
    """Return what stands before `embed_tokens.weight` in a safetensors checkpoint.

    `model.` for a whole causal model, nothing for its decoder alone, and `language_model.model.` or
    `model.language_model.` for the text part of a multimodal one.
    """
    for prefix in HUB_PREFIXES:
        if f"{prefix}embed_tokens.weight" in names or f"{prefix}norm.weight" in names:
            return prefix
    return HUB_PREFIXES[0]


HUB_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")
_HEAD = "lm_head.weight"
_HEAD_NAMES = {"language_model.model.": f"language_model.{_HEAD}"}


def hub_name(stored: str, prefix: str) -> str:
    """Return a rule's tensor name as it stands in a checkpoint with this prefix."""
    return _HEAD_NAMES.get(prefix, _HEAD) if stored == _HEAD else prefix + stored


LEFTOVERS: tuple[tuple[str, str], ...] = (
    (r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)", "rope tables, which are computed here"),
    (r"rope_freqs\.weight|rope_factors_(long|short)\.weight", "rope factors, read into the configuration"),
    (r"blk\.\d+\.(attn_rot_embd|rope_freqs)(\.weight)?", "rope tables of old GGUF files"),
    (r"(.*\.)?self_attn\.(bias|masked_bias)", "causal-mask buffers of old checkpoints"),
    (r"(model\.)?(vision_tower|vision_model|multi_modal_projector|audio_tower)\..*", "parts that are not text"),
)
"""Tensors that may lie unused in a file (full-match patterns), and why; any other unused tensor is an error."""


def is_leftover(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that no rule asked for is known to be harmless."""
    if config.tie_embeddings and (name == _HEAD or name in _HEAD_NAMES.values()):
        return True  # a second copy of the embedding, which tied models do not read
    return any(re.fullmatch(pattern, name) for pattern, _ in LEFTOVERS)


_PROJECTIONS = tuple(f"self_attn.{name}_proj" for name in "qkvo")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS = (*_PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def _hub(
    *, norms: tuple[str, ...], matrices: tuple[str, ...] = _PROJECTIONS + _MLP, norm_offset: float = 0.0
) -> tuple[Rule, ...]:
    top = (Rule("embed_tokens.weight", "embed_tokens.weight"), Rule("norm.weight", "norm.weight", offset=norm_offset),
           Rule(_HEAD, _HEAD))  # fmt: skip
    layer = [f"layers.{{n}}.{name}" for name in norms]
    normed = tuple(Rule(f"{name}.weight", f"{name}.weight", offset=norm_offset) for name in layer)
    linear = tuple(
        Rule(f"layers.{{n}}.{name}.{kind}", f"layers.{{n}}.{name}.{kind}")
        for name in matrices
        for kind in ("weight", "bias")
    )
    return top + normed + linear


def _fused(prefix: str, fused_qkv: str, fused_mlp: str) -> tuple[Rule, ...]:
    parts = {
        "self_attn.q_proj": (fused_qkv, Part.QUERY),
        "self_attn.k_proj": (fused_qkv, Part.KEY),
        "self_attn.v_proj": (fused_qkv, Part.VALUE),
        "mlp.gate_proj": (fused_mlp, Part.GATE),
        "mlp.up_proj": (fused_mlp, Part.UP),
    }
    return tuple(
        Rule(f"layers.{{n}}.{name}.{kind}", f"{prefix}{stored}.{kind}", part)
        for name, (stored, part) in parts.items()
        for kind in ("weight", "bias")
    )


_GGUF_NAMES: Mapping[str, str] = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GGUF_PRE_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_GGUF_FOUR_NORMS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_GGUF_POST_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def _gguf(
    norms: Mapping[str, str],
    *,
    matrices: tuple[str, ...] = _PROJECTIONS + _MLP,
    qk_norms: tuple[str, ...] = (),
    parts: Mapping[str, Part] | None = None,
) -> tuple[Rule, ...]:
    top = (Rule("embed_tokens.weight", "token_embd.weight"), Rule("norm.weight", "output_norm.weight"),
           Rule(_HEAD, "output.weight"))  # fmt: skip
    names = {**norms, **{name: _GGUF_NAMES[name] for name in qk_norms}}
    normed = tuple(Rule(f"layers.{{n}}.{name}.weight", f"blk.{{n}}.{stored}.weight") for name, stored in names.items())
    linear = tuple(
        Rule(
            f"layers.{{n}}.{name}.{kind}", f"blk.{{n}}.{_GGUF_NAMES[name]}.{kind}", (parts or {}).get(name, Part.WHOLE)
        )
        for name in matrices
        for kind in ("weight", "bias")
    )
    return top + normed + linear


_PAIRED = {"self_attn.q_proj": Part.QUERY_PAIRS, "self_attn.k_proj": Part.KEY_PAIRS}
_UNFUSED = ("self_attn.o_proj", "mlp.down_proj")
_LLAMA = _hub(norms=_PRE_NORMS)
_GEMMA3 = _hub(norms=_FOUR_NORMS + _QK_NORMS, norm_offset=1.0)

_RULES: Mapping[tuple[str, str], tuple[Rule, ...]] = {
    ("safetensors", "LlamaForCausalLM"): _LLAMA,
    ("safetensors", "MistralForCausalLM"): _LLAMA,
    ("safetensors", "Qwen2ForCausalLM"): _LLAMA,
    ("safetensors", "Qwen3ForCausalLM"): _hub(norms=_PRE_NORMS + _QK_NORMS),
    ("safetensors", "Gemma2ForCausalLM"): _hub(norms=_FOUR_NORMS, norm_offset=1.0),
    ("safetensors", "Gemma3ForCausalLM"): _GEMMA3,
    ("safetensors", "Gemma3ForConditionalGeneration"): _GEMMA3,
    ("safetensors", "Phi3ForCausalLM"): (
        *_hub(norms=_PRE_NORMS, matrices=_UNFUSED),
        *_fused("layers.{n}.", "self_attn.qkv_proj", "mlp.gate_up_proj"),
    ),
    ("safetensors", "Olmo2ForCausalLM"): _hub(norms=_POST_NORMS + _QK_NORMS),
    ("gguf", "llama"): _gguf(_GGUF_PRE_NORMS, parts=_PAIRED),
    ("gguf", "qwen2"): _gguf(_GGUF_PRE_NORMS),
    ("gguf", "qwen3"): _gguf(_GGUF_PRE_NORMS, qk_norms=_QK_NORMS),
    ("gguf", "gemma2"): _gguf(_GGUF_FOUR_NORMS),
    ("gguf", "gemma3"): _gguf(_GGUF_FOUR_NORMS, qk_norms=_QK_NORMS),
    ("gguf", "phi3"): (*_gguf(_GGUF_PRE_NORMS, matrices=_UNFUSED), *_fused("blk.{n}.", "attn_qkv", "ffn_up")),
    ("gguf", "olmo2"): _gguf(_GGUF_POST_NORMS, qk_norms=_QK_NORMS),
}
