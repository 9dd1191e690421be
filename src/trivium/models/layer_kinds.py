"""Which layers see a sliding window, from the several ways in which configurations say it.

A rule names the kind of each layer where a configuration has no `layer_types` list. Kinds are called as the list calls
them: `full_attention` and `sliding_attention`.
"""

from __future__ import annotations

from collections.abc import Callable

from trivium.base.errors import ModelError
from trivium.models.keys import LONGEST_SHOWN, Keys

FULL = "full_attention"
SLIDING = "sliding_attention"

KindRule = Callable[[Keys, int], list[str]]
"""(keys, number of layers) to one kind per layer."""


def all_full(_keys: Keys, num_layers: int) -> list[str]:
    """Every layer sees everything, whatever `sliding_window` says (Llama, OLMo 2)."""
    return [FULL] * num_layers


def all_sliding_if_window(keys: Keys, num_layers: int) -> list[str]:
    """Every layer slides where `sliding_window` is set (Mistral, Phi-3)."""
    return [SLIDING if keys.value("sliding_window") is not None else FULL] * num_layers


def upper_sliding_if_enabled(keys: Keys, num_layers: int) -> list[str]:
    """Layers from `max_window_layers` up slide where `use_sliding_window` is true (Qwen)."""
    if not keys.flag("use_sliding_window") or keys.value("sliding_window") is None:
        return [FULL] * num_layers
    first = keys.value("max_window_layers")
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise keys.refusal("max_window_layers", "a whole number of at least 0")
    return [SLIDING if layer >= first else FULL for layer in range(num_layers)]


def every_nth_full(keys: Keys, num_layers: int) -> list[str]:
    """Of every `sliding_window_pattern` layers the last sees everything (Gemma)."""
    key = "_sliding_window_pattern" if keys.has("_sliding_window_pattern") else "sliding_window_pattern"
    period = keys.count(key)
    return [SLIDING if (layer + 1) % period else FULL for layer in range(num_layers)]


def layer_kinds(keys: Keys, rule: KindRule, num_layers: int) -> list[str]:
    """Name the kind of each layer.

    Raises:
        ModelError: `layer_types` is malformed, names an unknown kind, or contradicts `use_sliding_window` or the rule
            of an architecture whose layers are all of one kind.
    """
    by_rule = rule(keys, num_layers)
    if not keys.has("layer_types"):
        return by_rule
    listed = keys.value("layer_types")
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise keys.refusal("layer_types", f"a list of {num_layers} layer kinds")
    unknown = [kind for kind in listed if kind not in (FULL, SLIDING)]
    if unknown:
        raise ModelError(f"'layer_types' holds {repr(unknown[0])[:LONGEST_SHOWN]}; known are {FULL} and {SLIDING}")
    if rule in {all_full, all_sliding_if_window} and listed != by_rule:
        raise keys.refusal("layer_types", f"{by_rule[0]} in every layer, which is what 'sliding_window' says")
    if SLIDING in listed and keys.value("use_sliding_window") is False:
        raise keys.refusal("use_sliding_window", f"true where 'layer_types' holds {SLIDING}")
    return list(listed)


def layer_windows(keys: Keys, kinds: list[str]) -> list[int | None]:
    """Give each layer its window in tokens, or `None`.

    Raises:
        ModelError: A layer slides and `sliding_window` is absent or not a count.
    """
    if SLIDING not in kinds:
        return [None] * len(kinds)
    window = keys.count("sliding_window")
    return [window if kind == SLIDING else None for kind in kinds]
