"""What a `gen` may write: a type, an expression, JSON of a schema; and how the text is read as a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.structured import StructuredOutputs
from trivium.lang.abstract import Abstract

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A constraint with what ends it, and how its texts are read."""

    constraint: StructuredOutputs
    stop: tuple[str, ...] = ()
    parse: Parse | None = None
    given: tuple[str, Any] = ("", None)
    """The argument of `gen` that asked for it, and its value as JSON."""


REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""
"""What the types of `gen` match, by SGLang's names."""
_NUMBER_ENDS = (" ", "\n")
"""A number ends with white space, which is cut off: what would follow it need not be a number."""

DTYPES: Mapping[object, Form] = {
    int: Form(constraint=StructuredOutputs(regex=REGEX_INT), stop=_NUMBER_ENDS, parse=int),
    float: Form(constraint=StructuredOutputs(regex=REGEX_FLOAT), stop=_NUMBER_ENDS, parse=float),
    bool: Form(constraint=StructuredOutputs(regex=REGEX_BOOL), parse=lambda text: text == "True"),
    str: Form(constraint=StructuredOutputs(regex=REGEX_STR), parse=lambda text: text[1:-1]),
}
_DTYPE_NAMES: Mapping[object, type] = {"int": int, "float": float, "bool": bool, "str": str, "string": str}


def form_of(
    *,
    dtype: object = None,
    regex: str | None = None,
    json_schema: object = None,
    ebnf: str | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
) -> Form | None:
    """Return the form that the arguments of `gen` ask for, or `None` where they ask for none.

    Raises:
        InvalidParameterError: More than one is given, or one has a bad value.
    """
    given = {
        "dtype": dtype,
        "regex": regex,
        "json_schema": json_schema,
        "ebnf": ebnf,
        "structural_tag": structural_tag,
    }
    named = [name for name, value in given.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise InvalidParameterError(f"gen is given {' and '.join(named)}; it takes one of them", param=named[1])
    name, value = named[0], given[named[0]]
    if isinstance(value, Abstract):
        return Form(constraint=StructuredOutputs(), given=(name, value))
    form = _MAKERS[name](value)
    form.constraint.validate()
    write = _GIVEN.get(name)
    return replace(form, given=(name, value if write is None else write(value, form)))


def _typed(dtype: object) -> Form:
    try:
        return DTYPES[_DTYPE_NAMES.get(dtype, dtype)]
    except (KeyError, TypeError):
        raise InvalidParameterError(f"dtype is {dtype!r}; it must be int, float, bool or str", param="dtype") from None


def _expression(regex: Any) -> Form:
    try:
        re.compile(regex)
    except (re.error, TypeError) as error:
        raise InvalidParameterError(
            f"regex is {regex!r}; it is no regular expression: {error}", param="regex"
        ) from None
    return Form(constraint=StructuredOutputs(regex=regex))


def _schema(given: Any) -> Form:
    if isinstance(given, str | Mapping):
        return Form(constraint=StructuredOutputs(json=given), parse=json.loads)
    if hasattr(given, "model_json_schema") and hasattr(given, "model_validate_json"):  # Pydantic's
        document, parse = given.model_json_schema(), given.model_validate_json
    elif isinstance(given, type) and (is_dataclass(given) or hasattr(given, "__struct_fields__")):
        document, parse = _document(given)
    else:
        raise InvalidParameterError(
            f"json_schema is {given!r}; it must be a schema, its text, a Pydantic model or a dataclass",
            param="json_schema",
        )
    return Form(constraint=StructuredOutputs(json=_closed(document)), parse=parse)


def _document(kind: type) -> tuple[Any, Parse]:
    import msgspec  # noqa: PLC0415  (start-up time)

    return msgspec.json.schema(kind), lambda text: msgspec.json.decode(text, type=kind)


def _closed(schema: Any) -> Any:
    """Allow no properties but those of the type, which would be lost when the text is read into it."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and "type" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


_GIVEN: Mapping[str, Callable[[Any, Form], Any]] = {
    "dtype": lambda dtype, _: _DTYPE_NAMES.get(dtype, dtype).__name__,
    "json_schema": lambda given, form: given if isinstance(given, str | Mapping) else form.constraint.json,
}
"""How an argument that is no JSON is written as such."""
_MAKERS: Mapping[str, Callable[[Any], Form]] = {
    "dtype": _typed,
    "regex": _expression,
    "json_schema": _schema,
    "ebnf": lambda given: Form(constraint=StructuredOutputs(grammar=given)),
    "structural_tag": lambda given: Form(constraint=StructuredOutputs(structural_tag=given)),
}
