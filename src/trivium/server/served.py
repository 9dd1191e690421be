"""`ServedModel`: names, limits and defaults of the model behind the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.base.errors import InvalidParameterError, ModelNotFoundError
from trivium.config.model import ModelConfig
from trivium.config.sampling import SamplingParams

_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the API says and assumes of one model."""

    name: str
    """The name that answers carry when the request used it; first in `/v1/models`."""
    aliases: tuple[str, ...] = ()
    """Further names under which the model answers."""
    config: ModelConfig
    max_model_len: int
    """Longest prompt plus answer in tokens, until the engine reports its own."""
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields that the checkpoint's generation config sets."""
    fingerprint: str = ""
    """Identifies the weights, until the engine reports its own; part of `system_fingerprint`."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Shown in `/v1/models`: format, precision, licence and the like."""
    created: int = 0
    """Unix time in seconds that `/v1/models` shows."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the first one first, each once."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    def check_name(self, name: object) -> str:
        """Return `name` if it is one of ours.

        Raises:
            InvalidParameterError: It is missing or no text.
            ModelNotFoundError: No model of that name is served.
        """
        if name is None:
            raise InvalidParameterError("model is missing; it must be a text", param="model")
        if not isinstance(name, str):
            raise InvalidParameterError(f"model is {str(name)[:80]}; it must be a text", param="model")
        if name not in self.names:
            known = ", ".join(self.names)
            raise ModelNotFoundError(f"The model '{name[:200]}' does not exist; served here: {known}", param="model")
        return name


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Pick from a checkpoint's generation config the defaults that a request may override.

    Values that the sampler would refuse (a file may hold anything) are left out, so that a request without the field
    gets the API's own default.
    """
    picked: dict[str, Any] = {}
    for name in _DEFAULTED:
        value = generation_config.get(name)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value}).validate()
        except InvalidParameterError:
            continue
        picked[name] = value
    return picked
