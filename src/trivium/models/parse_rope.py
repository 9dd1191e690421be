"""Rope settings, from both spellings: `rope_scaling` beside `rope_theta`, and the newer `rope_parameters`.

::

    older    rope_theta, partial_rotary_factor, rope_scaling {type | rope_type, factor, ...}
             rope_local_base_freq (sliding layers of Gemma 3, which rope_scaling does not reach)
    newer    rope_parameters {rope_type, rope_theta, partial_rotary_factor, factor, ...}
    nested   rope_parameters {full_attention {...}, sliding_attention {...}}

A value given in two places must be the same in both. A kind or a key that is not known is refused by name, because
ignoring it would change what the model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import ModelError
from trivium.config.model import RopeConfig, RopeKind
from trivium.models.keys import Keys
from trivium.models.layer_kinds import FULL, SLIDING

_SPELLINGS: Mapping[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
_COMMON_KEYS = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor", "factor"})
_YARN_KEYS = frozenset({
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "finetuned",
})
_LLAMA3_KEYS = frozenset({"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"})
_LONGROPE_KEYS = frozenset({"short_factor", "long_factor"})
_KNOWN_KEYS = _COMMON_KEYS | _YARN_KEYS | _LLAMA3_KEYS | _LONGROPE_KEYS
LEAST_ROTARY_DIM = 2
ROUNDING = 1e-6
"""Makes 80 * (28 / 80) the 28 that it was."""
_DEFAULTS: Mapping[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeRules:
    """What an architecture fixes about its rope."""

    can_rotate_part: bool = False
    """Whether `partial_rotary_factor` below 1 is meant."""
    local_theta_key: str | None = None
    """Key of the theta of sliding layers, which no scaling reaches; `None` where all layers share one rope."""
    positions_include_scaling: bool = False
    """Whether `max_position_embeddings` already counts linear or dynamic scaling."""
    spellings: Mapping[str, RopeKind] | None = None
    """Names that mean another kind here than elsewhere."""


def parse_rope(keys: Keys, rules: RopeRules, kind: str, head_width: int) -> RopeConfig:
    """Read the rope of one kind of layer.

    Args:
        keys: The model's configuration.
        rules: What the architecture fixes.
        kind: `full_attention` or `sliding_attention`.
        head_width: Width of a head, of which the rotated part is taken.

    Raises:
        ModelError: A kind or key is unknown, a needed key is absent, or two values contradict each other.
    """
    is_local = kind == SLIDING and rules.local_theta_key is not None
    given = _section(keys, kind, is_local=is_local)
    unknown = sorted(set(given) - _KNOWN_KEYS)
    if unknown:
        raise ModelError(f"rope parameters hold unknown '{unknown[0]}', which cannot be honoured")
    section = Keys(given, defaults=_DEFAULTS, where="rope parameters")
    theta_key = rules.local_theta_key if is_local and rules.local_theta_key else "rope_theta"
    theta = _checked_theta(_agreed(section, "rope_theta", keys, theta_key), theta_key)
    share = _agreed(section, "partial_rotary_factor", keys, "partial_rotary_factor", default=1.0)
    rope_kind = _kind(section, rules)
    rotary_dim = _rotary_dim(share, head_width, rules)
    original = _original_positions(section, keys, rope_kind)
    return RopeConfig(
        kind=rope_kind,
        theta=theta,
        rotary_dim=rotary_dim,
        original_max_positions=original,
        **_scaling(section, rope_kind, rotary_dim, keys.count("max_position_embeddings") / original),
    )


def usable_positions(max_position_embeddings: int, rope: RopeConfig, rules: RopeRules) -> int:
    """Return the context in tokens that `rope` makes of a configured one.

    Linear and dynamic scaling multiply what the configuration says, unless the architecture counts it in. Yarn
    multiplies the original context. The others are configured with the context they reach.
    """
    if rope.kind in {"linear", "dynamic"} and not rules.positions_include_scaling:
        return int(max_position_embeddings * rope.factor)
    if rope.kind == "yarn":
        return max(max_position_embeddings, int(rope.original_max_positions * rope.factor))
    return max_position_embeddings


def _section(keys: Keys, kind: str, *, is_local: bool) -> Mapping[str, Any]:
    """Find the settings of one kind of layer, null values left out; empty where nothing is set."""
    newer, older = keys.value("rope_parameters"), keys.value("rope_scaling")
    for key, value in (("rope_parameters", newer), ("rope_scaling", older)):
        if value is not None and not isinstance(value, Mapping):
            raise keys.refusal(key, "an object")
    if newer and older and newer != older:
        raise ModelError("'rope_parameters' and 'rope_scaling' are both set and differ; keep one")
    chosen = newer or older or {}
    if FULL in chosen or SLIDING in chosen:
        chosen = chosen.get(kind) or {}
        if not isinstance(chosen, Mapping):
            raise keys.refusal("rope_parameters", f"an object under '{kind}'")
    elif is_local:
        chosen = {}
    return {key: value for key, value in chosen.items() if value is not None}


def _agreed(section: Keys, key: str, keys: Keys, outer_key: str, *, default: float | None = None) -> float:
    """Read a number that may stand inside the section, outside, or (equal) in both."""
    outer = keys.optional_number(outer_key)
    inner = section.optional_number(key)
    if inner is not None and outer is not None and keys.has(outer_key) and inner != outer:
        raise ModelError(f"'{outer_key}' is {outer:g} but '{key}' among the rope parameters is {inner:g}; keep one")
    chosen = inner if inner is not None else outer if outer is not None else default
    if chosen is None:
        raise ModelError(f"the configuration lacks '{outer_key}'")
    return chosen


def _checked_theta(theta: float, key: str) -> float:
    if theta <= 1.0:
        raise ModelError(f"'{key}' is {theta:g}; it must be above 1, so that wavelengths grow")
    return theta


def _kind(section: Keys, rules: RopeRules) -> RopeKind:
    spellings = {**_SPELLINGS, **(rules.spellings or {})}
    kinds = [section.choice(key, spellings) for key in ("rope_type", "type") if section.has(key)]
    if len(set(kinds)) > 1:
        raise section.refusal("type", f"the same as 'rope_type' ({section.value('rope_type')!r})")
    kind: RopeKind = kinds[0] if kinds else "default"
    return kind


def _rotary_dim(share: float, head_width: int, rules: RopeRules) -> int:
    if share != 1.0 and not rules.can_rotate_part:
        raise ModelError(f"'partial_rotary_factor' is {share:g}; this architecture rotates whole heads")
    rotary_dim = int(head_width * share + ROUNDING)
    if rotary_dim % 2 or not LEAST_ROTARY_DIM <= rotary_dim <= head_width:
        raise ModelError(f"rope would rotate {rotary_dim} of {head_width} elements; it must be an even number from 2")
    return rotary_dim


def _original_positions(section: Keys, keys: Keys, kind: RopeKind) -> int:
    key = "original_max_position_embeddings"
    configured = keys.count("max_position_embeddings")
    if kind in {"default", "linear"}:
        return configured
    inner, outer = section.optional_count(key), keys.optional_count(key) if keys.has(key) else None
    if inner is not None and outer is not None and inner != outer:
        raise ModelError(f"'{key}' is {outer} but {inner} among the rope parameters; keep one")
    original = inner or outer or configured
    if kind == "longrope" and original == 1:
        raise ModelError(f"'{key}' is 1; longrope needs an original context of at least 2")
    if kind == "dynamic" and original != configured:
        raise ModelError(f"'{key}' is {original}; dynamic scaling starts at 'max_position_embeddings' ({configured})")
    return original


def _scaling(section: Keys, kind: RopeKind, rotary_dim: int, ratio: float) -> dict[str, Any]:
    """Read the keys that only some kinds have; `ratio` is configured over original context."""
    if kind == "default":
        return {}
    if kind == "dynamic" and rotary_dim == LEAST_ROTARY_DIM:
        raise ModelError("dynamic rope needs heads wider than 2")
    can_derive_factor = kind in {"yarn", "longrope"}
    factor = (
        section.optional_number("factor", at_least=1.0) if can_derive_factor else section.number("factor", at_least=1.0)
    )
    scaling: dict[str, Any] = {"factor": ratio if factor is None else factor}
    if kind == "llama3":
        scaling["low_freq_factor"] = section.number("low_freq_factor")
        scaling["high_freq_factor"] = section.number("high_freq_factor")
        if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            raise section.refusal("high_freq_factor", "above 'low_freq_factor'")
    if kind in {"yarn", "longrope"}:
        scaling["attention_factor"] = section.optional_number("attention_factor")
    if kind == "yarn":
        scaling["beta_fast"], scaling["beta_slow"] = section.number("beta_fast"), section.number("beta_slow")
        scaling["mscale"] = _unsigned(section, "mscale")
        scaling["mscale_all_dim"] = _unsigned(section, "mscale_all_dim")
        scaling["truncate"] = section.flag("truncate")
    if kind == "longrope":
        scaling["short_factor"] = section.numbers("short_factor", length=rotary_dim // 2)
        scaling["long_factor"] = section.numbers("long_factor", length=rotary_dim // 2)
    return scaling


def _unsigned(section: Keys, key: str) -> float | None:
    """Read a number of which 0 means absent."""
    return None if section.value(key) == 0 else section.optional_number(key)
