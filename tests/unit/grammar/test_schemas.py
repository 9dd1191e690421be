"""What a schema becomes before the library sees it: refusals with their places, and nothing else changed in meaning."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from support.grammars import grammar
from trivium.base.errors import InvalidParameterError
from trivium.grammar.keywords import FORMAT_PATTERNS, INTEGER_FORMATS, KEYWORDS, LIBRARY_FORMATS
from trivium.grammar.schemas import library_schema, plan_schema

REFUSED = {
    "not": {},
    "if": True,
    "contains": {},
    "propertyNames": {"maxLength": 3, "pattern": "a"},
    "uniqueItems": True,
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedItems": False,
    "$dynamicRef": "#x",
    "$recursiveRef": "#",
}


def accepts(schema: Any, text: str, **fields: Any) -> bool:
    matcher = grammar(json=schema, **fields).start()
    tokens = list(text.encode())
    if matcher.allows(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.advance(token)
    return matcher.is_accepting


def problems(schema: Any) -> list[str]:
    return [problem.pointer for problem in plan_schema(schema).problems]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_enforced_is_refused_by_its_place(name: str) -> None:
    schema = {"properties": {"a/b": {"items": {name: REFUSED[name], **({"then": False} if name == "if" else {})}}}}
    with pytest.raises(InvalidParameterError, match="not supported") as caught:
        grammar(json=schema)
    assert f"#/properties/a~1b/items/{name}: the keyword '{name}' is not supported" in str(caught.value)
    assert f"#/properties/a~1b/items/{name}" in problems(schema)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_same_words_inside_data_are_only_words(name: str) -> None:
    data = {name: REFUSED[name]}
    for schema in ({"enum": [data]}, {"const": data}, {"default": data, "examples": [data], "type": "null"}):
        assert problems(schema) == []
        grammar(json=schema)
    assert problems({"type": "object", "properties": {name: {"type": "integer"}}}) == []


@pytest.mark.parametrize(
    "idle",
    [
        {"uniqueItems": False}, {"uniqueItems": True, "maxItems": 1}, {"if": {"type": "null"}}, {"then": False},
        {"minContains": 2}, {"propertyNames": True}, {"unevaluatedProperties": True}, {"dependentRequired": {}},
        {"not": False},
    ],
)  # fmt: skip
def test_keywords_that_ask_for_nothing_are_left_out(idle: dict[str, Any]) -> None:
    assert problems(idle) == []
    assert set(library_schema(idle)) <= {"maxItems"}
    grammar(json=idle)


def test_every_problem_is_told() -> None:
    schema = {"not": {}, "items": {"not": {}}, "$defs": {"x": {"format": "iri"}}, "properties": {"y": {"contains": {}}}}
    assert sorted(problems(schema)) == ["#/$defs/x/format", "#/items/not", "#/not", "#/properties/y/contains"]


def test_a_schema_cannot_turn_enforcement_off() -> None:
    with pytest.raises(InvalidParameterError, match="#/not"):
        grammar(json={"x-guidance": {"lenient": True}, "not": {}})
    assert not accepts({"x-guidance": {"whitespace_flexible": True}, "type": "array"}, "[ ]")
    overlapping = {"oneOf": [{"type": "integer"}, {"minimum": 3}], "x-guidance": {"coerce_one_of": True}}
    with pytest.raises(InvalidParameterError, match="oneOf"):
        grammar(json=overlapping)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, "#/$ref"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a/$ref"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "#/$defs/a/$ref"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {}]}}}, "#/properties/a/anyOf/0/$ref"),
    ],
)
def test_references_that_only_lead_to_themselves_are_refused(schema: Any, place: str) -> None:
    assert place in problems(schema)


def test_references_that_come_to_something_are_not() -> None:
    tree = {
        "$defs": {"t": {"type": "object", "properties": {"c": {"items": {"$ref": "#/$defs/t"}}}}},
        "$ref": "#/$defs/t",
    }
    chain = {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(300)} | {"a300": {"type": "null"}}}
    names = random.Random(1).sample(range(5000), 5000)  # noqa: S311
    tangled = {"$defs": {f"a{name}": {"$ref": f"#/$defs/a{after}"} for name, after in pairwise(names)}}
    aside = {"x": {f"a{i}": {"$ref": f"#/x/a{i + 1}"} for i in range(5000)} | {"a5000": {}}, "$ref": "#/x/a0"}
    for schema in (tree, chain, tangled, aside):
        assert problems(schema) == []
    assert accepts(tree, '{"c":[{},{"c":[]}]}')


def test_schemas_that_only_a_reference_finds_are_looked_at_too() -> None:
    schema = {"components": {"schemas": {"d/x": {"format": "date"}}}, "$ref": "#/components/schemas/d~1x"}
    given = deepcopy(schema)
    assert accepts(schema, '"2024-02-29"')
    assert not accepts(schema, '"2023-02-29"')
    assert schema == given
    assert problems({"x": [{"not": {}}], "$ref": "#/x/0"}) == ["#/x/0/not"]


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ("date", "2024-02-29 2000-02-29 2023-12-31 0001-01-01 9999-11-30",
         "2023-02-29 1900-02-29 2023-04-31 2023-13-01 0000-01-01 2023-00-01 2023-01-00"),
        ("time", "00:00:00Z 23:59:59.123456789+23:59",
         "24:00:00Z 23:60:00Z 23:59:60Z 23:59:59 1:00:00Z 00:00:00+24:00"),
        ("json-pointer", "/a/b~0~1 /", "a /~2 #/a"),
        ("relative-json-pointer", "0 1/a 12#", "01 -1 /a"),
        ("base64", "aGk= aGVq AA==", "aGk a=== aGk*"),
        ("uuid4", "2eb8aa08-aa98-41ea-b4aa-73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d16380 x"),
        ("date-time", "2024-02-29T23:59:59Z", "2023-02-29T00:00:00Z 2024-02-29T23:59:60Z 2024-02-29"),
    ],
)  # fmt: skip
def test_formats_are_taken_at_their_word(wanted: str, good: str, bad: str) -> None:
    assert wanted in FORMAT_PATTERNS
    for text in good.split():
        assert accepts({"format": wanted}, f'"{text}"'), text
    for text in bad.split():
        assert not accepts({"format": wanted}, f'"{text}"'), text
    assert accepts({"format": wanted}, "12"), "a format is about texts alone"


def test_pydantics_decimals_are_enforced_without_look_around() -> None:
    schema = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d{0,3}\.?\d{0,2}0*$"}
    for text in ("1", "-12.5", "+.5", "0.25", "123."):
        assert accepts(schema, f'"{text}"'), text
    for text in ("", "-", "+.", ".", "1a", "123456"):
        assert not accepts(schema, f'"{text}"'), text
    assert accepts({**schema, "maxLength": 2}, '"12"')


def test_a_format_counts_beside_pattern_and_length() -> None:
    schema = {"type": "string", "format": "date", "pattern": "-0[12]-", "allOf": [{"maxLength": 10}]}
    assert accepts(schema, '"2024-02-29"')
    assert not accepts(schema, '"2024-03-29"')
    assert not accepts(schema, '"-02-"')


@pytest.mark.parametrize("wanted", sorted(INTEGER_FORMATS))
def test_integer_formats_are_bounds(wanted: str) -> None:
    least, most = INTEGER_FORMATS[wanted]
    schema = {"type": "integer", "format": wanted}
    assert accepts(schema, str(least))
    assert accepts(schema, str(most))
    assert not accepts(schema, str(most + 1))
    assert not accepts({**schema, "minimum": 7}, "6")


def test_formats_that_the_library_knows_are_those_of_the_table() -> None:
    for wanted in LIBRARY_FORMATS:
        grammar(json={"type": "string", "format": wanted})
    for wanted in ("iri", "regex", "uri-reference", "nonsense"):
        assert problems({"properties": {"a": {"type": "string", "format": wanted}}}) == ["#/properties/a/format"]
        assert problems({"type": "integer", "format": wanted}) == []
    assert accepts({"type": "string", "format": "password"}, '"x"')


def test_bounds_that_would_be_rounded_are_refused() -> None:
    assert problems({"maximum": 2**53, "minimum": -(2**53) + 1}) == ["#/maximum"]


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"enum": ["a", "b"]}, '{} {"a":1} {"a":1,"b":2}', '{"c":1} {"a":"x"}'),
        ({"$ref": "#/$defs/n", }, '{} {"a":1}', '{"c":1} {"a":"x"}'),
        ({"const": "a", "title": "A"}, '{} {"a":1}', '{"b":1} {"a":null}'),
        ({"type": "string", "pattern": "^x[0-9]$"}, '{} {"x1":1,"x2":2}', '{"y1":1} {"x1":"x"}'),
        ({"minLength": 1, "maxLength": 2}, '{"a":1,"bb":2}', '{"":1} {"abc":1}'),
        ({"maxLength": 1}, '{"":1}', '{"ab":1}'),
    ],
)  # fmt: skip
def test_names_of_properties_are_enforced_where_they_say_it_all(names: Any, good: str, bad: str) -> None:
    schema = {
        "$defs": {"n": {"enum": ["a", "b"], "title": "N", "type": "string"}},
        "type": "object",
        "propertyNames": names,
        "additionalProperties": {"type": "integer"},
    }
    for text in good.split():
        assert accepts(schema, text), text
    for text in bad.split():
        assert not accepts(schema, text), text
    assert problems({**schema, "properties": {"a": {}}}) == ["#/propertyNames"]
    for unsaid in (
        {"not": {}},
        {"pattern": "a", "maxLength": 2},
        {"$ref": "#/$defs/none"},
        {"enum": [1]},
        False,
        {"$ref": "x"},
    ):
        assert problems({**schema, "propertyNames": unsaid}) == ["#/propertyNames"], unsaid


def test_names_given_twice_are_not_counted_twice() -> None:
    assert problems({"minProperties": 3, "required": ["a"]}) == ["#/minProperties"]
    assert problems({"minProperties": 2, "required": ["a"]}) == []
    assert problems({"minProperties": 1}) == []
    closed = {
        "minProperties": 2,
        "required": ["a", "b"],
        "properties": {"a": {}, "b": {}},
        "additionalProperties": False,
    }
    assert problems(closed) == []


def test_counts_may_be_written_as_floats() -> None:
    assert accepts({"type": "string", "maxLength": 2.0}, '"ab"')
    assert not accepts({"type": "array", "minItems": 1.0}, "[]")


def test_unevaluated_properties_are_the_additional_ones_where_nothing_applies_in_place() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}
    assert accepts(schema, '{"a":1}')
    assert not accepts(schema, '{"b":1}')
    assert problems({"allOf": [{}], "unevaluatedProperties": False}) == ["#/unevaluatedProperties"]


@pytest.mark.parametrize("schema", [True, {}])
def test_a_schema_that_everything_satisfies_is_any_json(schema: Any) -> None:
    assert accepts(schema, '{"a":[1,null]}')


@pytest.mark.parametrize(
    "schema",
    ['{"const":NaN}', {"enum": ["\ud800"]}, {"enum": []}, {"type": "strin"}, {"properties": []}, {"pattern": "("},
     {"$ref": "#/$defs/none"}, {"$ref": "http://localhost/x"}, {"$schema": "http://json-schema.org/draft-03/schema#"},
     {"type": "integer", "minimum": 5, "maximum": 4}],
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidParameterError, match="json cannot be enforced: "):
        grammar(json=schema)


def test_no_text_at_all_is_a_refusal() -> None:
    with pytest.raises(InvalidParameterError, match="no text goes on from here"):
        grammar(grammar='start: a\na: a "x"')


@pytest.mark.parametrize("fields", [{"grammar": "root ::="}, {"grammar": 'start: ""'}, {"regex": "()"}])
def test_nothing_but_the_empty_text_is_a_refusal(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidParameterError, match="only the empty text satisfies it"):
        grammar(**fields)


@pytest.mark.parametrize("text", ["[ \n\t 1]", "[\n" + " " * 19 + "1 ]"])
def test_whitespace_is_bounded_where_it_may_be(text: str) -> None:
    assert accepts({"type": "array"}, text, any_whitespace=True)
    assert not accepts({"type": "array"}, text)
    assert not accepts({"type": "array"}, f"[{' ' * 21}]", any_whitespace=True)


def test_the_table_knows_every_keyword_of_the_drafts() -> None:
    for validator in (jsonschema.Draft4Validator, jsonschema.Draft7Validator):
        assert set(validator.META_SCHEMA["properties"]) <= set(KEYWORDS)
    known = set(jsonschema.Draft202012Validator.VALIDATORS) | set(jsonschema.Draft201909Validator.VALIDATORS)
    assert known <= set(KEYWORDS), known - set(KEYWORDS)


def test_the_library_refuses_what_the_table_does() -> None:
    """A keyword that the library has learned to enforce may move in the table."""
    import llguidance  # noqa: PLC0415

    refused = {name for name, keyword in KEYWORDS.items() if keyword.role == "refused"}
    values = {"unevaluatedProperties": False, "dependencies": {"a": ["b"]}, "$dynamicAnchor": "a", **REFUSED}
    for name in refused & values.keys() - {"$recursiveRef"}:
        text = json.dumps({name: values[name]})
        reason = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_json_schema(text))
        assert "Unimplemented keys" in reason, (name, reason)


def test_an_object_may_have_a_thousand_optional_names_and_any_number_of_others() -> None:
    names = [f"n{idx}" for idx in range(1000)]
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    for text in ('{"n0":null,"n999":null}', '{"n999":null}'):
        assert accepts(schema, text)
    schema["properties"]["last"] = {"type": "null"}
    [problem] = plan_schema(schema).problems
    assert problem.pointer == "#/properties"
    assert "1001 names are optional; at most 1000" in problem.reason
    assert accepts(schema | {"required": ["last"]}, '{"n5":null,"last":null}')
