"""Constraints over real sockets, in the words of the `openai` client: parsed models, streams, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum

import httpx
import openai
import pytest
from pydantic import BaseModel

from support.server_process import ServerProcess
from support.tiny_engine import tiny_model


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Box(BaseModel):
    colour: Colour
    sides: list[bool]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model(), "--kv-cache-memory", "1MiB", "--threads", "1") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as own:
        yield own


def test_the_client_parses_what_comes_into_its_model(client: openai.OpenAI) -> None:
    for seed in range(5):
        answer = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "a box"}],
            response_format=Box,
            seed=seed,
            max_tokens=150,
        )
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(choice.message.parsed, Box)
            return
    pytest.fail("no answer came to its end")


def test_streams_are_the_same_text(client: openai.OpenAI) -> None:
    asked = {"prompt": "a", "seed": 3, "max_tokens": 30, "extra_body": {"regex": "[a-z]{5,9}-[0-9]+"}}
    whole = client.completions.create(model="tiny", **asked)  # type: ignore[call-overload]
    parts = client.completions.create(model="tiny", stream=True, **asked)  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].text for chunk in parts)
    assert text == whole.choices[0].text
    assert re.match("[a-z]{5,9}(-[0-9]+)?", text)


def test_twenty_at_once_with_several_choices(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        fields = {
            "model": "tiny",
            "prompt": ["a"] * 20,
            "n": 2,
            "max_tokens": 40,
            "structured_outputs": {"choice": ["red", "green", "{}"]},
        }
        answer = client.post("/v1/completions", json=fields).json()
    assert "choices" in answer, answer
    assert {choice["text"] for choice in answer["choices"]} <= {"red", "green", "{}"}
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_cannot_be_enforced_is_a_400_with_the_reason(server: ServerProcess, is_stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    with httpx.Client(base_url=server.url, timeout=20) as client:
        fields = {"model": "tiny", "prompt": "a", "stream": is_stream, "guided_json": schema}
        refused = client.post("/v1/completions", json=fields)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("guided_json", "invalid_value")
        assert "#/properties/a/not: the keyword 'not' is not supported" in error["message"]
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 2}).status_code == 200


def test_metrics_count_grammars(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        for _ in range(2):
            fields = {"model": "tiny", "prompt": "a", "max_tokens": 4, "response_format": {"type": "json_object"}}
            assert json.dumps(client.post("/v1/completions", json=fields).json())
        shown = client.get("/metrics").text
    counts = dict(re.findall(r"^trivium_grammars_(\w+?)(?:_total)? ([0-9.]+)$", shown, re.M))
    assert float(counts["compiled"]) >= 1
    assert float(counts["waiting"]) == 0


def test_spans_of_free_text_are_held_to_their_form(server: ServerProcess, client: openai.OpenAI) -> None:
    [letter] = httpx.post(f"{server.url}/tokenize", json={"model": "tiny", "prompt": "a"}).json()["tokens"]
    tags = [{"begin": "a(", "content": {"type": "json_schema", "json_schema": {"enum": [1, 22]}}, "end": ")"}]
    form = {"type": "triggered_tags", "triggers": ["a"], "tags": tags}
    spelled: list[dict[str, object]] = [
        {"response_format": {"type": "structural_tag", "format": form}},
        {"structured_outputs": {"structural_tag": json.dumps({"format": form})}},
        {
            "structural_tag": {
                "structures": [{"begin": "a(", "schema": {"enum": [1, 22]}, "end": ")"}],
                "triggers": ["a"],
            }
        },
    ]
    asked = {"model": "tiny", "prompt": "x", "seed": 2, "max_tokens": 60, "logit_bias": {str(letter): 6}}
    answers = []
    for fields in spelled:
        whole = client.completions.create(extra_body=fields, **asked)  # type: ignore[call-overload]
        parts = client.completions.create(extra_body=fields, stream=True, **asked)  # type: ignore[call-overload]
        assert "".join(chunk.choices[0].text for chunk in parts) == whole.choices[0].text
        answers.append(whole.choices[0].text)
    assert len(set(answers)) == 1
    first, *spans = answers[0].split("a")
    assert len(spans) > 1, first
    assert all(re.match(r"\((1|22)\)", span) for span in spans[:-1]), spans
