"""A model's own recommendation for sampling, from its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams

_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def recommended_sampling(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the sampling fields that a checkpoint sets and a request may override.

    Values that the sampler would refuse (a file may hold anything) are left out, so that such a field keeps its own
    default.
    """
    picked: dict[str, Any] = {}
    for name in _RECOMMENDED:
        value = generation_config.get(name)
        if value is None or isinstance(value, bool):
            continue
        try:
            SamplingParams(**{name: value}).validate()
        except InvalidParameterError:
            continue
        picked[name] = value
    return picked
