"""`Architecture`: all that Trivium knows of one kind of model, as data and one function for its layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.models.decoder import LayerFunction
from trivium.models.layer_kinds import KindRule, all_full
from trivium.models.parse_rope import RopeRules

BiasRule = bool | str
"""Whether a projection has a bias: fixed, or the name of the configuration's flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row of the registry. Facts follow the transformers configuration class of the same name."""

    name: str
    """Entry of `architectures` in a `config.json`."""
    model_type: str
    """Entry of `model_type`, for configurations without `architectures`."""
    layer: LayerFunction
    """Writes one layer: (scope, x [T, M]) to x [T, M]."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What an absent key means, beyond `parse.COMMON_DEFAULTS`."""
    kinds: KindRule = all_full
    """Which layers slide where `layer_types` is absent."""
    rope: RopeRules = field(default_factory=RopeRules)
    qkv_bias: BiasRule = False
    out_bias: BiasRule = False
    mlp_bias: BiasRule = False
    activation_key: str = "hidden_act"
    scales_embeddings: bool = False
    """Whether embeddings are multiplied by the square root of the model width."""
    query_scale_key: str | None = None
    """Key of the number whose square root divides q·k; `None` means the head width."""
    has_softcaps: bool = False
    text_key: str | None = None
    """Key under which a multimodal configuration keeps its text model; `None` where there is only text."""
