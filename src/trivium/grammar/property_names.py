"""`propertyNames` as what a grammar can enforce: a list of names, or a pattern of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.grammar.keywords import KEYWORDS

_TEXT = ("type", "string")


def allowed_names(wanted: Mapping[str, Any]) -> tuple[list[str] | None, str] | None:
    """Return the names that a schema of names allows, as a list or else as a pattern; `None` where it says more."""
    said = {name: value for name, value in wanted.items() if not _says_nothing(name, value)}
    match said:
        case {"enum": [*names], **others} if not others and all(isinstance(name, str) for name in names):
            return names, ""
        case {"const": str(name), **others} if not others:
            return [name], ""
        case {"pattern": str(pattern), **others} if not others:
            return None, pattern
        case _ if said and said.keys() <= {"minLength", "maxLength"}:
            return None, f"^(?s:.){{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"
        case _:
            return None


def _says_nothing(name: str, value: Any) -> bool:
    return (name, value) == _TEXT or name not in KEYWORDS or KEYWORDS[name].role == "annotation"
