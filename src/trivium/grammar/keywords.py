"""What every keyword of JSON Schema means to a grammar: whether it is enforced, and where further schemas are in it.

A table and no code, so that the guide, `trivium schema check` and the refusals say the same. A keyword that is not here
means nothing in any draft; like the annotations it is passed over, since every document satisfies it.
Source: JSON Schema drafts 4, 6, 7, 2019-09 and 2020-12, Core and Validation; OpenAPI 3.1, section 4.4 (formats); RFC
6901, 4648 and 9562.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


class Keyword(NamedTuple):
    """One keyword."""

    role: Literal["enforced", "annotation", "refused"]
    holds: Literal["data", "schema", "list", "named"] = "data"
    """Whether its value is a schema, a list of schemas, or schemas by name; `data` has none."""


def _rows(role: Literal["enforced", "annotation", "refused"], **names: str) -> dict[str, Keyword]:
    return {name: Keyword(role, holds) for holds, each in names.items() for name in each.split()}  # type: ignore[arg-type]


KEYWORDS: Mapping[str, Keyword] = {
    **_rows(
        "enforced",
        data="$ref $schema $id id $anchor type enum const required pattern format minLength maxLength minItems maxItems"
        " minProperties maxProperties minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
        schema="items additionalItems additionalProperties",
        list="allOf anyOf oneOf prefixItems",
        named="$defs definitions properties patternProperties",
    ),
    **_rows(
        "annotation",
        data="title description default examples example deprecated readOnly writeOnly $comment $vocabulary"
        " contentEncoding contentMediaType contentSchema discriminator nullable externalDocs xml",
    ),
    **_rows(
        "refused",
        data="uniqueItems minContains maxContains dependentRequired dependencies $dynamicRef $dynamicAnchor"
        " $recursiveRef $recursiveAnchor",
        schema="not if then else contains propertyNames unevaluatedItems unevaluatedProperties",
        named="dependentSchemas",
    ),
}

COUNTS = frozenset(name for name in KEYWORDS if name.startswith(("min", "max")) and name not in {"minimum", "maximum"})
"""Keywords whose value is a number of things; drafts since 6 allow it to be written 2.0."""

IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
"""Enforced keywords whose schemas are about the same value as the schema that they stand in."""

_EVERYTHING: tuple[Any, ...] = (True, {})
_ABSENT = object()

IDLE: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "not": lambda value, _: value is False,
    "if": lambda _, node: "then" not in node and "else" not in node,
    "then": lambda _, node: "if" not in node,
    "else": lambda _, node: "if" not in node,
    "minContains": lambda _, node: "contains" not in node,
    "maxContains": lambda _, node: "contains" not in node,
    "uniqueItems": lambda value, node: value is False or node.get("maxItems", _ABSENT) in (0, 1),
    "propertyNames": lambda value, _: value in _EVERYTHING,
    "unevaluatedItems": lambda value, _: value in _EVERYTHING,
    "unevaluatedProperties": lambda value, _: value in _EVERYTHING,
    "dependentRequired": lambda value, _: value == {},
    "dependentSchemas": lambda value, _: value == {},
    "dependencies": lambda value, _: value == {},
}
"""By refused keyword: whether this value of it, in this schema, is one that every document satisfies."""

_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = rf"{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR}:{_MINUTE})"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:{_DAY}|29|3[01]|30)|(?:0[469]|11)-(?:{_DAY}|29|30)|02-{_DAY})"
    rf"|{_LEAP_YEAR}-02-29)"
)

_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_BASE64 = "(?:[A-Za-z0-9{0}]{{4}})*(?:[A-Za-z0-9{0}]{{2}}==|[A-Za-z0-9{0}]{{3}}=)?"
_UUID = "[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}"

FORMAT_PATTERNS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    **dict.fromkeys(("byte", "base64"), f"^{_BASE64.format('+/')}$"),
    "base64url": f"^{_BASE64.format('_-')}$",
    **{f"uuid{version}": f"^{_UUID.format(version)}$" for version in (1, 3, 4, 5)},
}
"""Formats that are written here: of times, those whose days exist and whose minutes have 60 seconds, which every reader
of RFC 3339 takes; some of OpenAPI's and Pydantic's."""

LIBRARY_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "unknown", "uri", "uuid"})
"""Formats that llguidance knows."""

HINT_FORMATS = frozenset({"password", "binary", "float", "double", "path", "file-path", "directory-path"})
"""Formats of OpenAPI and Pydantic that every text, or every number, satisfies."""

EXACT_INTEGER = 2**53 - 1
"""The largest integer that is exact as a double, in which the library and many readers of JSON keep numbers."""
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})

INTEGER_FORMATS: Mapping[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-EXACT_INTEGER, EXACT_INTEGER),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, EXACT_INTEGER),
}
"""OpenAPI's formats of integers, and their bounds; of 64 bits, those that every reader of JSON takes exactly."""
