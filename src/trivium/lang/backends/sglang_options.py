"""Options of `Runtime` and `Engine`: those of `trivium serve` by their names, and SGLang's names for some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import ConfigError

RENAMED: Mapping[str, str] = {
    "model_path": "model",
    "tokenizer_path": "tokenizer",
    "context_length": "max_model_len",
    "mem_fraction_static": "kv_cache_fraction",
    "max_running_requests": "max_num_seqs",
    "max_queued_requests": "max_queue",
    "chunked_prefill_size": "max_num_batched_tokens",
    "schedule_policy": "order",
    "page_size": "page_len",
    "random_seed": "seed",
}
"""What SGLang calls options that have another name here."""
_ORDERS: Mapping[str, str] = {"dfs-weight": "dfs"}


def own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their own names; whether there are any of these names is checked where they are read.

    Raises:
        ConfigError: One is given by both of its names.
    """
    own: dict[str, Any] = {}
    for name, value in given.items():
        known, meant = RENAMED.get(name, name), value
        if name == "disable_radix_cache":
            known, meant = "prefix_cache", not value
        elif known == "order":
            meant = _ORDERS.get(str(value), value)
        if known in own:
            raise ConfigError(f"{name} and {known} are the same option; give one of them")
        own[known] = meant
    return own
