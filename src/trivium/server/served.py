"""`ServedModel`: names, limits and defaults of the model behind the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.base.errors import InvalidParameterError, ModelNotFoundError
from trivium.config.model import ModelConfig


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
