"""A model's own recommendation for sampling, from its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams

_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def sampling_defaults(generation_config: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters a model recommends; fields it does not name, or names wrongly, keep ours."""
    chosen: dict[str, Any] = {}
    for name in _RECOMMENDED:
        value = generation_config.get(name)
        if value is None or isinstance(value, bool):
            continue
        try:
            SamplingParams(**{name: value}).validate()
        except InvalidParameterError:
            continue
        chosen[name] = value
    return SamplingParams(**chosen)
