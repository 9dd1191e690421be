"""`jsonschema` as the judge of documents, where it judges by the letter of the drafts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import jsonschema

_EXACT = 10**15
_ASCII = {"\\w": "[A-Za-z0-9_]", "\\W": "[^A-Za-z0-9_]", "\\d": "[0-9]", "\\D": "[^0-9]"}


def validator_of(schema: Any) -> Any:
    """Return a validator of the schema's draft, the last one where it names none; formats count."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    exact = jsonschema.validators.extend(kind, {"pattern": _matches, "multipleOf": _is_multiple})
    return exact(schema, format_checker=kind.FORMAT_CHECKER)


def _matches(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """Judge as ECMAScript does, to which letters and digits are ASCII's, and spaces any script's."""
    for sign, meaning in _ASCII.items():
        pattern = pattern.replace(sign, meaning)
    if isinstance(instance, str) and not re.search(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _is_multiple(_: Any, step: float, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """Judge numbers as they are written: 19.9 is a multiple of 0.1, though not of the double next to it.

    What is too large for a double to keep as it was written cannot be judged.
    """
    is_number = isinstance(instance, (int, float)) and not isinstance(instance, bool)
    if is_number and abs(instance) < _EXACT and Fraction(str(instance)) % Fraction(str(step)):
        yield jsonschema.ValidationError(f"{instance} is not a multiple of {step}")
