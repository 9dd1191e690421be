"""The shape of a model: what its checkpoint's configuration says, in one vocabulary.

`ModelConfig` is parsed from a Hugging Face `config.json` (a GGUF file's metadata is first turned into the same
layout), once, by `models.parse_config`. Everything behind it, graph building, KV sizing, plans, reads only this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of a kind of layer; unused fields keep their defaults."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    rotary_dim: int
    """Leading elements of each head that are rotated, at most the head width."""
    factor: float = 1.0
    original_max_positions: int
    """Context length the model was trained with, before scaling."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What may differ from layer to layer."""

    window: int | None = None
    """Sliding window in tokens (a token sees itself and window - 1 before it); `None` sees everything."""
    rope: RopeConfig | None
    """Rope of this layer; `None` for layers without positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Hyperparameters of a decoder, independent of checkpoint format.

    Letters of the docs: L layers, M model width, F feed-forward width, H query heads, G KV heads, D head width,
    V vocabulary.
    """

    architecture: str
    """Hugging Face architecture name, e.g. `LlamaForCausalLM`."""
    num_layers: int
    model_width: int
    ffn_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    vocab_size: int
    max_positions: int
    """Usable context in tokens, rope scaling included."""
    norm_eps: float
    activation: Activation = "silu"
    layers: tuple[LayerConfig, ...]
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    embed_scale: float = 1.0
    attention_scale: float
    """Factor on q·k, usually head_width ** -0.5."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
