"""Faults of other servers' APIs, tried end to end on the tiny model (cases A of docs/reliability.md)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.sse import chunks, events, texts_by_index
from support.tiny_server import CONTEXT, TinyServer, tiny_server


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server("--admin-key", "root=admin-key") as server:
        yield server


@pytest.fixture
def server(running: TinyServer) -> Iterator[TinyServer]:
    yield running
    running.assert_alive()


def greedy_letters(server: TinyServer) -> dict[str, Any]:
    """Fields of a request whose answer is 48 letters, always the same and hardly ever repeating."""
    return {"prompt": "ABC", "max_tokens": 48, "temperature": 1.0, "seed": 7, "logit_bias": server.letters(20.0)}


def test_a01_a_stop_text_never_leaks_and_never_is_missed(server: TinyServer) -> None:
    fields = greedy_letters(server)
    text = server.text(**fields)
    assert len(text) == 48
    drawn = random.Random(1)  # noqa: S311
    for _ in range(8):
        start = drawn.randrange(36)
        stop = text[start : start + drawn.randint(2, 12)]
        start = text.index(stop)
        for is_stream in (False, True):
            assert server.text(**fields, stop=[stop], stream=is_stream) == text[:start]
        assert server.text(**fields, stop=[stop], include_stop_str_in_output=True) == text[:start] + stop
        streamed = server.complete(**fields, stop=[stop], stream=True).text
        received = ""
        for chunk in chunks(streamed):
            received += chunk["choices"][0]["text"]
            assert len(received) <= start
    open_end = server.complete(**fields, stop=[text[40:] + "\u0007"]).json()["choices"][0]
    assert (open_end["text"], open_end["finish_reason"]) == (text, "length")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a03_output_that_is_no_utf8_is_replaced(server: TinyServer, is_stream: bool) -> None:
    lone_byte = server.ids("À")[1]
    fields: dict[str, Any] = {"logit_bias": {str(lone_byte): 100}, "max_tokens": 5, "ignore_eos": True}
    assert server.text(**fields, stream=is_stream) == "\ufffd" * 5
    response = server.chat(**fields, logprobs=True, stream=is_stream)
    assert response.status_code == 200
    if not is_stream:
        body = response.json()
        assert body["usage"]["completion_tokens"] == 5
        assert [entry["bytes"] for entry in body["choices"][0]["logprobs"]["content"]] == [[0x80]] * 5


def test_a04_echo_without_new_tokens_scores_the_prompt(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "Your answer: Yes", "echo": True}
    assert server.complete(**fields, max_tokens=0).json()["choices"][0]["text"] == "Your answer: Yes"
    body = server.complete(**fields, max_tokens=0, logprobs=1).json()
    scores = body["choices"][0]["logprobs"]["token_logprobs"]
    assert body["choices"][0]["text"] == "Your answer: Yes"
    assert len(scores) == body["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 0
    assert scores[0] is None
    assert all(score <= 0 for score in scores[1:])
    longer = server.complete(**fields, max_tokens=1, logprobs=1).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert longer[: len(scores)] == scores


def test_a05_filters_do_not_touch_the_prompts_scores(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "correct horse battery staple", "echo": True, "logprobs": 1, "max_tokens": 1}
    plain = server.complete(**fields).json()
    filtered = server.complete(**{**fields, "temperature": 1, "top_k": 1}).json()
    num_prompt = plain["usage"]["prompt_tokens"]
    scores = [body["choices"][0]["logprobs"]["token_logprobs"][:num_prompt] for body in (plain, filtered)]
    assert scores[0] == scores[1]


def test_a06_counts_of_logprobs_may_be_zero_or_absent(server: TinyServer) -> None:
    entries = server.complete(logprobs=0, max_tokens=4, ignore_eos=True).json()["choices"][0]["logprobs"]
    assert len(entries["token_logprobs"]) == 4
    for fields in ({}, {"top_logprobs": 0}):
        body = server.chat(logprobs=True, max_tokens=4, ignore_eos=True, **fields).json()
        content = body["choices"][0]["logprobs"]["content"]
        assert len(content) == body["usage"]["completion_tokens"] == 4
        assert all(entry["top_logprobs"] == [] for entry in content)
    assert server.chat(top_logprobs=3).status_code == 400


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["ok", ""], [264], [-1], [1 << 63], [1.5], [True]])
def test_a07_a08_prompts_that_are_none_are_refused(server: TinyServer, prompt: Any) -> None:
    assert server.complete(prompt=prompt).status_code == 400


def test_a08_the_last_id_of_the_vocabulary_is_taken(server: TinyServer) -> None:
    assert server.complete(prompt=[263]).status_code == 200
    for bias in ({"264": 5}, {"-1": 5}, {"abc": 1}, {"7": 1000}):
        assert server.complete(logit_bias=bias).status_code == 400


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-9])
def test_a10_a_very_small_temperature_is_greedy(server: TinyServer, temperature: float) -> None:
    fields: dict[str, Any] = {"prompt": "once", "max_tokens": 32, "ignore_eos": True, "return_token_ids": True}
    cold = server.complete(**fields, temperature=temperature).json()["choices"][0]
    assert cold == server.complete(**fields).json()["choices"][0]
    assert len(cold["token_ids"]) == 32


def test_a11_a_seeded_request_does_not_see_its_neighbours(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "A", "temperature": 0.8, "max_tokens": 16, "ignore_eos": True}
    alone = server.text(**fields, seed=42)
    neighbours: list[dict[str, Any]] = [{}, {"seed": 1}, {"seed": 42}, {"seed": 42, "n": 3}]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            jobs = [pool.submit(server.text, **fields, seed=42) for _ in range(2)]
            others = [pool.submit(server.text, **fields, **neighbour) for neighbour in neighbours]
            assert [job.result() for job in jobs] == [alone, alone]
            assert others[2].result() == others[3].result() == alone
    assert len({server.text(**fields) for _ in range(5)}) > 1
    assert server.text(**fields, seed=43) != alone


def test_a12_prompts_times_choices_come_in_order(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": ["red", "green", "blue"], "n": 2, "echo": True, "max_tokens": 3, "seed": 5}
    fields |= {"temperature": 1, "ignore_eos": True}
    body = server.complete(**fields).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [text.startswith(("red", "green", "blue")[idx // 2]) for idx, text in enumerate(texts)] == [True] * 6
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (12, 18)
    assert texts_by_index(chunks(server.complete(**fields, stream=True).text)) == dict(enumerate(texts))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a13_what_does_not_fit_is_refused_with_the_numbers(server: TinyServer, is_stream: bool) -> None:
    prompt = [70] * (CONTEXT - 8)
    fields: dict[str, Any] = {"prompt": prompt, "ignore_eos": True, "stream": is_stream}
    refused = server.complete(**fields, max_tokens=9)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert "504" in error["message"]
    long = server.chat("x" * (CONTEXT + 500), stream=is_stream)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert server.complete(**fields, max_tokens=8).status_code == 200
    if not is_stream:
        body = server.complete(**{**fields, "max_tokens": None}).json()
        assert body["usage"]["total_tokens"] == CONTEXT
        assert body["choices"][0]["finish_reason"] == "length"


def test_a14_penalties_do_not_depend_on_the_cache(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "say it again and again", "repetition_penalty": 1.3, "max_tokens": 24}
    first, warm = server.text(**fields), server.text(**fields)
    flushed = server.client.post("/v1/cache/flush", headers={"authorization": "Bearer admin-key"})
    assert (flushed.status_code, flushed.json()) == (200, {"flushed": True})
    assert first == warm == server.text(**fields)
    assert server.complete(**fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a15_presence_and_frequency_leave_the_first_token_alone(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "Paris Paris Paris", "max_tokens": 1, "logprobs": 5, "ignore_eos": True}
    fields |= {"logprobs_mode": "processed", "temperature": 1, "seed": 3}
    plain = server.complete(**fields).json()["choices"]
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}):
        assert server.complete(**fields, **penalty).json()["choices"] == plain
    assert server.complete(**fields, repetition_penalty=1.5).json()["choices"] != plain


def test_a16_min_tokens_holds_back_every_end(server: TinyServer) -> None:
    ends = server.ids("ab")
    bias = {str(end): 100 for end in (2, *ends)}
    fields: dict[str, Any] = {"max_tokens": 30, "stop_token_ids": ends, "logit_bias": bias, "return_token_ids": True}
    early = server.complete(**fields).json()
    assert early["usage"]["completion_tokens"] == 1
    late = server.complete(**fields, min_tokens=20, stop=["c"]).json()
    assert late["usage"]["completion_tokens"] == 21
    assert not {2, *ends} & set(late["choices"][0]["token_ids"][:20])


def test_a17_usage_is_the_same_in_every_form(server: TinyServer) -> None:
    prompt = "a prompt of its own, for usage " * 9
    seen = []
    for fields in ({}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}, {}):
        response = server.complete(prompt=prompt, max_tokens=4, ignore_eos=True, **fields)
        parsed = chunks(response.text) if fields.get("stream") else [response.json()]
        counted = [chunk for chunk in parsed if chunk.get("usage")]
        if fields == {"stream": True}:
            assert counted == []
            continue
        seen.append(counted[-1]["usage"])
        assert len(counted) == 1
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in seen] == [0, 278, 278]
    assert [{**usage, "prompt_tokens_details": None} for usage in seen[1:]] == [
        {**seen[0], "prompt_tokens_details": None}
    ] * 2
    chat = [server.chat("another prompt of its own " * 5, max_tokens=2).json()["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in chat]
    assert cached == [0, chat[0]["prompt_tokens"] - 1]


@pytest.mark.parametrize(
    "body",
    [b"{:", b"", b'{"model": "tiny", "prom', '{"prompt":"中"}'.encode("gbk"), b"\xef\xbb\xbf{}", b'{"a":"\x00"}', b"[]",
     b'{"model":"tiny","prompt":"\\ud800"}', b'{"model":"tiny","prompt":"x","temperature":NaN}',
     b'{"model":"tiny","prompt":"x","n":0,"stream":true}', b"[" * 200_000],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a09_a18_broken_bodies_are_refused(server: TinyServer, path: str, body: bytes) -> None:
    response = server.client.post(path, content=body)
    assert response.status_code == 400
    assert json.loads(response.text, parse_constant=pytest.fail)["error"]["message"]
    assert response.headers["content-type"] == "application/json"


def test_a19_only_served_names_answer(server: TinyServer) -> None:
    for model, status in (("nope", 404), ("", 404), (123, 400), (None, 400)):
        response = server.complete(model=model)
        assert (response.status_code, response.json()["error"]["param"]) == (status, "model")


def test_c04_c06_chat_prompts_have_one_start_and_no_none(server: TinyServer) -> None:
    counts = set()
    for turn in ({"content": ""}, {"content": None}, {}):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", **turn}, {"role": "user", "content": "b"}]
        body = server.post("/v1/chat/completions", messages=messages, max_tokens=1).json()
        tokens = server.post("/tokenize", messages=messages).json()["tokens"]
        assert body["usage"]["prompt_tokens"] == len(tokens)
        counts.add(len(tokens))
        assert tokens[0] == 1
        assert tokens[1] != 1
    assert len(counts) == 1


def test_errors_of_streams_are_plain_json(server: TinyServer) -> None:
    response = server.complete(stream=True, temperature=-3)
    assert response.headers["content-type"] == "application/json"
    assert events(response.text) == []
