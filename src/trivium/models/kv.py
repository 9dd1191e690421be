"""How a model's keys and values lie in pages: one group for each window, because its layers forget together."""

from __future__ import annotations

from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.model import ModelConfig


def kv_spec(config: ModelConfig, *, page_len: int, element_bytes: int) -> KVSpec:
    """Describe the KV memory of a model.

    Args:
        config: The model; its layers are grouped by window, in order of first appearance.
        page_len: Tokens per page.
        element_bytes: Bytes of one element of K or V.
    """
    layers_of_window: dict[int | None, list[int]] = {}
    for index, layer in enumerate(config.layers):
        layers_of_window.setdefault(layer.window, []).append(index)
    bytes_per_layer = 2 * config.num_kv_heads * config.head_width * element_bytes
    groups = tuple(
        KVGroup(
            kind="full" if window is None else "window",
            layers=tuple(layers),
            bytes_per_token=len(layers) * bytes_per_layer,
            window=window,
        )
        for window, layers in layers_of_window.items()
    )
    return KVSpec(groups=groups, page_len=page_len)
