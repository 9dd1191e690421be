"""`trivium schema check`, and answers of `trivium generate` that are held to a form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run

SMALL = ("--kv-cache-memory", "4MiB", "--max-tokens", "60", "--seed", "1")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(content: Any) -> Path:
        path = tmp_path / "file"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return to_file


def test_a_schema_that_is_enforced_in_full_exits_0(trivium: Run, write: Any) -> None:
    schema = {"type": "object", "title": "T", "properties": {"a": {"type": "integer"}}, "x-mine": 1}
    checked = trivium("schema", "check", write(schema))
    assert (checked.code, checked.out) == (0, "")
    assert "enforced in full" in checked.err
    assert "enforced: properties 1, type 2" in checked.err
    assert "annotations, about no value: title 1" in checked.err
    assert "passed over: #/x-mine" in checked.err


def test_what_cannot_be_enforced_is_listed_with_its_place_and_exits_1(trivium: Run, write: Any) -> None:
    file = write({"properties": {"a": {"not": {}}, "b": {"items": {"type": "string", "format": "iri"}}}})
    checked = trivium("schema", "check", file)
    assert checked.code == 1
    assert checked.out.splitlines()[1:] == [
        "#/properties/a/not           the keyword 'not' is not supported",
        "#/properties/b/items/format  the format 'iri' is not supported",
    ]
    found = json.loads(trivium("schema", "check", file, "--json").out)
    assert (found["is_enforced"], [each["pointer"] for each in found["problems"]]) == (
        False,
        ["#/properties/a/not", "#/properties/b/items/format"],
    )


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf constraints are not supported"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"type": "integer", "minimum": 4, "maximum": 3}, "minimum (4) is greater"),
        ({"$ref": "http://localhost:1/x.json"}, "does not fetch"),
    ],
)
def test_what_the_library_refuses_has_a_place_too(trivium: Run, write: Any, inner: Any, reason: str) -> None:
    schema = {"$defs": {"i": inner}, "type": "object", "properties": {"k": {"items": {"$ref": "#/$defs/i"}}}}
    checked = trivium("schema", "check", write(schema), "--json")
    [problem] = json.loads(checked.out)["problems"]
    assert checked.code == 1
    assert reason in problem["reason"]
    assert problem["pointer"] == "#/$defs/i"


def test_problems_of_both_kinds_are_listed_together(trivium: Run, write: Any) -> None:
    schema = {"properties": {"a": {"uniqueItems": True}, "b": {"pattern": "a(?=b)"}, "c": {"format": "iri"}}}
    problems = json.loads(trivium("schema", "check", write(schema), "--json").out)["problems"]
    assert [each["pointer"] for each in problems] == [
        "#/properties/a/uniqueItems",
        "#/properties/c/format",
        "#/properties/b",
    ]


def test_what_is_no_schema_is_an_error(trivium: Run, write: Any, tmp_path: Path) -> None:
    assert trivium("schema", "check", tmp_path / "none").code == 2
    for content in ("{", "[]", "5"):
        failed = trivium("schema", "check", write(content))
        assert failed.code == 1
        assert "JSON Schema" in failed.err


def test_generate_holds_answers_to_a_form(trivium: Run, tiny: Path, write: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    ask = ("generate", tiny, "-p", "abc", *SMALL)
    assert json.loads(trivium(*ask, "--schema", write(schema)).out)["a"] in (True, False)
    assert re.fullmatch("[ab]{3}-x\n", trivium(*ask, "--regex", "[ab]{3}-x").out)
    assert trivium(*ask, "--choice", "red", "--choice", "blue").out in ("red\n", "blue\n")
    assert trivium(*ask, "--grammar", write('root ::= "x" [0-9] "y"')).out[0::2] == "xy"
    line = json.dumps({"prompt": "abc", "structured_outputs": {"choice": ["green"]}})
    assert trivium("generate", tiny, "--jsonl", *SMALL, "--choice", "red", stdin=line).out == "green\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--regex", "a", "--choice", "b"), 2, "--regex and --choice"),
        (("--schema", "/nonexistent"), 2, "/nonexistent cannot be read"),
        (("--regex", "("), 1, "regex cannot be enforced"),
    ],
)
def test_forms_that_cannot_be_held_are_errors(
    trivium: Run, tiny: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    failed = trivium("generate", tiny, "-p", "abc", *SMALL, *words)
    assert (failed.code, failed.out) == (code, "")
    assert message in failed.err
