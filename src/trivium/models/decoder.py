"""The frame that all decoders share: embed, layers, wanted rows, last norm, head. Architectures write the layer.

::

    token_ids ─ embed ─ layer 0 ─ ... ─ layer L-1 ─ gather wanted rows ─ norm ─ lm_head ─ (scale, soft cap) ─ logits
                          │
                 rope tables, one per distinct rope, shared by its layers

`LayerScope` names parameters and offers the two halves of a layer; in which order they are normed and added is what
tells architectures apart, and stands in their own files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trivium.config.model import ModelConfig, RopeConfig
from trivium.ir.builder import Builder
from trivium.ir.graph import Graph, Value

QKNorm = Literal["none", "head", "full"]
"""RMS norm of queries and keys: not at all, over each head, or over all heads together."""


@dataclass(frozen=True, slots=True)
class LayerScope:
    """One layer while it is written: the builder, the sizes, and the prefix of its parameter names."""

    b: Builder
    config: ModelConfig
    index: int
    rope_table: Value | None
    """[T, 2, rotary_dim / 2], or `None` where the layer has no positions."""

    def add(self, x: Value, change: Value) -> Value:
        """[T, M] twice -> [T, M]: the residual sum."""
        return self.b.add(x, change)

    def norm(self, name: str, x: Value, width: int | None = None) -> Value:
        """[..., N] -> [..., N]: RMS norm with the layer's parameter `name`; N is `width`, by default M."""
        weight = self._param(f"{name}.weight", (width or self.config.model_width,))
        return self.b.rms_norm(x, weight, eps=self.config.norm_eps)

    def attention(self, x: Value, *, qk_norm: QKNorm = "none") -> Value:
        """[T, M] -> [T, M]: projections, rope, KV write, attention over the request's KV, output projection."""
        b, config = self.b, self.config
        q_width, kv_width = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
        q = self._linear("self_attn.q_proj", x, (q_width, config.model_width), has_bias=config.qkv_bias)
        k = self._linear("self_attn.k_proj", x, (kv_width, config.model_width), has_bias=config.qkv_bias)
        v = self._linear("self_attn.v_proj", x, (kv_width, config.model_width), has_bias=config.qkv_bias)
        if qk_norm == "full":
            q = self.norm("self_attn.q_norm", q, q_width)
            k = self.norm("self_attn.k_norm", k, kv_width)
        q, k, v = (
            self._heads(q, config.num_heads),
            self._heads(k, config.num_kv_heads),
            self._heads(v, config.num_kv_heads),
        )
        if qk_norm == "head":
            q = self.norm("self_attn.q_norm", q, config.head_width)
            k = self.norm("self_attn.k_norm", k, config.head_width)
        if self.rope_table is not None:
            q, k = b.rope(q, self.rope_table), b.rope(k, self.rope_table)
        attended = b.attention(
            q,
            b.kv_write(k, v, layer=self.index),
            layer=self.index,
            scale=config.attention_scale,
            window=config.layers[self.index].window,
            softcap=config.attention_softcap,
        )
        merged = b.reshape(attended, ("T", q_width))
        return self._linear("self_attn.o_proj", merged, (config.model_width, q_width), has_bias=config.out_bias)

    def mlp(self, x: Value) -> Value:
        """[T, M] -> [T, M]: down(activation(gate(x)) * up(x))."""
        config = self.config
        widen = (config.ffn_width, config.model_width)
        gate = self._linear("mlp.gate_proj", x, widen, has_bias=config.mlp_bias)
        up = self._linear("mlp.up_proj", x, widen, has_bias=config.mlp_bias)
        gated = self.b.gated(gate, up, activation=config.activation)
        return self._linear("mlp.down_proj", gated, widen[::-1], has_bias=config.mlp_bias)

    def _heads(self, x: Value, num_heads: int) -> Value:
        return self.b.reshape(x, ("T", num_heads, self.config.head_width))

    def _linear(self, name: str, x: Value, shape: tuple[int, int], *, has_bias: bool) -> Value:
        weight = self._param(f"{name}.weight", shape)
        bias = self._param(f"{name}.bias", shape[:1]) if has_bias else None
        return self.b.gemm(x, weight, bias=bias)

    def _param(self, name: str, shape: tuple[int, ...]) -> Value:
        return self.b.param(f"layers.{self.index}.{name}", shape)


LayerFunction = Callable[[LayerScope, Value], Value]


def build_decoder(config: ModelConfig, layer: LayerFunction) -> Graph:
    """Write a decoder whose layers `layer` writes.

    Returns:
        A verified graph with one output, `logits` [R, V].
    """
    b = Builder(config.architecture)
    embedding = b.param("embed_tokens.weight", (config.vocab_size, config.model_width))
    embeds = b.input("embeds", ("T", config.model_width))
    x = b.embed(b.input("token_ids"), embedding, embeds=embeds, scale=config.embed_scale)
    tables = _rope_tables(b, config)
    for index, of_layer in enumerate(config.layers):
        x = layer(LayerScope(b, config, index, tables.get(of_layer.rope)), x)
    wanted = b.gather_rows(x, b.input("logit_rows"))
    normed = b.rms_norm(wanted, b.param("norm.weight", (config.model_width,)), eps=config.norm_eps)
    b.output("logits", _head(b, config, normed, embedding))
    return b.build()


def _rope_tables(b: Builder, config: ModelConfig) -> dict[RopeConfig | None, Value]:
    tables: dict[RopeConfig | None, Value] = {}
    for of_layer in config.layers:
        if of_layer.rope is not None and of_layer.rope not in tables:
            tables[of_layer.rope] = b.rope_table(b.input("positions"), b.input("reach"), rope=of_layer.rope)
    return tables


def _head(b: Builder, config: ModelConfig, x: Value, embedding: Value) -> Value:
    shape = (config.vocab_size, config.model_width)
    logits = b.gemm(x, embedding if config.tie_embeddings else b.param("lm_head.weight", shape))
    if config.logit_scale != 1.0:
        logits = b.scale(logits, config.logit_scale)
    if config.logit_softcap is not None:
        logits = b.softcap(logits, config.logit_softcap)
    return logits
