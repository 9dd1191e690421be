"""Every spelling of a constraint reads as the same record, or is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.server_site import Site
from trivium.config.structured import StructuredOutputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "description": "d", "strict": True, "schema": SCHEMA}}
GBNF = 'root ::= "a"'
OLD_TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}
NEW_TAG = {"type": "structural_tag", "format": {"type": "any_text"}}

SPELLINGS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    ({"response_format": FORMAT}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": '{"type": "null"}', "regex": None}}, StructuredOutputs(json='{"type": "null"}')),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": False}},
        StructuredOutputs(json_object=True, any_whitespace=True),
    ),
    ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=("a", "b"))),
    ({"structured_outputs": {"grammar": GBNF}}, StructuredOutputs(grammar=GBNF)),
    ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
    ({"guided_json_object": True}, StructuredOutputs(json_object=True)),
    ({"guided_json_object": False}, None),
    ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=("a", "b"))),
    ({"guided_grammar": GBNF, "guided_decoding_backend": "auto"}, StructuredOutputs(grammar=GBNF)),
    ({"json_schema": '{"type": "null"}'}, StructuredOutputs(json='{"type": "null"}')),
    ({"regex": "a+"}, StructuredOutputs(regex="a+")),
    (
        {"response_format": {"type": "structural_tag", **OLD_TAG}},
        StructuredOutputs(structural_tag={"type": "structural_tag", **OLD_TAG}),
    ),
    ({"response_format": NEW_TAG}, StructuredOutputs(structural_tag=NEW_TAG)),
    ({"structured_outputs": {"structural_tag": NEW_TAG}}, StructuredOutputs(structural_tag=NEW_TAG)),
    ({"structural_tag": json.dumps(OLD_TAG)}, StructuredOutputs(structural_tag=json.dumps(OLD_TAG))),
    ({"ebnf": GBNF}, StructuredOutputs(grammar=GBNF)),
    ({"grammar": GBNF}, StructuredOutputs(grammar=GBNF)),
    ({"grammar": ""}, None),
]


@pytest.mark.parametrize("endpoint", ["complete", "chat"])
@pytest.mark.parametrize(("fields", "wanted"), SPELLINGS)
async def test_spellings_of_the_same(
    site: Site, endpoint: str, fields: dict[str, Any], wanted: StructuredOutputs | None
) -> None:
    response = await getattr(site, endpoint)(max_tokens=2, **fields)
    assert response.status_code == 200, response.text
    assert site.engine.submitted[-1].params.structured_outputs == wanted


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": "json"}, "response_format", "an object with a type"),
        ({"response_format": {"type": "xml"}}, "response_format", "'text' or 'json_object' or 'json_schema'"),
        (
            {"response_format": {"type": "text", "schema": {}}},
            "response_format",
            "unknown field 'response_format.schema'",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "an object with name and schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format",
            "a JSON Schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "response_format",
            "true or false",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
            "response_format",
            "response_format: json is '7'; it must be a JSON Schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "is 'json, regex'"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs", "unknown field 'structured_outputs.backend'"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs", "a text that is not empty"),
        ({"guided_choice": []}, "guided_choice", "1 to 4096 texts"),
        ({"guided_choice": "ab"}, "guided_choice", "a list of texts"),
        ({"guided_json_object": "yes"}, "guided_json_object", "true or false"),
        ({"json_schema": "{"}, "json_schema", "a JSON Schema"),
        ({"regex": ""}, "regex", "not empty"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag has nothing"),
        ({"structural_tag": {"format": {"type": "token"}}}, "structural_tag", "format.type is 'token'"),
        ({"structural_tag": 5}, "structural_tag", "an object, or its text"),
        ({"regex": "a", "ebnf": GBNF}, "ebnf", "regex and ebnf both constrain the answer"),
    ],
)
async def test_what_is_no_constraint_is_refused(site: Site, fields: dict[str, Any], param: str, message: str) -> None:
    response = await site.complete(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert site.engine.submitted == []
