"""Rotary position embedding: the inverse frequencies of every kind, and the table of a step.

A table row belongs to one token and depends on that token's position and its request's reach only, never on what else
is in the step: kinds whose frequencies change with the sequence length (dynamic, longrope) choose them by reach.

*Reach* is the longest length the request may ever have, fixed at arrival: prompt plus `max_tokens`, at most
`max_model_len`. A request whose reach stays within `original_max_positions` runs on the unscaled (short) frequencies
from its first token to its last; any other runs on the scaled (long) ones, likewise from the first token on. Keys that
were rotated once therefore never have to be rotated again. The price is that the largest `max_tokens` decides the
table: lowering `max_model_len` to `original_max_positions` keeps every request on the short one. A prefix may be shared
only by requests with equal `rope_variant`, which is why that value is part of the cache namespace.

Frequencies and angles are float32, the precision in which these models were trained; sines and cosines are
computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trivium.config.model import RopeConfig, RopeKind

    Float32Array = NDArray[np.float32]


def rope_variant(rope: RopeConfig, reach: int) -> int:
    """Name the table that a request of this reach uses; equal names mean equal tables.

    Args:
        rope: One layer kind's rope.
        reach: Longest length of the request in tokens.

    Returns:
        0 for the unscaled table of dynamic and longrope, and for kinds that have one table; 1 for longrope's long
        table; the reach itself for dynamic, where each length has its own table.
    """
    if rope.kind not in {"dynamic", "longrope"} or reach <= rope.original_max_positions:
        return 0
    return reach if rope.kind == "dynamic" else 1


def rope_frequencies(rope: RopeConfig, reach: int) -> tuple[Float32Array, float]:
    """Compute the frequencies of one table.

    Args:
        rope: One layer kind's rope.
        reach: Longest length of the request in tokens.

    Returns:
        Inverse frequencies [rotary_dim / 2] in radians per position (read-only), and the factor on sine and cosine.
    """
    return _frequencies(rope, rope_variant(rope, reach))


def rope_angles(rope: RopeConfig, positions: ArrayLike, reaches: ArrayLike, xp: Any = np) -> Any:
    """Build the rope table of a step.

    Args:
        rope: One layer kind's rope.
        positions: [T] position of each token, in host memory.
        reaches: [T] reach of each token's request, in host memory.
        xp: Array library of the result, as an array-API namespace.

    Returns:
        float32 [T, 2, rotary_dim / 2]: cosines, then sines, both times the attention factor; on `xp`'s default device.
    """
    position_column = np.asarray(positions, np.float32)[:, None]
    reach_of_token = np.asarray(reaches, np.int64)
    if rope.kind in {"dynamic", "longrope"}:
        distinct, row_of_token = np.unique(reach_of_token, return_inverse=True)
        rows = [rope_frequencies(rope, int(reach)) for reach in distinct]
        frequencies = np.stack([row for row, _ in rows])[row_of_token] if rows else _no_rows(rope)
        scale = rows[0][1] if rows else 1.0
    else:
        frequencies, scale = rope_frequencies(rope, 0)
    angles = (position_column * frequencies).astype(np.float64)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return xp.asarray(table * np.float32(scale))


def _no_rows(rope: RopeConfig) -> Float32Array:
    return np.zeros((0, rope.rotary_dim // 2), np.float32)


@lru_cache(maxsize=1024)
def _frequencies(rope: RopeConfig, variant: int) -> tuple[Float32Array, float]:
    frequencies, scale = _KINDS[rope.kind](rope, variant)
    frequencies.flags.writeable = False
    return frequencies, scale


def _wavelength_ratios(theta: float, rotary_dim: int) -> Float32Array:
    """Raise theta to 2i / rotary_dim for each pair i, rounded once. Source: Su et al. 2021, RoFormer, section 3.2.2."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    return np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)


def _default(rope: RopeConfig, _variant: int) -> tuple[Float32Array, float]:
    return np.float32(1.0) / _wavelength_ratios(rope.theta, rope.rotary_dim), 1.0


def _linear(rope: RopeConfig, _variant: int) -> tuple[Float32Array, float]:
    """Positions divided by the factor. Source: Chen et al. 2023, Position Interpolation, equation 4."""
    frequencies, scale = _default(rope, 0)
    return frequencies / np.float32(rope.factor), scale


def _dynamic(rope: RopeConfig, variant: int) -> tuple[Float32Array, float]:
    """A larger theta the longer the request. Source: Peng et al. 2023, YaRN, appendix A.1 (dynamic NTK)."""
    length = max(variant, rope.original_max_positions)
    stretch = rope.factor * length / rope.original_max_positions - (rope.factor - 1.0)
    theta = rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return np.float32(1.0) / _wavelength_ratios(theta, rope.rotary_dim), 1.0


def _llama3(rope: RopeConfig, _variant: int) -> tuple[Float32Array, float]:
    """Keep short wavelengths, divide long ones, blend between. Source: Llama 3.1 reference code, `apply_scaling`.

    ::

        wavelength     0 ...... original/high ...... original/low ......
        frequency      | kept          | blended           | divided by factor
    """
    frequencies, scale = _default(rope, 0)
    wavelengths = np.float32(2.0 * math.pi) / frequencies
    rotations = np.float32(rope.original_max_positions) / wavelengths
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    kept_share = np.clip((rotations - low) / (high - low), np.float32(0.0), np.float32(1.0))
    divided = frequencies / np.float32(rope.factor)
    return (np.float32(1.0) - kept_share) * divided + kept_share * frequencies, scale


def _yarn(rope: RopeConfig, _variant: int) -> tuple[Float32Array, float]:
    """Keep fast pairs, divide slow ones, ramp between. Source: Peng et al. 2023, YaRN, section 3.2.

    ::

        pair           0 ...... first ...... last ...... rotary_dim / 2
        frequency      | kept     | ramp       | divided by factor
    """
    ratios = _wavelength_ratios(rope.theta, rope.rotary_dim)
    kept = np.float32(1.0) / ratios
    divided = np.float32(1.0) / (np.float32(rope.factor) * ratios)
    first = _pair_with_rotations(rope, rope.beta_fast)
    last = _pair_with_rotations(rope, rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    width = last - first if last != first else 0.001
    pairs = np.arange(rope.rotary_dim // 2, dtype=np.float32)
    divided_share = np.clip((pairs - np.float32(first)) / np.float32(width), np.float32(0.0), np.float32(1.0))
    kept_share = np.float32(1.0) - divided_share
    return divided * (np.float32(1.0) - kept_share) + kept * kept_share, _yarn_attention_factor(rope)


def _pair_with_rotations(rope: RopeConfig, rotations: float) -> float:
    """Index of the (fractional) pair that turns `rotations` times within the original context."""
    wavelength = rope.original_max_positions / rotations
    return rope.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(rope.factor, rope.mscale_all_dim)
    return _yarn_mscale(rope.factor, 1.0)


def _yarn_mscale(factor: float, weight: float) -> float:
    """Source: Peng et al. 2023, YaRN, equation 22; the weight is DeepSeek-V2's."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: RopeConfig, variant: int) -> tuple[Float32Array, float]:
    """One divisor per pair, from the short or the long list. Source: Ding et al. 2024, LongRoPE, section 3."""
    divisors = rope.long_factor if variant else rope.short_factor
    ratios = _wavelength_ratios(rope.theta, rope.rotary_dim)
    frequencies = np.float32(1.0) / (np.asarray(divisors, np.float32) * ratios)
    if rope.attention_factor is not None:
        return frequencies, rope.attention_factor
    if rope.factor <= 1.0:
        return frequencies, 1.0
    return frequencies, math.sqrt(1.0 + math.log(rope.factor) / math.log(rope.original_max_positions))


_KINDS: Mapping[RopeKind, Callable[[RopeConfig, int], tuple[Float32Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
