"""`Keys`: a configuration's keys, read with their types checked and their names in every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import ModelError

LARGEST_COUNT = 1 << 31
TINIEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e15
"""Limits of every number, so that nothing computed from a few of them overflows."""
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
        """Return a number above 0, not below `at_least`, up to `LARGEST_NUMBER`.

        Raises:
            ModelError: The key is absent, or its value is anything else.
        """
        number = self.optional_number(key, at_least=at_least)
        if number is None:
            raise ModelError(f"{self._where} lacks '{key}'")
        return number

    def optional_number(self, key: str, *, at_least: float = 0.0) -> float | None:
        """Return a number as `number` does, or `None` where the key is absent or null.

        Raises:
            ModelError: The value is anything else.
        """
        value = self.value(key)
        if value is None:
            return None
        if not _is_number(value) or not max(at_least, TINIEST_NUMBER) <= value <= LARGEST_NUMBER:
            low = f"{at_least:g}" if at_least else "above 0"
            raise self.refusal(key, f"a number from {low} to {LARGEST_NUMBER:g}")
        return float(value)

    def numbers(self, key: str, *, length: int) -> tuple[float, ...]:
        """Return a list of `length` numbers above 0.

        Raises:
            ModelError: The key is absent, or its value is anything else.
        """
        value = self.value(key)
        is_list = isinstance(value, (list, tuple)) and len(value) == length
        if not is_list or not all(_is_number(x) and TINIEST_NUMBER <= x <= LARGEST_NUMBER for x in value):
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
