"""Typed access to a GGUF file's metadata: every value is checked, every error names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trivium.base.errors import CheckpointError
from trivium.weights.stored import StoredTensor

MAX_COUNT = 1 << 31
"""No count of layers, heads or elements reaches this."""

Config = dict[str, Any]
"""A configuration in the layout of a config.json."""


class GGUFFields:
    """Typed access to the metadata of one architecture, with errors that name the key."""

    def __init__(self, where: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
        self.where = where
        self.metadata = metadata
        self.tensors = tensors
        self.architecture = str(metadata.get("general.architecture", ""))

    def key(self, name: str) -> str:
        """Return the full key of an architecture's field."""
        return f"{self.architecture}.{name}"

    def error(self, name: str, message: str) -> CheckpointError:
        """Return an error about the field `name`."""
        return CheckpointError(f"{self.where}: {self.key(name)} {message}")

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number; a list with one entry per layer is taken when all entries agree.

        Raises:
            CheckpointError: The key is missing without a default, or is not one number in range.
        """
        value = self.metadata.get(self.key(name), default)
        if isinstance(value, list) and value:
            if any(entry != value[0] for entry in value):
                raise self.error(name, "differs from layer to layer, which is not supported")
            value = value[0]
        if value is None:
            raise self.error(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_COUNT:
            raise self.error(name, f"is {str(value)[:80]}; it must be a whole number from {least} to {MAX_COUNT - 1}")
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a finite number as a configuration would write it, or the default.

        Raises:
            CheckpointError: The value is not a finite number.
        """
        value = self.metadata.get(self.key(name), default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, f"is {str(value)[:80]}; it must be a finite number")
        with np.errstate(over="ignore", under="ignore"):
            narrow = np.float32(value)
        # most are stored as float32: take the shortest decimal that means it, 1e-05 and not 9.999999747378752e-06
        return float(str(narrow)) if float(narrow) == value else float(value)

    def tensor(self, name: str) -> tuple[float, ...] | None:
        """Return a small float tensor's values, or `None` when the file has none of that name."""
        stored = self.tensors.get(name)
        return None if stored is None else tuple(stored.float32().reshape(-1).tolist())
