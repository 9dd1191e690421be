"""The architectures that Trivium defines, as one tuple; adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import ModelError, UnknownArchitectureError
from trivium.models.architecture import Architecture
from trivium.models.gemma2 import GEMMA2
from trivium.models.gemma3 import GEMMA3, GEMMA3_MULTIMODAL
from trivium.models.keys import LONGEST_SHOWN
from trivium.models.llama import LLAMA
from trivium.models.mistral import MISTRAL
from trivium.models.olmo2 import OLMO2
from trivium.models.phi3 import PHI3
from trivium.models.qwen2 import QWEN2
from trivium.models.qwen3 import QWEN3

ARCHITECTURES: tuple[Architecture, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    GEMMA3_MULTIMODAL,
    PHI3,
    OLMO2,
)
_BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
_BY_MODEL_TYPE = {architecture.model_type: architecture for architecture in ARCHITECTURES}


def known_architectures() -> tuple[str, ...]:
    """Return the names that `architectures` of a `config.json` may hold, sorted."""
    return tuple(sorted(_BY_NAME))


def architecture_named(name: str) -> Architecture:
    """Return the definition of that name.

    Raises:
        UnknownArchitectureError: There is none; the message lists those that are known.
    """
    if name not in _BY_NAME:
        raise _unknown(name)
    return _BY_NAME[name]


def find_architecture(hf_config: Mapping[str, Any]) -> Architecture:
    """Return the definition that a `config.json` asks for: by `architectures`, or else by `model_type`.

    Raises:
        ModelError: The configuration names neither.
        UnknownArchitectureError: It names one without a definition here.
    """
    names, model_type = hf_config.get("architectures"), hf_config.get("model_type")
    if names:
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ModelError(f"'architectures' is {repr(names)[:LONGEST_SHOWN]}; it must be a list of names")
        known = [name for name in names if name in _BY_NAME]
        return architecture_named(known[0] if known else names[0])
    if model_type is None:
        raise ModelError("the configuration names neither 'architectures' nor 'model_type'")
    if not isinstance(model_type, str) or model_type not in _BY_MODEL_TYPE:
        raise _unknown(f"model_type {model_type}")
    return _BY_MODEL_TYPE[model_type]


def _unknown(name: str) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"unknown architecture '{name[:LONGEST_SHOWN]}'; known are: {', '.join(known_architectures())}"
    )
