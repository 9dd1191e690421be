"""Requests that are refused, with the field's name, whole and as streams (cases A07 A08 A09 A13 A18 A19 I01 I02)."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import psutil
import pytest

from support.case_checks import assert_fields_refused, assert_refused, raw_body, resident_bytes
from support.tiny_model import VOCAB
from support.tiny_server import CONTEXT, TinyServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASES = {
    COMPLETIONS: {"model": '"tiny"', "prompt": '"hi"', "max_tokens": "4"},
    CHAT: {"model": '"tiny"', "messages": '[{"role": "user", "content": "hi"}]', "max_tokens": "4"},
}
BIG_MODEL_VOCAB = 49152


def both_refuse(server: TinyServer, field: str, *values: str) -> None:
    for (path, base), value in itertools.product(BASES.items(), values):
        assert_fields_refused(server, path, {**base, field: value}, names=field)


@pytest.mark.parametrize("prompt", ['""', '[""]', "[]", "[[]]", '["ok", ""]', "null"])
def test_a07_an_empty_prompt_is_refused(server: TinyServer, prompt: str) -> None:
    assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], "prompt": prompt}, names="prompt")


def test_a07_a_conversation_without_messages_is_refused(server: TinyServer) -> None:
    assert_fields_refused(server, CHAT, {**BASES[CHAT], "messages": "[]"}, names="messages")


@pytest.mark.parametrize(
    "prompt", [f"[{VOCAB}]", "[-1]", "[9223372036854775808]", "[1.5]", "[true]", f"[[5], [{VOCAB}]]", "[5, null]"]
)
def test_a08_ids_outside_the_vocabulary_are_refused(server: TinyServer, prompt: str) -> None:
    assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], "prompt": prompt}, names="prompt")


def test_a08_biases_of_no_token_are_refused(server: TinyServer) -> None:
    both_refuse(server, "logit_bias", f'{{"{VOCAB}": 5}}', '{"-1": 5}', '{"abc": 1}', '{"7": 1000}', '{"7": NaN}')
    assert server.complete(prompt=[VOCAB - 1], max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_a09_numbers_that_are_none_are_refused_by_the_fields_name(server: TinyServer, field: str) -> None:
    both_refuse(server, field, "NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"', "true", "[1]", "1" * 400)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", ["-3", "-0.001", "101"]),
        ("top_p", ["0", "7", "-1"]),
        ("min_p", ["-0.1", "1.1"]),
        ("n", ["0", "-1", "1.5"]),
        ("max_tokens", ["-1", "1.5"]),
        ("repetition_penalty", ["-1", "0"]),
        ("presence_penalty", ["2.1", "-2.1"]),
        ("stop", ['""', '["x", ""]', "[1]", "7"]),
        ("seed", ["-1", "1e30"]),
    ],
)
def test_a09_values_out_of_range_are_refused(server: TinyServer, field: str, values: list[str]) -> None:
    both_refuse(server, field, *values)


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"top_p": 1}, {"presence_penalty": 2, "frequency_penalty": 2},
     {"presence_penalty": -2, "frequency_penalty": -2}, {"repetition_penalty": 0.5}, {"min_p": 1}],
)  # fmt: skip
def test_a09_values_at_the_edges_are_taken(server: TinyServer, fields: dict[str, Any]) -> None:
    assert server.complete(**fields, max_tokens=3).status_code == 200
    assert server.chat(**fields, max_tokens=3, stream=True).status_code == 200


def test_a13_what_is_longer_than_the_context_is_refused_with_limit_and_count(server: TinyServer) -> None:
    for path, fields in (
        (CHAT, {**BASES[CHAT], "messages": json.dumps([{"role": "user", "content": "x" * (CONTEXT + 500)}])}),
        (COMPLETIONS, {**BASES[COMPLETIONS], "prompt": json.dumps([70] * (CONTEXT + 500))}),
        (COMPLETIONS, {**BASES[COMPLETIONS], "prompt": json.dumps([70] * (CONTEXT - 8)), "max_tokens": "9"}),
    ):
        for ending in ({}, {"stream": "true"}):
            error = assert_refused(server, path, raw_body({**fields, **ending}), names=str(CONTEXT), statuses=(400,))
            assert error["code"] == "context_length_exceeded"
            assert "-" not in error["message"]
    assert str(CONTEXT - 8) in error["message"]


BROKEN = {
    "no JSON": b"{:",
    "nothing": b"",
    "white space": b" \n",
    "cut short": b'{"model": "tiny", "prompt": "he',
    "GBK": '{"model": "tiny", "prompt": "中文"}'.encode("gbk"),
    "byte-order mark": b'\xef\xbb\xbf{"model": "tiny", "prompt": "x"}',
    "UTF-16": '{"model": "tiny", "prompt": "x"}'.encode("utf-16"),
    "NUL byte": b'{"model": "tiny", "prompt": "\x00"}',
    "NUL behind": b'{"model": "tiny", "prompt": "x"}\x00',
    "array root": b"[]",
    "number root": b"17",
    "depth": b"[" * 100_000,
    "depth of objects": b'{"a":' * 100_000,
    "same key twice": b'{"model": "tiny", "prompt": "x", "prompt": "y"}',
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_a18_broken_bodies_are_refused(server: TinyServer, path: str) -> None:
    for body in BROKEN.values():
        assert_refused(server, path, body)


def test_a18_half_a_character_is_refused_by_the_fields_name(server: TinyServer) -> None:
    assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], "prompt": '"\\ud800"'}, names="prompt")
    turn = '[{"role": "user", "content": "a\\udc00b"}]'
    assert_fields_refused(server, CHAT, {**BASES[CHAT], "messages": turn}, names="messages")
    assert server.client.post(
        COMPLETIONS, content=raw_body({**BASES[COMPLETIONS], "prompt": '"\\ud83d\\ude00"'})
    ).is_success


def test_a19_a_name_that_is_not_served_is_a_404_about_the_model(server: TinyServer) -> None:
    for path, base in BASES.items():
        for name in ('"nope"', '""', '"tiny "', '"Tiny"', '"../tiny"'):
            assert_fields_refused(server, path, {**base, "model": name}, names="model", statuses=(404,))
        for name in ("123", "null", "[]", "true"):
            assert_fields_refused(server, path, {**base, "model": name}, names="model", statuses=(400,))
        missing = {key: value for key, value in base.items() if key != "model"}
        assert_fields_refused(server, path, missing, names="model", statuses=(400,))
        error = assert_refused(server, path, raw_body({**base, "model": '"nope"'}), statuses=(404,))
        assert error["param"] == "model"


def test_i01_huge_numbers_of_answers_are_refused_at_once_and_cost_nothing(server: TinyServer) -> None:
    processes = (psutil.Process(server.process.pid), server.engine)
    before, began_s = resident_bytes(*processes), time.monotonic()
    for field in ("n", "best_of"):
        assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], field: "1000000"}, names=field)
        assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], field: "512"}, names=field)
    assert_fields_refused(server, CHAT, {**BASES[CHAT], "n": "1000000"}, names="n")
    many = {**BASES[COMPLETIONS], "prompt": json.dumps(["x"] * 200), "n": "128"}
    assert_fields_refused(server, COMPLETIONS, many, names="answers")
    assert time.monotonic() - began_s < 12 * 1.0
    assert resident_bytes(*processes) - before < 100 << 20


def test_i01_the_documented_limit_of_answers_finishes(server: TinyServer) -> None:
    for fields in ({"n": 128}, {"n": 2, "best_of": 128}):
        body = server.complete(**fields, max_tokens=2, ignore_eos=True, temperature=1).json()
        assert len(body["choices"]) == fields["n"]
        assert body["usage"]["completion_tokens"] == 256


def test_i02_huge_numbers_of_logprobs_are_refused(server: TinyServer) -> None:
    for value in (str(BIG_MODEL_VOCAB), "21", "-1", "1.5"):
        assert_fields_refused(server, COMPLETIONS, {**BASES[COMPLETIONS], "logprobs": value}, names="logprobs")
        assert_refused(
            server, COMPLETIONS, raw_body({**BASES[COMPLETIONS], "prompt_logprobs": value}), names="prompt_logprobs"
        )
        chat = {**BASES[CHAT], "logprobs": "true", "top_logprobs": value}
        assert_fields_refused(server, CHAT, chat, names="top_logprobs")


def test_i02_the_documented_limit_of_logprobs_stays_small(server: TinyServer) -> None:
    processes = (psutil.Process(server.process.pid), server.engine)
    before = resident_bytes(*processes)
    prompt = [70] * (CONTEXT - 2)
    body = server.complete(prompt=prompt, max_tokens=1, ignore_eos=True, prompt_logprobs=20, logprobs=20).json()
    choice = body["choices"][0]
    assert [entry is None for entry in choice["prompt_logprobs"]] == [True, *[False] * (CONTEXT - 3)]
    assert all(len(entry) in {20, 21} for entry in choice["prompt_logprobs"][1:])
    assert resident_bytes(*processes) - before < 100 << 20


def test_d01_d06_what_would_change_the_meaning_of_a_prefix_is_refused_by_name(server: TinyServer) -> None:
    for field, value in (
        ("prompt_embeds", '"AAAA"'),
        ("mm_processor_kwargs", '{"crop": true}'),
        ("lora", '"a"'),
        ("lora_path", '"a"'),
        ("adapter", '"a"'),
        ("kv_transfer_params", '{"a": 1}'),
    ):
        both_refuse(server, field, value)
    picture = '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]'
    assert_fields_refused(server, CHAT, {**BASES[CHAT], "messages": picture}, names="messages[0].content[0]")
