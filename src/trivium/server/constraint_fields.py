"""The fields that constrain an answer's text: OpenAI's, vLLM's, SGLang's and llama.cpp's spellings of the same.

::

    response_format  {"type": "json_schema", "json_schema": {"schema": …}}    OpenAI
    response_format  {"type": "structural_tag", …}                            vLLM, SGLang
    structured_outputs  {"json": …} and so on                                 vLLM
    guided_json, guided_regex, guided_choice, guided_grammar, …               vLLM before 0.12
    json_schema, regex, ebnf, structural_tag                                  SGLang
    grammar                                                                   llama.cpp

Each reads as a `StructuredOutputs`; a request may give one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.structured import KINDS, StructuredOutputs
from trivium.server.fields import MAX_SHOWN_CHARS, Field, refused

_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_SCHEMA_KEYS = frozenset({"name", "description", "schema", "strict"})


def constraint_field(values: Mapping[str, Any]) -> str | None:
    """Return the name of the field that asks for a constraint, if one does."""
    return next((name for name in CONSTRAINT_FIELDS if values.get(name) is not None), None)


def constraint_of(values: Mapping[str, Any]) -> StructuredOutputs | None:
    """Return the constraint that a request's fields ask for, if they do.

    Raises:
        InvalidParameterError: Two fields ask for one.
    """
    given = [name for name in CONSTRAINT_FIELDS if values.get(name) is not None]
    if len(given) > 1:
        raise InvalidParameterError(
            f"{given[0]} and {given[1]} both constrain the answer; give one of them", param=given[1]
        )
    found: StructuredOutputs | None = values[given[0]] if given else None
    return found


def _checked(name: str, **what: Any) -> StructuredOutputs:
    wanted = StructuredOutputs(**what)
    try:
        wanted.validate()
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{name}: {error}", param=name) from None
    return wanted


def _response_format(name: str, value: Any) -> StructuredOutputs | None:
    if not isinstance(value, dict):
        raise refused(name, value, "an object with a type")
    kind = value.get("type")
    if kind not in _FORMATS:
        raise refused(f"{name}.type", kind, " or ".join(f"'{each}'" for each in _FORMATS))
    if kind == "structural_tag":
        return _checked(name, structural_tag=value)
    _refuse_unknown(name, value, {"type", "json_schema"} if kind == "json_schema" else {"type"})
    if kind == "text":
        return None
    if kind == "json_object":
        return _checked(name, json_object=True)
    described = value.get("json_schema")
    if not isinstance(described, dict):
        raise refused(f"{name}.json_schema", described, "an object with name and schema")
    _refuse_unknown(f"{name}.json_schema", described, _SCHEMA_KEYS)
    if "schema" not in described:
        raise refused(f"{name}.json_schema.schema", None, "a JSON Schema")
    strict = described.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise refused(f"{name}.json_schema.strict", strict, "true or false")
    return _checked(name, json=described["schema"])


def _structured_outputs(name: str, value: Any) -> StructuredOutputs:
    if not isinstance(value, dict):
        raise refused(name, value, "an object")
    given = {key: entry for key, entry in value.items() if entry is not None}
    _refuse_unknown(name, given, {*KINDS, "disable_any_whitespace"})
    disables = given.pop("disable_any_whitespace", True)
    if not isinstance(disables, bool):
        raise refused(f"{name}.disable_any_whitespace", disables, "true or false")
    if isinstance(given.get("choice"), list):
        given["choice"] = tuple(given["choice"])
    is_json = "json" in given or given.get("json_object") is True
    return _checked(name, **given, any_whitespace=is_json and not disables)


def _refuse_unknown(name: str, value: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    for key in value:
        if key not in known:
            raise InvalidParameterError(
                f"unknown field '{name}.{key[:MAX_SHOWN_CHARS]}'; known are {', '.join(sorted(known))}",
                param=name.split(".", 1)[0],
            )


def _field(kind: str, schema: Mapping[str, Any], doc: str, make: Callable[[Any], Any] = lambda value: value) -> Field:
    return Field(lambda name, value: _checked(name, **{kind: make(value)}), schema, doc)


def _object_flag(name: str, value: Any) -> StructuredOutputs | None:
    if not isinstance(value, bool):
        raise refused(name, value, "true or false")
    return StructuredOutputs(json_object=True) if value else None


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_TEXT = {"type": "string", "minLength": 1}
_SCHEMA = {"anyOf": [{"type": "object"}, {"type": "string"}]}
_CHOICES = {"type": "array", "items": _TEXT, "minItems": 1}
_FORMAT_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(_FORMATS)},
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "description": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
        "format": {"type": "object"},
        "structures": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "triggers": _CHOICES,
    },
    "required": ["type"],
    "additionalProperties": False,
}
_OUTPUTS_SCHEMA = {
    "type": "object",
    "properties": {
        "json": _SCHEMA,
        "json_object": {"type": "boolean"},
        "regex": _TEXT,
        "choice": _CHOICES,
        "grammar": _TEXT,
        "structural_tag": _SCHEMA,
        "disable_any_whitespace": {"type": "boolean"},
    },
    "additionalProperties": False,
}

CONSTRAINT_FIELDS: Mapping[str, Field] = {
    "response_format": Field(
        _response_format,
        _FORMAT_SCHEMA,
        "What the answer may be: text, any JSON object, JSON that satisfies a schema, or text with constrained spans; "
        "strict or not, a schema is enforced in full.",
    ),
    "structured_outputs": Field(
        _structured_outputs,
        _OUTPUTS_SCHEMA,
        "The same in vLLM's words: json, json_object, regex, choice, grammar or structural_tag.",
    ),
    "guided_json": _field("json", _SCHEMA, "As structured_outputs.json."),
    "guided_json_object": Field(_object_flag, {"type": "boolean"}, "As structured_outputs.json_object."),
    "guided_regex": _field("regex", _TEXT, "As structured_outputs.regex."),
    "guided_choice": _field("choice", _CHOICES, "As structured_outputs.choice.", _as_tuple),
    "guided_grammar": _field("grammar", _TEXT, "As structured_outputs.grammar."),
    "json_schema": _field("json", _SCHEMA, "As structured_outputs.json, in SGLang's words."),
    "regex": _field("regex", _TEXT, "As structured_outputs.regex, in SGLang's words."),
    "ebnf": _field("grammar", _TEXT, "As structured_outputs.grammar, in SGLang's words."),
    "structural_tag": _field("structural_tag", _SCHEMA, "As structured_outputs.structural_tag, in SGLang's words."),
    "grammar": Field(
        lambda name, value: None if value == "" else _checked(name, grammar=value),
        {"type": "string"},
        "As structured_outputs.grammar, in llama.cpp's words; empty for none.",
    ),
}
"""By name; read as `StructuredOutputs`, or `None` where the value asks for nothing."""
