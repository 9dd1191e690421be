"""`Keys`: a configuration's keys, read with their types checked and their names in every error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trivium.base.errors import ModelError

LARGEST_COUNT = 1 << 31
LONGEST_SHOWN = 80
"""Characters of a value that an error shows."""


class Keys:
    """A view of one JSON object of a `config.json`.

    A key that is absent takes the default of its architecture. Null says that there is no such thing: no window, no
    cap; where the model needs a value, absence and null are errors.
    """

    def __init__(self, values: Mapping[str, Any], *, defaults: Mapping[str, Any], where: str) -> None:
        """View `values`.

        Args:
            values: The JSON object.
            defaults: What an absent key means.
            where: What the object is called in errors.
        """
        self._values = values
        self._defaults = defaults
        self._where = where

    def has(self, key: str) -> bool:
        """Whether the object itself gives `key` a value other than null."""
        return self._values.get(key) is not None

    def value(self, key: str) -> Any:
        """Return the value of `key`, of whatever type; its default where it is absent, else `None`."""
        return self._values[key] if key in self._values else self._defaults.get(key)

    def count(self, key: str, *, largest: int = LARGEST_COUNT) -> int:
        """Return a whole number from 1 to `largest`.

        Raises:
            ModelError: The key is absent, or its value is anything else.
        """
        number = self.optional_count(key, largest=largest)
        if number is None:
            raise ModelError(f"{self._where} lacks '{key}'")
        return number

    def optional_count(self, key: str, *, largest: int = LARGEST_COUNT) -> int | None:
        """Return a whole number from 1 to `largest`, or `None` where the key is absent or null.

        Raises:
            ModelError: The value is anything else.
        """
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            raise self.refusal(key, f"a whole number from 1 to {largest}")
        return value

    def number(self, key: str, *, at_least: float = 0.0) -> float:
        """Return a finite number above 0 and not below `at_least`.

        Raises:
            ModelError: The key is absent, or its value is anything else.
        """
        number = self.optional_number(key, at_least=at_least)
        if number is None:
            raise ModelError(f"{self._where} lacks '{key}'")
        return number

    def optional_number(self, key: str, *, at_least: float = 0.0) -> float | None:
        """Return a finite number above 0 and not below `at_least`, or `None` where the key is absent or null.

        Raises:
            ModelError: The value is anything else.
        """
        value = self.value(key)
        if value is None:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0 or value < at_least:
            raise self.refusal(key, f"a number of at least {at_least:g}" if at_least else "a number above 0")
        return float(value)

    def numbers(self, key: str, *, length: int) -> tuple[float, ...]:
        """Return a list of `length` numbers above 0.

        Raises:
            ModelError: The key is absent, or its value is anything else.
        """
        value = self.value(key)
        is_list = isinstance(value, (list, tuple)) and len(value) == length
        if not is_list or not all(isinstance(x, (int, float)) and math.isfinite(x) and x > 0 for x in value):
            raise self.refusal(key, f"a list of {length} numbers above 0")
        return tuple(float(x) for x in value)

    def flag(self, key: str) -> bool:
        """Return true or false; null means the default.

        Raises:
            ModelError: The key is absent, or its value is neither.
        """
        value = self.value(key) if self.has(key) else self._defaults.get(key)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def choice(self, key: str, choices: Mapping[str, Any]) -> Any:
        """Return what `choices` says of the value.

        Raises:
            ModelError: The value is not among the choices.
        """
        value = self.value(key)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(key, f"one of {', '.join(choices)}")
        return choices[value]

    def refusal(self, key: str, limit: str) -> ModelError:
        """Return the error that says what `key` is and what it must be."""
        return ModelError(f"{self._where}: '{key}' is {_shortened(self.value(key))}; it must be {limit}")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
