"""`ServedModel`: names, limits and defaults of the model behind the API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trivium.base.errors import InvalidParameterError, ModelNotFoundError
from trivium.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What the `model` of a request means."""

    name: str
    """The name that the client used."""
    adapter: str | None = None
    """That name, where it is an adapter's."""


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

    def choose(self, name: object, adapters: Collection[str] = ()) -> ModelChoice:
        """Return what a name means.

        Args:
            name: What a request has as its `model`.
            adapters: Names of the adapters.

        Raises:
            InvalidParameterError: It is missing or no text.
            ModelNotFoundError: Neither model nor adapter of that name is served.
        """
        if name is None:
            raise InvalidParameterError("model is missing; it must be a text", param="model")
        if not isinstance(name, str):
            raise InvalidParameterError(f"model is {str(name)[:80]}; it must be a text", param="model")
        if name in self.names:
            return ModelChoice(name)
        if name in adapters:
            return ModelChoice(name, adapter=name)
        known = ", ".join((*self.names, *adapters))
        raise ModelNotFoundError(f"The model '{name[:200]}' does not exist; served here: {known}", param="model")
