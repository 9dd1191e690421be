"""Answers that are held to a form, over HTTP (cases A02, B, I03)."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from support.case_checks import assert_fields_refused, eventually, resident_bytes
from support.sse import chunks, events, texts_by_index
from support.tiny_server import TinyServer

BASE = {"model": '"tiny"', "prompt": '"hi"', "max_tokens": "4"}
LENGTHS = (1999, 2000, 2001, 10000)


def json_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def answers(server: TinyServer, count: int, **fields: Any) -> list[str]:
    """Draw answers, which must all have come to their end."""
    asked = {"temperature": 1.2, "seed": 5, "max_tokens": 300, **fields}
    response = server.complete(n=count, **asked)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * count, choices
    return [choice["text"] for choice in choices]


def assert_valid(server: TinyServer, schema: Any, count: int, **fields: Any) -> list[Any]:
    """Draw answers under a schema and check that each is JSON that satisfies it."""
    texts = answers(server, count, response_format=json_format(schema), **fields)
    documents = [json.loads(text) for text in texts]
    for document in documents:
        jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    return documents


def refuse(server: TinyServer, names: str, **fields: Any) -> None:
    assert_fields_refused(
        server, "/v1/completions", {**BASE, **{name: json.dumps(value) for name, value in fields.items()}}, names=names
    )


def test_a02_characters_are_never_cut_between_chunks(server: TinyServer) -> None:
    value = "🐱 日本語 é 👩‍👩‍👧"
    fields = {"model": "tiny", "prompt": "hi", "max_tokens": 200, "stream": True,
              "response_format": json_format({"enum": [value]})}  # fmt: skip
    [whole] = answers(server, 1, response_format=fields["response_format"])
    with server.client.stream("POST", "/v1/completions", json=fields) as response:
        read = b"".join(response.iter_raw(1))
    sent = [json.loads(line.decode()) for line in read.removesuffix(b"\n\n").split(b"data: ")[1:-1]]
    pieces = [choice["text"] for chunk in sent for choice in chunk["choices"]]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == whole
    assert json.loads(whole) == value


@pytest.fixture
def neighbour(server: TinyServer) -> Iterator[None]:
    """A stream that runs meanwhile, and must come to its end unharmed."""
    asked: dict[str, Any] = {"prompt": "beside", "max_tokens": 300, "ignore_eos": True}
    expected = server.text(**asked)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(server.text(**asked, stream=True)))
    thread.start()
    yield
    thread.join(30)
    assert found == [expected]


@pytest.mark.usefixtures("neighbour")
def test_b01_a_bad_constraint_is_refused_and_harms_nobody(server: TinyServer) -> None:
    for schema in ("x", [], 5, "", None, {"type": "strin"}, {"pattern": "("}, {"$ref": "#/$defs/none"},
                   {"type": "object", "properties": []}):  # fmt: skip
        refuse(server, "response_format", response_format=json_format(schema))
    refuse(server, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    refuse(server, "regex", structured_outputs={"regex": "("})
    refuse(server, "grammar", structured_outputs={"grammar": "root ::="})
    refuse(server, "structured_outputs", structured_outputs={"json_object": False})


def test_b02_an_answer_under_a_schema_is_never_free_text(server: TinyServer) -> None:
    schema = {"type": "string", "pattern": r"^hello there indeed\!$"}
    assert assert_valid(server, schema, 3) == ["hello there indeed!"] * 3
    refuse(server, "#/not", response_format=json_format({"not": {"type": "string"}}))


@pytest.mark.parametrize(
    "inner",
    [{"pattern": "^[a-z]+$", "maxLength": 3}, {"pattern": "^a+$", "minLength": 5, "maxLength": 40}],
)
def test_b03_a_pattern_leaves_bounds_of_length_in_force(server: TinyServer, inner: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"k": {"type": "string", **inner}}, "required": ["k"],
              "additionalProperties": False}  # fmt: skip
    bias = {str(server.ids("a")[0]): 20}
    assert_valid(server, schema, 30, temperature=1.5, logit_bias=bias)


def test_b04_values_beyond_ascii_come_as_they_are(server: TinyServer) -> None:
    values = ["在线", "naïve", "😀", 'a"b\\c\nd']
    assert set(assert_valid(server, {"enum": values}, 30)) <= set(values)
    for value in values:
        assert assert_valid(server, {"enum": [value]}, 1) == [value]


def test_b05_all_branches_of_all_of_are_in_force(server: TinyServer) -> None:
    base = {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 10, "maximum": 9999}},
        "required": ["x"],
    }
    other = {"type": "object", "properties": {"y": {"type": "string", "maxLength": 9}}, "required": ["y"]}
    schema = {"$defs": {"Base": base}, "allOf": [{"$ref": "#/$defs/Base"}, other], "maxProperties": 2}
    for document in assert_valid(server, schema, 20):
        assert document["x"] >= 10
        assert isinstance(document["y"], str)


def test_b06_references_are_followed_wherever_they_lead(server: TinyServer) -> None:
    behind = {"$defs": {"e": {"enum": ["p", "q"]}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/e"}},
              "required": ["a"], "additionalProperties": False}  # fmt: skip
    assert {document["a"] for document in assert_valid(server, behind, 10)} <= {"p", "q"}
    left = {"anyOf": [{"enum": [1, 22]}, {"type": "null"}]}
    into = {"type": "object", "required": ["t"], "additionalProperties": False,
            "properties": {"tree": {"type": "object", "properties": {"left": left}, "additionalProperties": False},
                           "t": {"$ref": "#/properties/tree/properties/left/anyOf/0"}}}  # fmt: skip
    assert {document["t"] for document in assert_valid(server, into, 10)} <= {1, 22}
    tree = {"$defs": {"t": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
                            "additionalProperties": False}}, "$ref": "#/$defs/t"}  # fmt: skip
    choices = server.complete(response_format=json_format(tree), n=10, temperature=1.2, max_tokens=300).json()[
        "choices"
    ]
    for choice in choices:
        assert choice["finish_reason"] in {"stop", "length"}
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["text"]), tree)
    refuse(
        server,
        "#/$defs/A/$ref",
        response_format=json_format({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}),
    )
    pure = {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
    refuse(server, "#/$defs/B/$ref", response_format=json_format(pure))


def test_b06_a_long_chain_of_references_overflows_no_stack(server: TinyServer) -> None:
    names = range(3000)
    chain = {f"a{name}": {"properties": {"x": {"$ref": f"#/$defs/a{name + 1}"}}} for name in names} | {"a3000": {}}
    response = server.complete(response_format=json_format({"$defs": chain, "$ref": "#/$defs/a0"}), max_tokens=2)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("has_whitespace", [False, True])
def test_b07_whitespace_never_runs_away(server: TinyServer, has_whitespace: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x"]}}, "required": ["a", "b"],
              "additionalProperties": False}  # fmt: skip
    bias = {str(server.ids(space)[0]): 100 for space in ("\n", " ", "\t")}
    wanted = {"json": schema, "disable_any_whitespace": not has_whitespace}
    for temperature in (0, 1.0):
        [text] = answers(server, 1, structured_outputs=wanted, logit_bias=bias, max_tokens=256, temperature=temperature)
        jsonschema.validate(json.loads(text), schema)
        assert max(map(len, re.findall(r"\s+", text)), default=0) == (20 if has_whitespace else 0)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= root "a" | "b"',
        'root ::= e\ne ::= e "+" e | [0-9]',
        'root ::= p\np ::= q "a" | "x"\nq ::= p "b" | "y"',
    ],
)
def test_b08_left_recursion_is_no_loop(server: TinyServer, grammar: str) -> None:
    began_s = time.monotonic()
    response = server.complete(grammar=grammar, max_tokens=20, temperature=1.0)
    assert response.status_code == 200, response.text
    assert time.monotonic() - began_s < 5
    assert re.match(r"(ba*|[0-9](\+[0-9])*\+?|(x|y)[ab]*)$", response.json()["choices"][0]["text"])
    refuse(server, "no text goes on", grammar='root ::= root "a"')


BOMBS = (r"(a?){60}a{60}", r"((a{0,50}){0,50}){0,50}", r"(.*a.{14}b|.*b.{14}a)+", r"[\s\S]{1,60000}")


def test_b09_expressions_that_explode_hold_up_nobody(server: TinyServer) -> None:
    server.complete(regex="warm", max_tokens=1)
    asked: dict[str, Any] = {"prompt": "beside", "max_tokens": 450, "ignore_eos": True}
    expected = server.text(**asked)
    before, threads = resident_bytes(server.engine), server.engine.num_threads()
    with ThreadPoolExecutor(20) as pool:
        bombs = [pool.submit(timed, server, f"{BOMBS[place % 4]}|x{{{place + 1}}}") for place in range(20)]
        gaps, text = stream_gaps(server, asked)
        answered = [bomb.result() for bomb in bombs]
    assert text == expected
    assert max(gaps) < 1.0
    assert max(seconds for seconds, _ in answered) < 10
    assert {status for _, status in answered} <= {200, 400}
    eventually(lambda: server.engine.num_threads() <= threads)
    assert resident_bytes(server.engine) - before < 500 << 20


def test_b09_a_constraint_that_outgrows_its_limits_in_the_middle_ends_its_answer_by_name(server: TinyServer) -> None:
    fields: dict[str, Any] = {"regex": "[0-9]{70}((a{0,50}){0,50}){0,50}", "max_tokens": 400, "min_tokens": 400}
    whole = server.complete(temperature=1.0, **fields)
    assert whole.status_code == 400, whole.text
    error = whole.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "constraint_failed")
    assert re.search(r"grew beyond its limits after \d+ tokens of the answer .*lower their counts", error["message"])
    with server.client.stream(
        "POST", "/v1/completions", json={"model": "tiny", "prompt": "hi", "temperature": 1.0, "stream": True, **fields}
    ) as response:
        assert response.status_code == 200
        *told, last = events("\n".join(response.iter_lines()))
    assert len("".join(chunk["choices"][0]["text"] for chunk in told)) > 70
    assert last["error"]["code"] == "constraint_failed"
    refuse(server, "grew beyond its limits", regex="((a{0,50}){0,50}){0,50}")


def timed(server: TinyServer, regex: str) -> tuple[float, int]:
    began_s = time.monotonic()
    response = server.complete(regex=regex, max_tokens=60, temperature=1.0)
    return time.monotonic() - began_s, response.status_code


def stream_gaps(server: TinyServer, asked: dict[str, Any]) -> tuple[list[float], str]:
    """Stream an answer; returns the seconds between its events, and its text."""
    times, lines = [time.monotonic()], []
    fields = {"model": "tiny", "temperature": 0, "stream": True, **asked}
    with server.client.stream("POST", "/v1/completions", json=fields) as response:
        for line in response.iter_lines():
            lines.append(line)
            times.append(time.monotonic())
    return [after - before for before, after in pairwise(times)], texts_by_index(chunks("\n".join(lines)))[0]


def test_b10_lengths_at_the_edges_behave_alike(server: TinyServer) -> None:
    for length in LENGTHS:
        began_s = time.monotonic()
        schema = {"type": "string", "maxLength": length}
        assert server.complete(response_format=json_format(schema), max_tokens=3).status_code == 200
        numbers = {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000}
        assert server.complete(response_format=json_format(numbers), max_tokens=3).status_code == 200
        assert time.monotonic() - began_s < 5


def test_b10_degenerate_shapes_are_what_they_say(server: TinyServer) -> None:
    assert answers(server, 1, response_format=json_format({"type": "array", "maxItems": 0})) == ["[]"]
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert answers(server, 1, response_format=json_format(nothing)) == ["{}"]
    refuse(server, "response_format", response_format=json_format({"enum": []}))
    bias = {str(server.ids("a")[0]): 50, str(server.ids(",")[0]): 50}
    schema = {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3}
    for document in assert_valid(server, schema, 10, logit_bias=bias):
        assert len(document) <= 3


SOME = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
REFUSED = {"uniqueItems": True, "contains": {"const": 1}, "propertyNames": {"maxLength": 3, "pattern": "a"},
           "not": {"const": 1}, "if": {"const": 1}, "dependentRequired": {"a": ["b"]}}  # fmt: skip


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_b11_keywords_that_cannot_be_enforced_are_refused_by_name_and_pointer(server: TinyServer, keyword: str) -> None:
    inner = {keyword: REFUSED[keyword], "then": False} if keyword == "if" else {keyword: REFUSED[keyword]}
    schema = {"type": "object", "properties": {"k": inner}}
    refuse(server, f"#/properties/k/{keyword}: the keyword '{keyword}'", response_format=json_format(schema))
    data = {**SOME, "default": {keyword: 1}, "examples": [inner]}
    assert_valid(server, data, 3)
    assert assert_valid(server, {"enum": [inner]}, 1) == [inner]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
        {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": False,
         "maxProperties": 4},
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "boolean"}},
    ],
)  # fmt: skip
def test_b11_keywords_that_can_be_are(server: TinyServer, schema: Any) -> None:
    assert_valid(server, schema, 50)


def test_b12_several_choices_streamed_are_each_valid_and_the_same_as_whole(server: TinyServer) -> None:
    values: dict[str, Any] = {"a": {"enum": [1, 2, "x"]}, "b": {"type": "boolean"}}
    schema = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
    for temperature in (0, 1.0):
        asked = {
            "response_format": json_format(schema),
            "n": 4,
            "temperature": temperature,
            "seed": 3,
            "max_tokens": 60,
        }
        whole = [choice["text"] for choice in server.complete(**asked).json()["choices"]]
        streamed = texts_by_index(chunks(server.complete(**asked, stream=True).text))
        assert [streamed[index] for index in range(4)] == whole
        for text in whole:
            jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("more", [{"min_tokens": 64}, {"ignore_eos": True}, {"min_tokens": 64, "ignore_eos": True}])
def test_b13_an_answer_that_is_whole_ends_whatever_more_is_asked_for(server: TinyServer, more: dict[str, Any]) -> None:
    for text in answers(server, 4, response_format=json_format({"type": "boolean"}), **more):
        assert text in {"true", "false"}


def test_b14_dates_are_days_that_exist(server: TinyServer) -> None:
    values = {"d": {"type": "string", "format": "date"}, "t": {"type": "string", "format": "date-time"}}
    schema = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for document in assert_valid(server, schema, 50, temperature=1.5):
        checker.check(document["d"], "date")
        checker.check(document["t"][:10], "date")
        hour, minute, second = map(int, document["t"][11:19].split(":"))
        assert (hour < 24, minute < 60, second < 60) == (True,) * 3


def test_i03_references_to_addresses_are_never_followed(server: TinyServer) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/s.json"
        tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"$ref": url}}}
        spellings: Sequence[dict[str, Any]] = (
            {"response_format": json_format({"$ref": url})},
            {"response_format": json_format({"properties": {"a": {"$ref": f"{url}#/x"}}})},
            {"response_format": json_format({"$schema": url})},
            {"guided_json": {"$id": url, "$ref": "other.json"}},
            {"response_format": tag},
        )
        for fields in spellings:
            refuse(server, next(iter(fields)), **fields)
        with pytest.raises(TimeoutError):
            listener.accept()
