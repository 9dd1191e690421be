"""A constraint says exactly one thing, within its limits."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams
from trivium.config.structured import MAX_BYTES, MAX_CHOICES, MAX_DEPTH, StructuredOutputs


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range((depth - 2) // 2):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"type": "object"}},
        {"json": '{"type": "object"}'},
        {"json": True},
        {"json_object": True},
        {"json_object": True, "any_whitespace": True},
        {"regex": "[a-z]+"},
        {"choice": ("yes", "no")},
        {"grammar": 'start: "a"'},
        {"structural_tag": {"format": {"type": "any_text"}}},
        {"json": nested(MAX_DEPTH)},
    ],
)
def test_one_field_says_what_the_constraint_is(fields: dict[str, Any]) -> None:
    wanted = StructuredOutputs(**fields)
    wanted.validate()
    assert wanted.kind == next(iter(fields))
    SamplingParams(structured_outputs=wanted).validate()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "structured_outputs", "is 'none'; it must be exactly one of json, json_object, regex, choice, grammar"),
        ({"regex": "a", "choice": ("b",)}, "structured_outputs", "is 'regex, choice'"),
        ({"json": "{"}, "json", "a JSON Schema"),
        ({"json": "[1]"}, "json", "which is an object, true or false"),
        ({"json": [1]}, "json", "which is an object, true or false"),
        ({"json": nested(4 * MAX_DEPTH)}, "json", f"nested at most {MAX_DEPTH} deep"),
        ({"json": "[" * 100_000}, "json", "a JSON Schema"),
        ({"json": {"const": "a" * MAX_BYTES}}, "json", f"at most {MAX_BYTES} bytes"),
        ({"json": {"const": "\u00e9" * (MAX_BYTES // 4)}}, "json", f"at most {MAX_BYTES} bytes"),
        ({"json": {"enum": [1] * MAX_BYTES}}, "json", f"of more than {MAX_BYTES} bytes"),
        ({"json": {"properties": {f"{idx:099}": True for idx in range(MAX_BYTES // 100)}}}, "json", "of more than"),
        ({"json_object": 1}, "json_object", "true or false"),
        ({"regex": " "}, "regex", "not empty"),
        ({"regex": 7}, "regex", "a text"),
        ({"regex": "a" * (MAX_BYTES + 1)}, "regex", f"at most {MAX_BYTES} bytes"),
        ({"choice": ()}, "choice", f"1 to {MAX_CHOICES} texts"),
        ({"choice": ("a", "")}, "choice", "not empty"),
        ({"choice": "ab"}, "choice", "a list of texts"),
        ({"choice": ("a",) * (MAX_CHOICES + 1)}, "choice", f"1 to {MAX_CHOICES} texts"),
        ({"choice": ("a" * (1 << 15),)}, "choice", "bytes each"),
        ({"grammar": "g" * (MAX_BYTES + 1)}, "grammar", f"at most {MAX_BYTES} bytes"),
        ({"regex": "a", "any_whitespace": True}, "any_whitespace", "it is of JSON"),
    ],
)
def test_anything_else_is_refused_by_name(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message.replace("'", ".")) as caught:
        StructuredOutputs(**fields).validate()
    assert caught.value.param == param
    assert len(str(caught.value)) < 400


def test_sampling_takes_a_record_only() -> None:
    with pytest.raises(InvalidParameterError, match="a StructuredOutputs"):
        SamplingParams(structured_outputs={"regex": "a"}).validate()  # type: ignore[arg-type]
