"""A tiny random model, and steps for it written the slow way: for tests of executors.

`Story` keeps what each request has run and where its pages are, and builds the step that runs some more tokens of some
requests. It allocates pages in any order asked for, so that tests can scatter them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.model import LayerConfig, ModelConfig, RopeConfig
from trivium.ir.builder import Builder
from trivium.ir.graph import Graph
from trivium.schedule.step import Step


def tiny_config(*, window: int | None = None, softcap: float | None = None, vocab_size: int = 61) -> ModelConfig:
    """Three layers, four heads over two KV heads; the middle layer has the window."""
    rope = RopeConfig(rotary_dim=8, original_max_positions=512)
    return ModelConfig(
        architecture="Tiny",
        num_layers=3,
        model_width=16,
        ffn_width=24,
        num_heads=4,
        num_kv_heads=2,
        head_width=8,
        vocab_size=vocab_size,
        max_positions=512,
        norm_eps=1e-5,
        layers=tuple(LayerConfig(window=window if layer == 1 else None, rope=rope) for layer in range(3)),
        tie_embeddings=True,
        attention_scale=8**-0.5,
        attention_softcap=softcap,
    )


def tiny_graph(config: ModelConfig, *, has_embeds: bool = False) -> Graph:
    """Write the model with every op that some architecture uses."""
    b = Builder(config.architecture)
    embedding = b.param("embed_tokens.weight", (config.vocab_size, config.model_width))
    embeds = b.input("embeds", ("T", config.model_width)) if has_embeds else None
    x = b.embed(b.input("token_ids"), embedding, embeds=embeds, scale=config.embed_scale)
    for layer in range(config.num_layers):
        x = b.add(x, _attention(b, config, layer, x))
        x = b.add(x, _mlp(b, config, layer, x))
    x = b.rms_norm(b.gather_rows(x, b.input("logit_rows")), b.param("norm.weight", (16,)), eps=config.norm_eps)
    b.output("logits", b.softcap(b.scale(b.gemm(x, embedding), 2.0), 30.0))
    return b.build()


def _attention(b: Builder, config: ModelConfig, layer: int, x: Any) -> Any:
    width, kv_width, at = config.num_heads * 8, config.num_kv_heads * 8, f"layers.{layer}"
    normed = b.rms_norm(x, b.param(f"{at}.input_layernorm.weight", (16,)), eps=config.norm_eps)
    merged = b.gemm(
        normed, b.param(f"{at}.qkv.weight", (width + 2 * kv_width, 16)), bias=b.param(f"{at}.qkv.bias", (64,))
    )
    q, k, v = b.split(merged, (width, kv_width, kv_width))
    q, k, v = b.reshape(q, ("T", 4, 8)), b.reshape(k, ("T", 2, 8)), b.reshape(v, ("T", 2, 8))
    q = b.rms_norm(q, b.param(f"{at}.q_norm.weight", (8,)), eps=config.norm_eps)
    rope = config.layers[layer].rope
    table = b.rope_table(b.input("positions"), b.input("reach"), rope=rope)
    kv = b.kv_write(b.rope(k, table), v, layer=layer)
    window = config.layers[layer].window
    scale, softcap = config.attention_scale, config.attention_softcap
    out = b.attention(b.rope(q, table), kv, layer=layer, scale=scale, window=window, softcap=softcap)
    return b.gemm(b.reshape(out, ("T", width)), b.param(f"{at}.o_proj.weight", (16, width)))


def _mlp(b: Builder, config: ModelConfig, layer: int, x: Any) -> Any:
    normed = b.rms_norm(x, b.param(f"layers.{layer}.post.weight", (16,)), eps=config.norm_eps)
    gate = b.gemm(normed, b.param(f"layers.{layer}.gate.weight", (24, 16)))
    up = b.gemm(normed, b.param(f"layers.{layer}.up.weight", (24, 16)))
    gated = b.gated(gate, up, activation="gelu_tanh" if layer == 1 else "silu")
    return b.gemm(gated, b.param(f"layers.{layer}.down.weight", (16, 24)))


def random_parameters(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw weights whose activations neither vanish nor explode."""
    rng = np.random.default_rng(seed)
    shapes = graph.param_shapes().items()
    return {
        name: (rng.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0)).astype(np.float32)
        for name, shape in shapes
    }


def tiny_spec(config: ModelConfig, *, page_len: int, is_windowed: bool = False) -> KVSpec:
    """Put all layers in one group, or the layers with a window in a group of their own."""
    windows = {layer: config.layers[layer].window for layer in range(config.num_layers)}
    per_layer = 2 * config.num_kv_heads * config.head_width * 4
    full = tuple(layer for layer, window in windows.items() if window is None or not is_windowed)
    groups = [KVGroup("full", full, per_layer * len(full))]
    if is_windowed:
        seen = tuple(layer for layer in windows if layer not in full)
        groups.append(KVGroup("window", seen, per_layer * len(seen), windows[seen[0]]))
    return KVSpec(tuple(groups), page_len)


@dataclass
class RunningRequest:
    """What one request has run, and its pages in each group."""

    tokens: list[int]
    reach: int
    computed_len: int = 0
    pages: list[list[int]] = field(default_factory=list)


@dataclass
class Story:
    """Builds steps for requests whose pages come from `free`, in that order."""

    spec: KVSpec
    free: list[list[int]]
    """Per group, pages not given out yet; taken from the end."""

    def start(self, tokens: list[int], reach: int | None = None) -> RunningRequest:
        """Begin a request that has no pages yet."""
        return RunningRequest(tokens, reach or len(tokens), pages=[[] for _ in self.spec.groups])

    def step(self, parts: list[tuple[RunningRequest, int]], *, rows: str = "all", copies: Any = ()) -> Step:
        """Build the step that runs `count` more tokens of each request, and count them as computed."""
        runs, logit_rows, token_idx = [], [], 0
        for request, count in parts:
            start, end = request.computed_len, request.computed_len + count
            request.computed_len = end
            self._hold_pages(request)
            runs.append((request, start, end))
            logit_rows += range(token_idx, token_idx + count) if rows == "all" else [token_idx + count - 1]
            token_idx += count
        step = flat_step(runs, self.spec)
        step.logit_rows = np.array(logit_rows if rows != "none" else [], np.int32)
        step.mask_row = np.full(len(step.logit_rows), -1, np.int32)
        step.copies = np.array(copies, np.int32).reshape(-1, 3)
        return step

    def _hold_pages(self, request: RunningRequest) -> None:
        for held, free in zip(request.pages, self.free, strict=True):
            while len(held) * self.spec.page_len < request.computed_len:
                held.append(free.pop())

    def drop_out_of_window(self, request: RunningRequest) -> None:
        """Give back pages of window groups that no later token sees, and put -1 in their place."""
        for group, held, free in zip(self.spec.groups, request.pages, self.free, strict=True):
            if group.window is None:
                continue
            first_seen = max(request.computed_len - group.window + 1, 0)
            for column in range(first_seen // self.spec.page_len):
                if held[column] >= 0:
                    free.append(held[column])
                    held[column] = -1


def flat_step(runs: list[tuple[RunningRequest, int, int]], spec: KVSpec) -> Step:
    """Pack token ranges of requests into flat arrays; no logits rows."""
    counts = [end - start for _, start, end in runs]
    tables = []
    for group_idx in range(len(spec.groups)):
        width = max(len(request.pages[group_idx]) for request, _, _ in runs)
        rows = [request.pages[group_idx] + [-1] * (width - len(request.pages[group_idx])) for request, _, _ in runs]
        tables.append(np.array(rows, np.int32))
    return Step(
        token_ids=np.concatenate([np.array(request.tokens[start:end], np.int32) for request, start, end in runs]),
        positions=np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end in runs]),
        starts=np.cumsum([0, *counts]).astype(np.int32),
        kv_lens=np.array([end for _, _, end in runs], np.int32),
        reaches=np.array([request.reach for request, _, _ in runs], np.int32),
        page_tables=tuple(tables),
        logit_rows=np.zeros(0, np.int32),
        mask_row=np.zeros(0, np.int32),
        adapter_slot=np.full(len(runs), -1, np.int32),
        state_slot=np.full(len(runs), -1, np.int32),
    )


class ExactKernels:
    """Products as one multiply and one add per k, k ascending: slow, and plainly row-independent."""

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """Keep the weight."""
        return weight

    def unpack_rows(self, packed: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Rows of [N, K]."""
        return packed[ids]

    def gemm(self, a: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """[M, K] times [N, K] -> [M, N]."""
        return self.matmul_nt(a[None], packed[None])[0]

    def matmul_nt(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """[B, M, K] times [B, N, K] -> [B, M, N]."""
        return self.matmul_nn(a, np.swapaxes(b, 1, 2))

    def matmul_nn(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """[B, M, K] times [B, K, N] -> [B, M, N]."""
        out = np.zeros((len(a), a.shape[1], b.shape[2]), np.float32)
        for k in range(a.shape[2]):
            out += a[:, :, k, None] * b[:, None, k, :]
        return out
